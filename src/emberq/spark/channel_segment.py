"""The files of a spool.

    000000000012-2500.arrow                    segment 12: 2500 messages
    000000000000-000000000011-31000.keys       what is left of the segments 0 to 11: the keys of their 31,000 messages

Both are Arrow files of one column of binaries: the frames of messages, or their keys (`channel_frames`). Each record
batch has messages of one topic and nsqd, and says in its metadata of which, and from when to when they were published:

    {"topic": "clicks", "nsqd": "10.0.0.7:4150", "first_ns": "1763190000000000000", "last_ns": "1763190000250000000"}

A file is written under a name that ends in `.new`, fsynced, renamed, and its folder fsynced. It never changes then.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from emberq.base.file import sync_folder
from emberq.spark.channel_frames import keys, times_ns
from emberq.spark.journal_offset import Place

SEGMENT_SUFFIX = ".arrow"
KEYS_SUFFIX = ".keys"
UNFINISHED_SUFFIX = ".new"
SEGMENT_MODE = 0o660
"""Messages may be confidential, so no stranger reads them. Executors may run as another user of the driver's group."""

_FRAMES = pa.schema([pa.field("frame", pa.binary(), nullable=False)])
_KEYS = pa.schema([pa.field("key", pa.binary(), nullable=False)])


class Part(NamedTuple):
    """The origin of one record batch, and the publish times of its oldest and newest message."""

    origin: Place
    first_ns: int
    last_ns: int

    @classmethod
    def of(cls, origin: Place, frames: pa.BinaryArray) -> Self:
        """The part that these frames make; there must be at least one."""
        ends = pc.min_max(times_ns(frames))
        return cls(origin, ends["min"].as_py(), ends["max"].as_py())

    def may_hold(self, origin: Place, first_ns: int, last_ns: int) -> bool:
        """Whether the record batch may hold messages of `origin` published in that time."""
        return self.origin == origin and self.first_ns <= last_ns and first_ns <= self.last_ns

    def metadata(self) -> dict[str, str]:
        """The metadata of the record batch."""
        topic, nsqd = self.origin.topic, self.origin.nsqd
        return {"topic": topic, "nsqd": nsqd, "first_ns": str(self.first_ns), "last_ns": str(self.last_ns)}

    @classmethod
    def from_metadata(cls, metadata: pa.KeyValueMetadata) -> Self:
        """The part that this metadata describes."""
        text = {key.decode(): value.decode() for key, value in dict(metadata).items()}
        return cls(Place(text["nsqd"], text["topic"]), int(text["first_ns"]), int(text["last_ns"]))


class Messages(NamedTuple):
    """Messages of one topic and nsqd, in their frames: at least one."""

    origin: Place
    frames: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A segment or a file of keys. Its messages were stored in the segments from number `first` to `last`:
    of a segment, its own."""

    first: int
    last: int
    row_count: int
    path: Path
    size_bytes: int
    stored_at_s: float
    """When its newest messages were stored."""
    parts: tuple[Part, ...]

    def known_keys(self, wanted: pa.BinaryArray, *, origin: Place, first_ns: int, last_ns: int) -> Collection[bytes]:
        """The `wanted` keys whose messages are in this file."""
        found: list[bytes] = []
        for part, column in _columns(self.path):
            if part.may_hold(origin, first_ns, last_ns):
                here = keys(column) if self.path.suffix == SEGMENT_SUFFIX else column
                found += here.filter(pc.is_in(here, value_set=wanted)).to_pylist()
        return found


def write_segment(folder: Path, number: int, batches: Sequence[Messages], *, stored_at_s: float) -> StoredFile:
    """Write a segment. It is on the disk when this returns."""
    row_count = sum(len(batch.frames) for batch in batches)
    path = folder / f"{number:012d}-{row_count}{SEGMENT_SUFFIX}"
    parts = [(Part.of(batch.origin, batch.frames), batch.frames) for batch in batches]
    return _write(path, _FRAMES, parts, first=number, last=number, row_count=row_count, stored_at_s=stored_at_s)


def write_keys(folder: Path, segments: Sequence[StoredFile]) -> StoredFile:
    """Write one file with the keys of all messages of some neighbouring segments."""
    found: dict[Place, list[tuple[Part, pa.BinaryArray]]] = {}
    for segment in segments:
        for part, frames in _columns(segment.path):
            found.setdefault(part.origin, []).append((part, keys(frames)))
    parts = [
        (
            Part(origin, min(part.first_ns for part, _ in stored), max(part.last_ns for part, _ in stored)),
            pa.concat_arrays([column for _, column in stored]),
        )
        for origin, stored in found.items()
    ]
    return _write_keys(folder, segments, parts)


def merge_keys(folder: Path, files: Sequence[StoredFile]) -> StoredFile:
    """Write one file with the keys of several neighbouring files."""
    return _write_keys(folder, files, (stored for file in files for stored in _columns(file.path)))


def read_segment(path: Path) -> Iterator[Messages]:
    """The messages of a segment, as views of the mapped file."""
    return (Messages(part.origin, frames) for part, frames in _columns(path))


def files_in(folder: Path, suffix: str) -> list[StoredFile]:
    """The segments, or the files of keys, in order."""
    return [_found(path) for path in sorted(folder.glob(f"*{suffix}"))]


def _write_keys(folder: Path, files: Sequence[StoredFile], parts: Iterable[tuple[Part, pa.BinaryArray]]) -> StoredFile:
    first, last, row_count = files[0].first, files[-1].last, sum(file.row_count for file in files)
    path = folder / f"{first:012d}-{last:012d}-{row_count}{KEYS_SUFFIX}"
    stored_at_s = files[-1].stored_at_s
    return _write(path, _KEYS, parts, first=first, last=last, row_count=row_count, stored_at_s=stored_at_s)


def _write(
    path: Path,
    schema: pa.Schema,
    parts: Iterable[tuple[Part, pa.BinaryArray]],
    *,
    first: int,
    last: int,
    row_count: int,
    stored_at_s: float,
) -> StoredFile:
    being_written = path.with_suffix(UNFINISHED_SUFFIX)
    written: list[Part] = []
    with open(being_written, "wb", opener=partial(os.open, mode=SEGMENT_MODE)) as file:
        with pa.ipc.new_file(file, schema) as writer:
            for part, column in parts:
                writer.write_batch(pa.record_batch([column], schema=schema), custom_metadata=part.metadata())
                written.append(part)
        file.flush()
        os.utime(file.fileno(), (stored_at_s, stored_at_s))
        os.fsync(file.fileno())
        size_bytes = file.tell()
    being_written.replace(path)
    sync_folder(path.parent)
    return StoredFile(first, last, row_count, path, size_bytes, stored_at_s, tuple(written))


def _columns(path: Path) -> Iterator[tuple[Part, pa.BinaryArray]]:
    """The record batches of a file, as views of the mapped file."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            batch, metadata = reader.get_batch_with_custom_metadata(index)
            yield Part.from_metadata(metadata), batch.column(0)


def _found(path: Path) -> StoredFile:
    *numbers, row_count = (int(text) for text in path.stem.split("-"))
    parts = tuple(part for part, _ in _columns(path))
    status = path.stat()
    return StoredFile(numbers[0], numbers[-1], row_count, path, status.st_size, status.st_mtime, parts)
