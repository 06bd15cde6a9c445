"""python -m tests.crash.deleted_syncs: leave out each sync of the storage layer in turn, and see whether a crash tells.

A place in the source that syncs a file or a folder is found by running it. Then the same runs are crashed with that one
sync left out, until a promise is broken. A sync that is never missed is not needed, or the model knows too little.

A few are not missed here, with good reason:

    disk_queue_files:save_position    a damaged meta file costs no message; all of them come again
    recovery:_new_segment, the file   a segment without a header is set aside, and its offsets are skipped
    recovery:_cut, the folder         simulated folders keep their changes in order, as not every file system does
    journal:remove, the folder        likewise
    journal:remove, the .idx file     it takes a producer that is silent for long; see test_recovery_power_cut
    recovery:_cut, the file           it takes many states; see test_recovery_power_cut
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import emberq
from tests.crash.exploration import recorded, try_states
from tests.crash.simulated_files import SimulatedFiles

SOURCE = Path(emberq.__file__).parent
STATES_PER_RUN = 15


class Syncs:
    """The places that sync, and the one that is left out."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.left_out: str | None = None

    def does(self) -> bool:
        """Asked by the file system: whether the sync that is under way takes place."""
        place = _place()
        self.places.add(place)
        return place != self.left_out


def _place() -> str:
    """The line of the storage layer that syncs; for what base/file does, also the line that asked for it."""
    lines: list[str] = []
    frame = sys._getframe(3)
    while frame is not None and not (lines and not lines[-1].startswith("base/file")):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            lines.append(f"{path.relative_to(SOURCE)}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)


def places(seeds: range) -> list[str]:
    """All places that sync in these runs and after their crashes."""
    syncs = Syncs()
    for seed in seeds:
        run = recorded(seed, fs=SimulatedFiles(does_sync=syncs.does))
        for _ in try_states(run, 5):
            pass
    return sorted(syncs.places)


def missed(place: str, seeds: range) -> str | None:
    """The promise that is broken when this place does not sync; None: none is in these runs."""
    syncs = Syncs()
    syncs.left_out = place
    for seed in seeds:
        run = recorded(seed, fs=SimulatedFiles(does_sync=syncs.does))
        for found in try_states(run, STATES_PER_RUN):
            if found is not None:
                return str(found).split("\n", maxsplit=1)[0]
    return None


def main() -> int:
    """0 if every sync is missed when it is left out."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.deleted_syncs", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many runs may be needed to miss a sync")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    not_missed = 0
    for place in places(range(arguments.seed, arguments.seed + 30)):
        broken = missed(place, range(arguments.seed, arguments.seed + arguments.runs))
        not_missed += broken is None
        print(f"{place}\n    {broken or 'NOT MISSED'}", flush=True)
    print(f"{not_missed} syncs were not missed")
    return 1 if not_missed else 0


if __name__ == "__main__":
    sys.exit(main())
