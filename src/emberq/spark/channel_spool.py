"""The spool of a channel: messages on disk between nsqd, which forgets them once finished, and Spark, which may read a
batch again.

    SPOOL/lock            held by the one receiver that may write
    SPOOL/spool.json      {"spool": uuid}: which spool it is
    SPOOL/*.arrow         segments: messages that were stored together and that Spark may still read
    SPOOL/*.keys          the keys of segments that Spark has committed (`channel_segment`)

An offset of Spark is the number of the next segment. A segment never changes, so the same offsets always give the same
rows. The messages of a segment are finished when it is on the disk, and not before.

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
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from emberq.base.file import FILE_MODE, FOLDER_MODE, replace_file, sync_folder
from emberq.spark.channel_frames import Arrived, attempts, keys, times_ns
from emberq.spark.channel_segment import (
    KEYS_SUFFIX,
    SEGMENT_SUFFIX,
    UNFINISHED_SUFFIX,
    Messages,
    StoredFile,
    files_in,
    merge_keys,
    write_keys,
    write_segment,
)
from emberq.spark.error import OptionError
from emberq.spark.journal_offset import Place

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
        self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self._lock_file = _locked(self._folder / "lock")
        self.uuid = _identity(self._folder)
        for unfinished in self._folder.glob(f"*{UNFINISHED_SUFFIX}"):
            unfinished.unlink()
        self._keys = self._merged(files_in(self._folder, KEYS_SUFFIX))
        self.segments = tuple(self._not_yet_keys(files_in(self._folder, SEGMENT_SUFFIX)))
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
        if self.segments:
            return self.segments[-1].last + 1
        return self._keys[-1].last + 1 if self._keys else 0

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
        segment = write_segment(self._folder, self.next_number, batches, stored_at_s=self._wall_s())
        with self._files:
            self.segments = (*self.segments, segment)

    def put_in_doubt(self) -> None:
        """Call when a connection is lost or made: what is stored, or just being stored, may be delivered again."""
        with self._files:
            self._in_doubt_before = self.next_number + 1

    def newest_ns(self, origin: Place) -> int:
        """The latest publish time among stored messages and kept keys of this origin; -1 if there are none."""
        with self._files:
            return max(
                (part.last_ns for file in self._all_files() for part in file.parts if part.origin == origin), default=-1
            )

    def known_keys(self, wanted: pa.BinaryArray, *, origin: Place, first_ns: int, last_ns: int) -> Collection[bytes]:
        """The `wanted` keys whose messages are stored already. Their messages were published in the given time."""
        found: set[bytes] = set()
        with self._files:
            for file in self._all_files():
                if any(part.may_hold(origin, first_ns, last_ns) for part in file.parts):
                    found.update(file.known_keys(wanted, origin=origin, first_ns=first_ns, last_ns=last_ns))
        return found

    # For Spark.

    def prune(self, *, before: int) -> None:
        """Replace the segments below `before`, which Spark has committed, by their keys; remove keys not needed."""
        with self._files:
            committed = [segment for segment in self.segments if segment.first < before]
            if committed:
                self._keys.append(write_keys(self._folder, committed))
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

    # Opening.

    def _merged(self, files: list[StoredFile]) -> list[StoredFile]:
        """The key files of earlier runs merged into one; a run leaves one for each micro-batch."""
        if len(files) < 2:
            return files
        merged = merge_keys(self._folder, files)
        _remove(file for file in files if file.path != merged.path)
        return [merged]

    def _not_yet_keys(self, segments: list[StoredFile]) -> list[StoredFile]:
        """The segments whose keys are not stored yet. The others were left by a crash, and are removed here."""
        pruned_before = self._keys[-1].last + 1 if self._keys else 0
        _remove(segment for segment in segments if segment.first < pruned_before)
        return [segment for segment in segments if segment.first >= pruned_before]


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


def _remove(files: Iterable[StoredFile]) -> None:
    for file in files:
        file.path.unlink()


# Leaving out messages that are stored already.


def without_stored(arrived: Sequence[Arrived], spool: Spool) -> list[Messages]:
    """The messages that are not in the spool yet, each once. The module's docstring says which ones can be."""
    if not any(_has_suspects(each) for each in arrived):
        return [Messages(each.origin, each.frames) for each in arrived]
    suspicions = [_may_be_stored(each) for each in arrived]
    taken: defaultdict[Place, set[bytes]] = defaultdict(set)
    for each, suspicion in zip(arrived, suspicions, strict=True):
        taken[each.origin].update(keys(each.frames.filter(pc.invert(suspicion))).to_pylist())
    fresh: list[Messages] = []
    for each, suspicion in zip(arrived, suspicions, strict=True):
        is_fresh = _are_fresh(each, suspicion, spool, taken[each.origin])
        frames = each.frames.filter(pa.array(is_fresh, pa.bool_()))
        if len(frames):
            fresh.append(Messages(each.origin, frames))
    return fresh


def _has_suspects(arrived: Arrived) -> bool:
    """Whether any of the messages has to be looked up. Nearly always none has, so this check is cheap."""
    first_ns = pc.min_max(times_ns(arrived.frames))["min"].as_py()
    tries = pc.min_max(attempts(arrived.frames))
    return bool(first_ns <= arrived.in_doubt_until_ns or tries["min"].as_py() != 1 or tries["max"].as_py() != 1)


def _may_be_stored(arrived: Arrived) -> pa.BooleanArray:
    """Which of the messages have to be looked up."""
    is_in_doubt = pc.less_equal(times_ns(arrived.frames), arrived.in_doubt_until_ns)
    return pc.or_(is_in_doubt, pc.not_equal(attempts(arrived.frames), 1))


def _are_fresh(arrived: Arrived, suspicion: pa.BooleanArray, spool: Spool, taken: set[bytes]) -> list[bool]:
    """Whether to store each message. `taken` has the keys of messages that will be stored; this adds its own."""
    suspects = arrived.frames.filter(suspicion)
    if not len(suspects):
        return [True] * len(arrived.frames)
    times = pc.min_max(times_ns(suspects))
    known = spool.known_keys(
        keys(suspects), origin=arrived.origin, first_ns=times["min"].as_py(), last_ns=times["max"].as_py()
    )
    fresh: list[bool] = []
    for key, is_suspect in zip(keys(arrived.frames).to_pylist(), suspicion.to_pylist(), strict=True):
        is_stored = is_suspect and (key in known or key in taken)
        fresh.append(not is_stored)
        taken.add(key)
    return fresh
