"""python -m tests.crash: crash simulated nsqds for as long as asked, and stop at the first broken promise.

python -m tests.crash --states 100000 --seed 1       many states
python -m tests.crash --seed 17 --state 3            one of them again, with its log
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from emberq.broker.store import SyncMode
from tests.crash.exploration import CrashFoundError, explore, recorded, try_state

PROGRESS_SECONDS = 5.0


def main() -> int:
    """0 if every promise was kept, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--states", type=int, default=2000, help="how many crash states to try")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run; the next has the next number")
    parser.add_argument("--state", type=int, help="try this one state of the run with that seed alone")
    parser.add_argument("--sync", choices=[mode.value for mode in SyncMode], help="this sync mode instead of all")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a broken promise")
    arguments = parser.parse_args()
    sync = SyncMode(arguments.sync) if arguments.sync else None
    if arguments.state is not None:
        return _replay(arguments.seed, arguments.state, sync)
    logging.disable(logging.CRITICAL)
    return _explore(arguments.seed, arguments.states, sync, keep_going=arguments.keep_going)


def _replay(seed: int, state: int, sync: SyncMode | None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    run = recorded(seed, sync=sync)
    print(run)
    try:
        try_state(run, state)
    except CrashFoundError as found:
        print(found, file=sys.stderr)
        return 1
    print("every promise was kept")
    return 0


def _explore(seed: int, states: int, sync: SyncMode | None, *, keep_going: bool) -> int:
    began = shown = time.monotonic()
    broken = 0
    for tried, found in enumerate(explore(seed=seed, states=states, sync=sync), 1):
        if found is not None:
            broken += 1
            print(found, file=sys.stderr)
            if not keep_going:
                return 1
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{tried} of {states} crash states, {tried / (shown - began):.0f} a second", flush=True)
    print(f"{states} crash states of runs from seed {seed} on: {broken} broken promises")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
