"""python -m tests.crash.deleted_syncs: leave out each sync of the storage layer in turn, and see whether a test tells.

A place in the source that syncs a file or a folder is found by running it. With that one sync left out, first the tests
of single cases run that use simulated files, then crashes of random runs, until a promise is broken. A sync that is
never missed is not needed, or the tests know too little. With --swapped each sync takes place behind the one that
follows it, whatever that is: their order matters, or it does not have to.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import emberq
from tests.crash.exploration import recorded, try_states
from tests.crash.simulated_files import SimulatedFiles, Sync

SOURCE = Path(emberq.__file__).parent
STATES_PER_RUN = 15
NO_PLACE = ""
SINGLE_CASES = (
    "tests/crash/test_deletion.py",
    "tests/storage/journal/test_cursor_log.py",
    "tests/storage/journal/test_recovery_power_cut.py",
    "tests/storage/journal/test_recovery_read_only.py",
    "tests/storage/test_disk_queue_files_position.py",
)
"""Tests that use simulated files."""


class Syncs:
    """The places that sync, and the wrong one among them."""

    def __init__(self, wrong_place: str = NO_PLACE, wrongly: Sync = Sync.NEVER) -> None:
        self.places: set[str] = set()
        self._wrong_place = wrong_place
        self._wrongly = wrongly

    def when(self) -> Sync:
        """Asked by the file system: when the sync that is under way takes place."""
        place = _place()
        self.places.add(place)
        return self._wrongly if place == self._wrong_place else Sync.NOW


def _place() -> str:
    """The line of the storage layer that syncs; for what base/file does, also the line that asked for it."""
    lines: list[str] = []
    frame = sys._getframe(4)
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
        run = recorded(seed, fs=SimulatedFiles(when_synced=syncs.when))
        for _ in try_states(run, 5):
            pass
    return sorted(syncs.places)


def missed(place: str, wrongly: Sync, seeds: range) -> str | None:
    """The promise that is broken when this place syncs wrongly; None: none is in these runs."""
    syncs = Syncs(place, wrongly)
    for seed in seeds:
        run = recorded(seed, fs=SimulatedFiles(when_synced=syncs.when))
        for found in try_states(run, STATES_PER_RUN):
            if found is not None:
                return str(found).split("\n", maxsplit=1)[0]
    return None


def failing_test(place: str, wrongly: Sync) -> str | None:
    """A test of a single case that fails when this place syncs wrongly; None: they all pass."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_run_tests, args=(place, wrongly, sender))
    child.start()
    sender.close()
    try:
        found: str | None = receiver.recv()
    finally:
        child.join()
    return found


def _run_tests(place: str, wrongly: Sync, sender: Connection) -> None:
    syncs = Syncs(place, wrongly)
    logging.disable(logging.NOTSET)
    defaults = SimulatedFiles.__init__.__kwdefaults__
    assert defaults is not None
    defaults["when_synced"] = syncs.when
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        first_failure = FirstFailure()
        pytest.main(["-x", "-q", "-p", "no:cacheprovider", *SINGLE_CASES], plugins=[first_failure])
    sender.send(first_failure.test)


class FirstFailure:
    """A plugin of pytest that keeps the name of the first test that fails."""

    def __init__(self) -> None:
        self.test: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.test is None:
            self.test = report.nodeid


def main() -> int:
    """0 if every sync is missed when it is left out."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.deleted_syncs", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="how many runs may be needed to miss a sync")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only places whose name holds this text")
    parser.add_argument("--swapped", action="store_true", help="sync behind the next one instead of not at all")
    arguments = parser.parse_args()
    wrongly = Sync.BEHIND_THE_NEXT if arguments.swapped else Sync.NEVER
    logging.disable(logging.CRITICAL)
    failing = failing_test(NO_PLACE, wrongly)
    if failing is not None:
        raise SystemExit(f"{failing} fails before anything is left out")
    not_missed = 0
    for place in places(range(arguments.seed, arguments.seed + 30)):
        if arguments.only not in place:
            continue
        seeds = range(arguments.seed, arguments.seed + arguments.runs)
        broken = failing_test(place, wrongly) or missed(place, wrongly, seeds)
        not_missed += broken is None
        print(f"{place}\n    {broken or 'NOT MISSED'}", flush=True)
    print(f"{not_missed} syncs were not missed")
    return 1 if not_missed else 0


if __name__ == "__main__":
    sys.exit(main())
