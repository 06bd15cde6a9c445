"""A disk without files, which fails when it is told to.

It outlives the broker that uses it, so a second broker finds what the first one left there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import accumulate

from emberq.storage.backend import Backend, NullQueue, Records
from emberq.storage.data_folder import PolicyEntry
from emberq.storage.disk_queue_files import Kind
from emberq.storage.error import DiskWriteError, SyncError
from emberq.wire.parameter import is_ephemeral

REFUSAL = "write /data/queue.dat: no space left on device"


def joined(records: list[bytes]) -> Records:
    """Records as a backend hands them over: with a `range` when all have one size."""
    sizes = {len(record) for record in records}
    if len(sizes) == 1:
        (size,) = sizes
        return Records(b"".join(records), range(size, size * len(records) + 1, size))
    return Records(b"".join(records), list(accumulate(map(len, records))))


def taken_apart(records: Records) -> list[bytes]:
    """The single records."""
    starts = [0, *records.ends][: len(records.ends)]
    return [records.blob[start:end] for start, end in zip(starts, records.ends, strict=True)]


class SimulatedQueue:
    """A `Backend` whose records are kept by the simulated disk."""

    def __init__(self, name: str, disk: SimulatedDisk) -> None:
        self._name = name
        self._disk = disk
        self._records = disk.files.setdefault(name, deque())

    @property
    def depth(self) -> int:
        return len(self._records)

    def open(self) -> None:
        """What there is was found when it was made."""

    def put(self, records: Records) -> None:
        new = taken_apart(records)
        room = self._disk.room.get(self._name, len(new))
        self._records.extend(new[:room])
        if self._name in self._disk.room:
            self._disk.room[self._name] = max(0, room - len(new))
        if room < len(new):
            raise DiskWriteError(REFUSAL, stored_count=room)

    def take(self, *, max_count: int, max_bytes: int) -> Records | None:
        records = self._next(max_count=max_count, max_bytes=max_bytes)
        for _ in records:
            self._records.popleft()
        return joined(records) if records else None

    def peek(self, *, max_count: int) -> Records | None:
        records = self._next(max_count=max_count, max_bytes=1 << 20)
        return joined(records) if records else None

    def _next(self, *, max_count: int, max_bytes: int) -> list[bytes]:
        if self._name in self._disk.unreadable:
            return []
        chosen: list[bytes] = []
        total_bytes = 0
        for record in self._records:
            total_bytes += len(record)
            if chosen and (len(chosen) == max_count or total_bytes > max_bytes):
                break
            chosen.append(record)
        return chosen

    def sync(self) -> None:
        """Everything is as safe as it will ever be."""

    def empty(self) -> None:
        self._records.clear()

    def close(self) -> None:
        if self._name in self._disk.unsyncable:
            raise SyncError(f"fsync {self._name}: input/output error")

    def delete(self) -> None:
        self._records.clear()
        self._disk.files.pop(self._name, None)


class SimulatedDisk:
    """A `Store`. The test decides which of its queues fail, and how."""

    def __init__(self) -> None:
        self.files: dict[str, deque[bytes]] = {}
        """The records of each queue, by its name."""
        self.times: dict[str, dict[bytes, int]] = {}
        """The saved due times and delays, by queue and message id."""
        self.policies: list[PolicyEntry] = []
        """The saved policies of channels."""
        self.room: dict[str, int] = {}
        """How many more records a queue can take; as many as you like if it is not named here."""
        self.unreadable: set[str] = set()
        """Queues that cannot be read for now."""
        self.unsyncable: set[str] = set()
        """Queues that cannot be brought safely to the disk when they are closed."""

    def backend(self, name: str) -> Backend:
        return NullQueue() if is_ephemeral(name) else SimulatedQueue(name, self)

    def waiting_bytes(self, name: str) -> int:
        return sum(len(record) - 30 for record in self.files.get(name, ()))

    def left_queues(self, topic: str) -> list[str]:
        return [name for name in self.files if name == topic or name.startswith(f"{topic}:")]

    def load_times(self, name: str, kind: Kind) -> dict[bytes, int]:
        return dict(self.times.get(f"{name} {kind}", {}))

    def save_times(self, name: str, kind: Kind, times: Mapping[bytes, int]) -> None:
        self.times[f"{name} {kind}"] = dict(times)

    def remove_leftovers(self) -> None:
        """Nothing is ever half written here."""

    def load_policies(self) -> list[PolicyEntry]:
        return list(self.policies)

    def save_policies(self, entries: Iterable[PolicyEntry]) -> None:
        self.policies = list(entries)
