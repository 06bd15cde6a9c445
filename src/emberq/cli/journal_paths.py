"""Which journals a path on the command line means."""

from __future__ import annotations

import argparse
from pathlib import Path

from emberq.cli.terminal import CommandError
from emberq.storage.journal.error import JournalOpenError
from emberq.storage.journal.survey import find_journals

PATHS_HELP = "a data folder, or a journal's own folder (default: whatever is in or below this one)"
HINT = "Give the data folder of an nsqd that journals its topics (nsqd --journal, emberq up), or a folder in it."


def add_paths_argument(parser: argparse.ArgumentParser) -> None:
    """Read it with `journals_at`."""
    parser.add_argument("paths", type=Path, nargs="*", metavar="PATH", help=PATHS_HELP)


def journals_at(paths: list[Path]) -> list[Path]:
    """The folders of all journals at these paths; CommandError if there is none."""
    asked = paths or [Path()]
    found = [folder for path in asked for folder in _found(path)]
    if not found:
        raise CommandError(f"no journal in {', '.join(str(path) for path in asked)}", hint=HINT)
    return found


def journal_at(path: Path) -> Path:
    """The folder of the one journal that is there; CommandError if there are none or several."""
    found = journals_at([path])
    if len(found) > 1:
        names = ", ".join(str(folder) for folder in found[:10])
        raise CommandError(f"there are {len(found)} journals in {path}", hint=f"Choose one: {names}")
    return found[0]


def _found(path: Path) -> list[Path]:
    try:
        return find_journals(path)
    except JournalOpenError as failure:
        raise CommandError(str(failure), hint=HINT) from failure
