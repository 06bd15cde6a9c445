"""The journals in a data folder, seen from outside: which there are, what they hold, how far their channels have come.

Only reads, and does not need nsqd to be stopped; of a journal that is being written to it shows a moment that has
passed. For a look at every byte see `inspection`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from emberq.storage.errors import StorageError, os_error_text
from emberq.storage.journal import identity as identity_file
from emberq.storage.journal.batch import seed_of
from emberq.storage.journal.cursor_file import load_cursor
from emberq.storage.journal.error import DamagedCursorError, JournalOpenError
from emberq.storage.journal.folder import FOLDER_SUFFIX, cursor_paths
from emberq.storage.journal.identity import Identity
from emberq.storage.journal.index import Place
from emberq.storage.journal.scan import END_OF_OFFSETS, Scan
from emberq.storage.journal.segment import Segment, base_offsets, log_path
from emberq.storage.journal.summary import load_summary

MAX_DEPTH = 3
"""How deep below a folder journals are looked for: `emberq up` keeps them in <folder>/nsqd-<number>/<topic>.journal."""

_HEADERS_BYTES = 4096
"""Read at a time when only headers matter: large batches are passed over, small ones come several at once."""
_ANY_INTERVAL = 1
"""Index entries are not added here."""


class ChannelPlace(NamedTuple):
    """How far a channel has come."""

    channel: str
    low_water: int
    """Everything before it is done with."""
    lag: int
    """How many messages are not."""


class Survey(NamedTuple):
    """One journal."""

    path: Path
    identity: Identity
    first_offset: int
    next_offset: int
    size_bytes: int
    segment_count: int
    channels: list[ChannelPlace]
    """By name. A cursor that is damaged is not among them; its channel starts at the oldest message."""

    @property
    def topic(self) -> str:
        """The topic whose journal it is."""
        return (self.path.name or self.path.resolve().name).removesuffix(FOLDER_SUFFIX)


def is_journal(directory: Path) -> bool:
    """Whether this folder is a journal."""
    return (directory / identity_file.FILE_NAME).is_file() or (directory.is_dir() and bool(base_offsets(directory)))


def find_journals(path: Path) -> list[Path]:
    """The folders of all journals at or below `path`, sorted. JournalOpenError if it cannot be read."""
    try:
        return sorted(_found_below(path, depth=MAX_DEPTH))
    except OSError as error:
        raise JournalOpenError(os_error_text("read", path, error)) from error


def _found_below(path: Path, *, depth: int) -> Iterator[Path]:
    if path.name.endswith(FOLDER_SUFFIX) or is_journal(path):
        yield path
    elif depth:
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _found_below(child, depth=depth - 1)


def survey(directory: Path) -> Survey:
    """What is in the journal's folder. JournalOpenError if it is no journal, or cannot be read."""
    try:
        return _survey(directory)
    except OSError as error:
        raise JournalOpenError(os_error_text("read", directory, error)) from error


def _survey(directory: Path) -> Survey:
    identity = identity_file.load(directory)
    bases = base_offsets(directory)
    if identity is None or not bases:
        raise JournalOpenError(f"{directory} is no journal")
    sizes = [log_path(directory, base).stat().st_size for base in bases]
    last = Segment(log_path(directory, bases[-1]), base_offset=bases[-1], size_bytes=sizes[-1], read_only=True)
    next_offset = _end_of(last, identity)
    return Survey(
        path=directory,
        identity=identity,
        first_offset=bases[0],
        next_offset=next_offset,
        size_bytes=sum(sizes),
        segment_count=len(bases),
        channels=_places(directory, identity, next_offset=next_offset),
    )


def _end_of(segment: Segment, identity: Identity) -> int:
    """The offset behind the last whole batch, by headers, from where the .idx file leaves off."""
    known = load_summary(segment, journal=identity.uuid, interval_bytes=_ANY_INTERVAL)
    start = segment.start if known is None else Place(known.next_offset, known.covered_bytes)
    try:
        scan = Scan(
            segment.descriptor(),
            seed=seed_of(identity.uuid),
            start=start,
            end_position=segment.size_bytes,
            block_bytes=_HEADERS_BYTES,
        )
        scan.pass_before(END_OF_OFFSETS)
        while scan.next() is not None:  # damage, or a tail that is torn or being written
            scan.pass_before(END_OF_OFFSETS)
    finally:
        segment.close()
    return scan.offset


def _places(directory: Path, identity: Identity, *, next_offset: int) -> list[ChannelPlace]:
    places = []
    for channel, path in sorted(cursor_paths(directory).items()):
        try:
            cursor = load_cursor(path, journal=identity.uuid)
        except DamagedCursorError:
            continue
        except StorageError as error:
            raise JournalOpenError(str(error)) from error
        if cursor is not None:
            places.append(ChannelPlace(channel, cursor.low_water, cursor.count_unacknowledged(next_offset)))
    return places
