"""python -m tests.chaos: real faults on real processes for as long as asked, then a verdict and a report.

python -m tests.chaos --minutes 15                     everything, the crash simulator included
python -m tests.chaos --minutes 15 --seed 17           the same choices again
python -m tests.chaos --kills 200                      nothing but kill -9, under a higher load
python -m tests.chaos --minutes 1 --only "half open"   one fault again and again

The report is in build/chaos: report.txt, report.html, and the history of every message in history.tsv.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.history import read_history
from tests.chaos.lab import DamageLab, HandoverLab
from tests.chaos.report import Measurements, html_report, text_report
from tests.chaos.run import SYNC_MODES, ChaosRun, Outcome, Plan

OUTPUT = Path("build/chaos")
SIMULATED_SHARE = 0.2
"""Of the time goes to the crash simulator, before the real faults."""
STATES_PER_STEP = 80
"""Crash states that the simulator tries before it looks at the clock again."""
KILL_RATE = 600.0
"""Messages a second to a topic while nsqd is killed again and again."""
MOUNT_BYTES = 64 << 20
MOUNT_BYTES_PER_MINUTE = 12 << 20
"""Room for what is published: 150 messages of 250 bytes a second to each of three topics, and as much again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every promise was kept, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=15.0, help="how long to make trouble")
    parser.add_argument("--seed", type=int, help="the choices of an earlier run")
    parser.add_argument("--kills", type=int, default=0, help="kill nsqd so often, and do nothing else")
    parser.add_argument("--only", action="append", default=[], help="no fault but this one; may be repeated")
    parser.add_argument("--mode", action="append", choices=SYNC_MODES, help="only the nsqd with this sync mode")
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"SEED={seed}", flush=True)
    logging.disable(logging.CRITICAL)  # clients tell of each lost connection
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way the processes of the run end with it
    plan = _plan(seed, options)
    is_everything = not (options.kills or options.only or options.mode)
    simulated = _simulate(seed, options.minutes * 60 * SIMULATED_SHARE) if is_everything else []
    outcome = _make_trouble(plan, with_labs=is_everything)
    outcome.incidents += [line for line in simulated if "broken" in line and " 0 broken" not in line]
    outcome.notes += simulated
    _report(outcome)
    return 0 if outcome.is_clean else 1


def _plan(seed: int, options: argparse.Namespace) -> Plan:
    modes = options.mode or SYNC_MODES
    if options.kills:
        kills = {mode: options.kills if mode == modes[0] else max(1, options.kills // 4) for mode in modes}
        return Plan(seed, 0.0, modes, rate=KILL_RATE, kills=kills, has_all_topics=False)
    share = 1.0 if options.only or options.mode else 1.0 - SIMULATED_SHARE
    mount_bytes = MOUNT_BYTES + round(MOUNT_BYTES_PER_MINUTE * options.minutes)
    return Plan(seed, options.minutes * 60 * share, modes, only=frozenset(options.only), mount_bytes=mount_bytes)


def _simulate(seed: int, duration_s: float) -> list[str]:
    """Let the crash simulator (tests/crash) run for a while; how far it came, and the promise it found broken."""
    end_s = time.monotonic() + duration_s
    tried, said = 0, []
    while time.monotonic() < end_s:
        first = seed % 1_000_000 + tried // 40
        command = [sys.executable, "-m", "tests.crash", "--states", str(STATES_PER_STEP), "--seed", str(first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        tried += STATES_PER_STEP
        if done.returncode != 0:
            said.append(f"crash simulator: broken promise: {done.stderr[-2000:]}")
            break
        print(f"crash simulator: {tried} states", flush=True)
    return [*said, f"crash simulator: {tried} states of runs from seed {seed % 1_000_000} on"]


def _make_trouble(plan: Plan, *, with_labs: bool) -> Outcome:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "logs.txt").unlink(missing_ok=True)  # of an earlier run
    with tempfile.TemporaryDirectory(prefix="emberq-chaos-") as name:
        folder = Path(name)
        damage, handover = DamageLab(folder / "damage"), HandoverLab(folder / "handover")
        labs = [damage.visit, handover.visit] if with_labs else []
        run = ChaosRun(plan, folder, history_path=OUTPUT / "history.tsv", labs=labs)
        outcome = asyncio.run(run.run())
        outcome.notes += [f"damage: {line}" for line in damage.findings]
        outcome.notes += [f"layout of the Go nsqd: {line}" for line in handover.findings]
        if not outcome.is_clean:
            _keep_logs(folder)
        return outcome


def _keep_logs(folder: Path) -> None:
    """What the processes of a run that failed have said, in one file."""
    logs = sorted(folder.rglob("*.log"))
    kept = (f"==> {log.relative_to(folder)} <==\n{log.read_text(errors='replace')[-20_000:]}\n" for log in logs)
    (OUTPUT / "logs.txt").write_text("".join(kept))


def _report(outcome: Outcome) -> None:
    plan = outcome.plan
    measured = Measurements(outcome.nodes, backlogs=outcome.backlogs)
    measured.take(read_history(OUTPUT / "history.tsv"))
    title = f"emberq chaos, seed {plan.seed}, {measured.end_s:.0f} s"
    words = text_report(title, outcome.verdict, measured, incidents=outcome.incidents, notes=outcome.notes)
    page = html_report(title, outcome.verdict, measured, incidents=outcome.incidents, notes=outcome.notes)
    (OUTPUT / "report.txt").write_text(words)
    (OUTPUT / "report.html").write_text(page)
    print(f"\n{words}\n{OUTPUT}/report.html", flush=True)


if __name__ == "__main__":
    sys.exit(main())
