"""python -m tests.fuzz: fuzz all targets in turn, for as long as asked; exit status 1 if there is a finding.

python -m tests.fuzz --minutes 10                      all targets, an equal share of the time each
python -m tests.fuzz --minutes 10 --seed 17            the same choices again, as far as the time reaches
python -m tests.fuzz --minutes 2 --only decoder        one target; --only may be repeated
python -m tests.fuzz --again build/fuzz/findings/decoder-0123456789ab      one input that failed
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.oracle import Oracle
from tests.fuzz.run import Order, run_all
from tests.fuzz.targets import TARGETS

OUTPUT = Path("build/fuzz")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing was found, 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, for all targets together")
    parser.add_argument("--seed", type=int, help="the choices of an earlier run")
    parser.add_argument("--only", action="append", choices=sorted(TARGETS), help="no target but this one")
    parser.add_argument("--jobs", type=int, default=1, help="so many targets at a time")
    parser.add_argument("--again", type=Path, help="play this file of findings, and show what is wrong with it")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where corpora and findings are kept")
    options = parser.parse_args(arguments)
    if options.again is not None:
        return _play_again(options.again)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    names = options.only or list(TARGETS)
    seconds = options.minutes * 60 * options.jobs / len(names)
    print(f"SEED={seed}, {seconds:.0f} s for each of {len(names)} targets", flush=True)
    scores = run_all([Order(name, seed, seconds, options.output) for name in names], jobs=options.jobs)
    finding_count = sum(len(score.findings) for score in scores)
    cpu_s, play_count = sum(score.cpu_s for score in scores), sum(score.plays for score in scores)
    print(f"{play_count} inputs, {cpu_s / 60:.1f} minutes of CPU time, {finding_count} findings", flush=True)
    return 1 if finding_count else 0


def _play_again(path: Path) -> int:
    name = path.name.rpartition("-")[0]
    target, oracle = TARGETS[name](), Oracle()
    with oracle.watching(interrupts=True), target.opened():
        verdict = oracle.judge(target, path.read_bytes())
    print("nothing is wrong" if verdict is None else f"{verdict.kind} {verdict.place}\n{verdict.text}")
    return 0 if verdict is None else 1


if __name__ == "__main__":
    sys.exit(main())
