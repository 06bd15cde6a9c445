"""python -m tests.chaos: real faults on real processes for as long as asked, and a report.

python -m tests.chaos --minutes 15                 a run of everything
python -m tests.chaos --minutes 15 --seed 17       the same choices again
python -m tests.chaos --kills 200                  nothing but kill -9, under as much load as there can be
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import SYNC_MODES, ChaosRun, Plan

OUTPUT = Path("build/chaos")


def main() -> int:
    """0 if every promise was kept, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--mode", action="append", default=[])
    parser.add_argument("--only", action="append", default=[])
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    logging.disable(logging.CRITICAL)
    print(f"SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="emberq-chaos-") as folder:
        plan = Plan(seed, arguments.minutes * 60, only=frozenset(arguments.only), modes=arguments.mode or SYNC_MODES, mount_bytes=256 << 20)
        OUTPUT.mkdir(parents=True, exist_ok=True)
        run = ChaosRun(plan, Path(folder), history_path=OUTPUT / "history.tsv")
        outcome = asyncio.run(run.run())
        print("\n".join(outcome.verdict.lines() + outcome.incidents + outcome.notes))
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
