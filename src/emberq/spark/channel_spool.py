"""The spool of a channel: messages on disk between nsqd, which forgets them once finished, and Spark, which may read a
batch again.

    SPOOL/lock                                     held by the one receiver that may write
    SPOOL/spool.json                               {"spool": uuid}: which spool it is
    SPOOL/000000000012-2500.arrow                  segment 12: 2500 messages that Spark may still read
    SPOOL/000000000000-000000000011-31000.keys     what is left of the segments 0 to 11, which Spark has committed: the
                                                   keys of their 31,000 messages

An offset of Spark is the number of the next segment. A segment never changes, so the same offsets always give the same
rows. The messages of a segment are finished when it is on the disk, and not before.

**Files.** Segments and keys are Arrow files of one column of binaries: the frames of messages, or their keys
(`channel_frames`). Each record batch has messages of one topic and nsqd, and says in its metadata of which, and from
when to when they were published:

    {"topic": "clicks", "nsqd": "10.0.0.7:4150", "first_ns": "1763190000000000000", "last_ns": "1763190000250000000"}

A file is written under a name that ends in `.new`, fsynced, renamed, and its folder fsynced. It never changes then.

**Messages delivered again.** nsqd delivers a message that is already stored

- when it has not seen the FIN: the receiver died, the connection broke, or the FIN came too late. The message then has
  more than one attempt, if nsqd is still the same process.
- when nsqd crashed and no longer knows that the message was finished. The message may have one attempt again. This
  happens to messages finished in the last seconds before the crash: nsqd saves a channel's state every second or two.

Within one connection only messages with more than one attempt can be such. So when a connection is made, everything
stored before is **in doubt**: a message of the same origin that was published no later than the newest stored one may
be stored already. Such messages, and all with more than one attempt, are looked up by their keys (`without_stored`).
The others, nearly all, are not.

**Keys kept** for that: 24 bytes for each message of the committed segments.

- Keys not in doubt are removed when they are `window_s` older than the newest segment: nsqd has read their FINs long
  ago, or the connection would have been given up as dead. Age is the time between segments and not the wall clock's: a
  receiver may have been down for days.
- Keys in doubt stay, because a message that was requeued may wait behind all others in the channel. Only when there are
  more than `max_keys` in all are the oldest removed. A crash leaves as many as were stored in the `window_s` before it.
- The newest file always stays, so no segment number is used twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from emberq.base.file import FILE_MODE, FOLDER_MODE, replace_file, sync_folder
from emberq.spark.channel_frames import Arrived, Messages, attempts, keys, times_ns
from emberq.spark.error import OptionError
from emberq.spark.journal_offset import Place
from emberq.spark.schema import constant, integers

# Files.

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
    def of(cls, messages: Messages) -> Self:
        ends = pc.min_max(times_ns(messages.frames))
        return cls(messages.origin, ends["min"].as_py(), ends["max"].as_py())

    def may_share_messages(self, other: Part) -> bool:
        return self.origin == other.origin and self.first_ns <= other.last_ns and other.first_ns <= self.last_ns

    def metadata(self) -> dict[str, str]:
        """The metadata of the record batch."""
        nsqd, topic = self.origin
        return {"topic": topic, "nsqd": nsqd, "first_ns": str(self.first_ns), "last_ns": str(self.last_ns)}

    @classmethod
    def from_metadata(cls, metadata: pa.KeyValueMetadata) -> Self:
        """The part that this metadata describes."""
        text = {key.decode(): value.decode() for key, value in dict(metadata).items()}
        return cls(Place(text["nsqd"], text["topic"]), int(text["first_ns"]), int(text["last_ns"]))


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

    @classmethod
    def at(cls, path: Path, parts: Iterable[Part]) -> Self:
        """The file there, which has these parts."""
        *numbers, row_count = (int(text) for text in path.stem.split("-"))
        status = path.stat()
        return cls(numbers[0], numbers[-1], row_count, path, status.st_size, status.st_mtime, tuple(parts))

    def key_columns(self) -> Iterator[tuple[Part, pa.BinaryArray]]:
        """The keys of its messages, part by part."""
        is_segment = self.path.suffix == SEGMENT_SUFFIX
        return ((part, keys(column) if is_segment else column) for part, column in _columns(self.path))


def read_segment(path: Path) -> Iterator[Messages]:
    """The messages of a segment, as views of the mapped file."""
    return (Messages(part.origin, frames) for part, frames in _columns(path))


def _write_keys(folder: Path, files: Sequence[StoredFile], parts: Iterable[tuple[Part, pa.BinaryArray]]) -> StoredFile:
    """Write these keys as those of all messages of some neighbouring files."""
    row_count = sum(file.row_count for file in files)
    path = folder / f"{files[0].first:012d}-{files[-1].last:012d}-{row_count}{KEYS_SUFFIX}"
    return _write(path, _KEYS, parts, stored_at_s=files[-1].stored_at_s)


def _by_origin(parts: Iterable[tuple[Part, pa.BinaryArray]]) -> Iterator[tuple[Part, pa.BinaryArray]]:
    """One part for all of an origin: of the segments of a micro-batch, which may be many and small."""
    found: dict[Place, list[tuple[Part, pa.BinaryArray]]] = {}
    for part, column in parts:
        found.setdefault(part.origin, []).append((part, column))
    for origin, stored in found.items():
        whole = Part(origin, min(part.first_ns for part, _ in stored), max(part.last_ns for part, _ in stored))
        yield whole, pa.concat_arrays([column for _, column in stored])


def _write(
    path: Path, schema: pa.Schema, parts: Iterable[tuple[Part, pa.BinaryArray]], *, stored_at_s: float
) -> StoredFile:
    """Write a file. It is on the disk when this returns."""
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
    being_written.replace(path)
    sync_folder(path.parent)
    return StoredFile.at(path, written)


def _columns(path: Path) -> Iterator[tuple[Part, pa.BinaryArray]]:
    """The record batches of a file, as views of the mapped file."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for index in range(reader.num_record_batches):
            batch, metadata = reader.get_batch_with_custom_metadata(index)
            yield Part.from_metadata(metadata), batch.column(0)


def _files_in(folder: Path, suffix: str) -> list[StoredFile]:
    """The segments, or the files of keys, in order."""
    return [StoredFile.at(path, (part for part, _ in _columns(path))) for path in sorted(folder.glob(f"*{suffix}"))]


def _remove(files: Iterable[StoredFile]) -> None:
    for file in files:
        file.path.unlink()


# The spool.

DEFAULT_WINDOW_S = 30.0
"""Three times as long as it takes to notice that an nsqd is dead (`channel_receiver`)."""
DEFAULT_MAX_KEYS = 10_000_000
LOCK_TIMEOUT_S = 10.0
"""A receiver that Spark has told to end may need a moment to exit."""
LOCK_PAUSE_S = 0.1

_IDENTITY = "spool.json"


class Spool:
    """The spool of one query. Owned by one receiver, from `open` to `close`.

    The receiver stores in one thread and Spark commits in another. What both change is changed under a lock.
    """

    def __init__(
        self,
        folder: Path,
        *,
        window_s: float = DEFAULT_WINDOW_S,
        max_keys: int = DEFAULT_MAX_KEYS,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._window_s = window_s
        self._max_keys = max_keys
        self._wall_s = wall_s
        self._lock_file: int | None = None
        self._files = threading.Lock()
        """Held while files are read, added or removed."""
        self._keys: list[StoredFile] = []
        """The key files of the segments before the first, in order."""
        self._in_doubt_before = 0
        """Segments below this number were stored before the newest connection was made."""
        self.uuid = ""
        self.segments: tuple[StoredFile, ...] = ()
        """All segments, in order. Replaced as a whole, so it can be read without the lock."""

    def open(self) -> None:
        """Open the spool, or create it. OptionError if another receiver has it open."""
        folder = self._folder
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._lock_file = _locked(folder / "lock")
        self.uuid = _identity(folder)
        for unfinished in folder.glob(f"*{UNFINISHED_SUFFIX}"):
            unfinished.unlink()
        self._keys = _files_in(folder, KEYS_SUFFIX)
        if len(self._keys) > 1:  # a run leaves one for each micro-batch
            merged = _write_keys(folder, self._keys, (each for file in self._keys for each in file.key_columns()))
            _remove(file for file in self._keys if file.path != merged.path)
            self._keys = [merged]
        segments, first = _files_in(folder, SEGMENT_SUFFIX), self.next_number
        _remove(segment for segment in segments if segment.first < first)  # a crash left them behind their keys
        self.segments = tuple(segment for segment in segments if segment.first >= first)
        self._in_doubt_before = self.next_number

    def close(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        """The number of the next segment."""
        files = self.segments or self._keys
        return files[-1].last + 1 if files else 0

    @property
    def first_number(self) -> int:
        """The number of the oldest segment; `next_number` if there is none."""
        segments = self.segments
        return segments[0].first if segments else self.next_number

    @property
    def key_count(self) -> int:
        """How many keys of committed segments are kept."""
        return sum(file.row_count for file in self._keys)

    def bytes_from(self, number: int) -> int:
        """The size of the segments from this number on."""
        return sum(segment.size_bytes for segment in self.segments if segment.first >= number)

    def row_count_from(self, number: int) -> int:
        """How many messages the segments from this number on hold."""
        return sum(segment.row_count for segment in self.segments if segment.first >= number)

    # For the receiver.

    def append(self, batches: Sequence[Messages]) -> None:
        """Store messages as the next segment. It is on the disk when this returns."""
        row_count = sum(len(batch.frames) for batch in batches)
        path = self._folder / f"{self.next_number:012d}-{row_count}{SEGMENT_SUFFIX}"
        parts = [(Part.of(batch), batch.frames) for batch in batches]
        segment = _write(path, _FRAMES, parts, stored_at_s=self._wall_s())
        with self._files:
            self.segments = (*self.segments, segment)

    def put_in_doubt(self) -> None:
        """Call when a connection is lost or made: what is stored, or just being stored, may be delivered again."""
        with self._files:
            self._in_doubt_before = self.next_number + 1

    def newest_ns(self, origin: Place) -> int:
        """The latest publish time among stored messages and kept keys of this origin; -1 if there are none."""
        with self._files:
            parts = [part for file in self._all_files() for part in file.parts]
        return max((part.last_ns for part in parts if part.origin == origin), default=-1)

    def known_keys(self, messages: Messages) -> list[bytes]:
        """The keys of those messages that are stored already."""
        wanted, part = keys(messages.frames), Part.of(messages)
        found: list[bytes] = []
        with self._files:
            for file in self._all_files():
                if any(map(part.may_share_messages, file.parts)):
                    for stored, column in file.key_columns():
                        if part.may_share_messages(stored):
                            found += column.filter(pc.is_in(column, value_set=wanted)).to_pylist()
        return found

    # For Spark.

    def prune(self, *, before: int) -> None:
        """Replace the segments below `before`, which Spark has committed, by their keys; remove keys not needed."""
        with self._files:
            committed = [segment for segment in self.segments if segment.first < before]
            if committed:
                found = _by_origin(each for segment in committed for each in segment.key_columns())
                self._keys.append(_write_keys(self._folder, committed, found))
                self.segments = self.segments[len(committed) :]
                _remove(committed)
            gone = self._needless_keys()
            self._keys = [file for file in self._keys if file not in gone]
            _remove(gone)

    def _needless_keys(self) -> list[StoredFile]:
        files = self._all_files()
        if not files:
            return []
        kept_since_s = files[-1].stored_at_s - self._window_s
        surplus = self.key_count - self._max_keys
        needless = []
        for file in self._keys:
            is_in_doubt = file.first < self._in_doubt_before
            if file is not files[-1] and (surplus > 0 or (not is_in_doubt and file.stored_at_s < kept_since_s)):
                needless.append(file)
                surplus -= file.row_count
        return needless

    def _all_files(self) -> list[StoredFile]:
        return [*self._keys, *self.segments]


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(descriptor)
                raise OptionError(
                    f'option "spool": another query receives into {path.parent}; give each query a folder of its own'
                ) from None
            time.sleep(LOCK_PAUSE_S)
        else:
            return descriptor


def _identity(folder: Path) -> str:
    """The uuid of the spool, which is made if there is none yet."""
    path = folder / _IDENTITY
    if path.exists():
        return str(json.loads(path.read_text())["spool"])
    uuid = str(uuid4())
    replace_file(path, json.dumps({"spool": uuid}).encode())
    sync_folder(folder)
    return uuid


# Leaving out messages that are stored already.


_ONCE = constant(1, pa.uint16())
"""With the type of the column: else Arrow casts all of that first."""


def without_stored(arrived: Sequence[Arrived], spool: Spool) -> list[Messages]:
    """The messages that are not in the spool yet, each once. The module's docstring says which ones can be."""
    fresh: list[Messages] = []
    suspects: dict[Place, list[pa.BinaryArray]] = {}
    for each in arrived:
        may_be_stored = _may_be_stored(each)
        if may_be_stored.true_count:  # rarely
            suspects.setdefault(each.origin, []).append(each.frames.filter(may_be_stored))
            fresh.append(Messages(each.origin, each.frames.filter(pc.invert(may_be_stored))))
        else:
            fresh.append(Messages(each.origin, each.frames))
    for origin, arrays in suspects.items():
        messages = Messages(origin, pa.concat_arrays(arrays))
        taken = {key for each in fresh if each.origin == origin for key in keys(each.frames).to_pylist()}
        taken.update(spool.known_keys(messages))
        is_new: list[bool] = []
        for key in keys(messages.frames).to_pylist():
            is_new.append(key not in taken)
            taken.add(key)
        fresh.append(Messages(origin, messages.frames.filter(integers(is_new, pa.uint8()).cast(pa.bool_()))))
    return [each for each in fresh if len(each.frames)]


def _may_be_stored(arrived: Arrived) -> pa.BooleanArray:
    """Which of the messages have to be looked up."""
    is_in_doubt = pc.less_equal(times_ns(arrived.frames), constant(arrived.in_doubt_until_ns, pa.int64()))
    return pc.or_(is_in_doubt, pc.not_equal(attempts(arrived.frames), _ONCE))
