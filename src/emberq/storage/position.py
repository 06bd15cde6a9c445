"""A disk queue's meta file: how many records wait, where reading goes on and where writing goes on.

Exactly three lines of decimal numbers:

    <depth>\\n
    <number of the read file>,<position in it>\\n
    <number of the write file>,<position in it>\\n
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from emberq.storage.atomic import replace_file
from emberq.storage.errors import DamagedPositionError

_LAYOUT = re.compile(rb"(-?\d{1,19})\n(\d{1,19}),(\d{1,19})\n(\d{1,19}),(\d{1,19})\n")

_MAX_NUMBER = (1 << 62) - 1
"""Larger numbers come from a damaged file; the operating system would refuse them as file positions."""


class Position(NamedTuple):
    """Where a queue stands. The depth is the number of records between the two places."""

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0


def load(path: Path) -> Position | None:
    """Read the meta file at `path`; None if there is none, DamagedPositionError if it makes no sense."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    match = _LAYOUT.fullmatch(content)
    if match is None:
        raise DamagedPositionError(f"{path} does not have the three lines of a meta file")
    position = Position(*map(int, match.groups()))
    if max(position) > _MAX_NUMBER:
        raise DamagedPositionError(f"{path} holds a number that is too large")
    return position


def save(path: Path, position: Position) -> None:
    """Replace the meta file at `path`, fsynced; OSError if that fails."""
    replace_file(path, encode(position))


def encode(position: Position) -> bytes:
    """The bytes of the meta file."""
    depth, read_file, read_pos, write_file, write_pos = position
    return b"%d\n%d,%d\n%d,%d\n" % (depth, read_file, read_pos, write_file, write_pos)
