"""The disk queue against a list: any history, any crash, any damage.

A history is a list of operations on a queue with tiny files, so that every few records it rolls. The model of the
queue is the list of all payloads ever put and the number of those taken.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.storage.disk_queue import DiskQueue
from tests.storage.rig import MANY, Rig, batch, drain, payloads_of
from tests.support.unsynced_files import UnsyncedFiles

Operation = tuple[str, list[int]]
"""The name of a method of Player, and the sizes of the records to put or the number to take."""

sizes = st.one_of(st.just(8), st.integers(6, 60))
puts = st.tuples(st.just("put"), st.lists(sizes, min_size=1, max_size=12))
takes = st.tuples(st.just("take"), st.lists(st.integers(1, 12), min_size=1, max_size=1))
others = st.tuples(st.sampled_from(["peek", "sync", "tick", "reopen"]), st.just(list[int]()))
empties = st.tuples(st.just("empty"), st.just(list[int]()))
histories = st.lists(st.one_of(puts, puts, takes, takes, others), max_size=25)
histories_with_empty = st.lists(st.one_of(puts, puts, takes, takes, others, empties), max_size=25)
file_limits = st.sampled_from([20, 64, 150, 1000])
sync_limits = st.sampled_from([0, 1, 7, 2500, -1])


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own for each example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "data"


@dataclass
class Model:
    """What should be in the queue, and what must still be there after a power failure."""

    put: list[bytes] = field(default_factory=list)
    taken: int = 0
    synced_put: int = 0
    synced_taken: int = 0

    @property
    def waiting(self) -> list[bytes]:
        return self.put[self.taken :]


class Player:
    """Plays a history on a queue and on the model, and compares them after each step."""

    def __init__(self, rig: Rig, *, max_bytes_per_file: int, sync_every: int) -> None:
        self.rig = rig
        self.model = Model()
        self._max_bytes_per_file = max_bytes_per_file
        self._sync_every = sync_every
        self.queue = self.reopened(rig)

    def reopened(self, rig: Rig) -> DiskQueue:
        return rig.queue(max_bytes_per_file=self._max_bytes_per_file, sync_every=self._sync_every)

    def play(self, history: list[Operation]) -> None:
        for name, numbers in history:
            getattr(self, f"_{name}")(*numbers)
            assert self.queue.depth == len(self.model.waiting)

    def _put(self, *sizes: int) -> None:
        first = len(self.model.put)
        payloads = [b"%0*d" % (size, first + index) for index, size in enumerate(sizes)]
        self.queue.put(batch(*payloads))
        self.model.put += payloads

    def _take(self, count: int) -> None:
        taken = payloads_of(self.queue.take(max_count=count, max_bytes=MANY))
        assert len(taken) <= count
        assert bool(taken) == bool(self.model.waiting)
        assert taken == self.model.waiting[: len(taken)]
        self.model.taken += len(taken)

    def _peek(self) -> None:
        seen = payloads_of(self.queue.peek(max_count=5))
        assert bool(seen) == bool(self.model.waiting)
        assert seen == self.model.waiting[: len(seen)]

    def _sync(self) -> None:
        self.queue.sync()
        self._all_is_synced()

    def _tick(self) -> None:
        self.rig.advance(ms=2000)
        self._all_is_synced()

    def _reopen(self) -> None:
        self.queue.close()
        self.queue = self.reopened(self.rig)
        self._all_is_synced()

    def _empty(self) -> None:
        self.queue.empty()
        self.model.taken = len(self.model.put)
        self._all_is_synced()

    def _all_is_synced(self) -> None:
        self.model.synced_put = len(self.model.put)
        self.model.synced_taken = self.model.taken


@given(histories_with_empty, file_limits, sync_limits)
@settings(max_examples=80)
def test_any_history_gives_first_in_first_out(
    history: list[Operation], max_bytes_per_file: int, sync_every: int
) -> None:
    with folder() as data:
        data.mkdir()
        player = Player(Rig(data, fs=UnsyncedFiles()), max_bytes_per_file=max_bytes_per_file, sync_every=sync_every)
        player.play(history)
        assert drain(player.queue) == player.model.waiting
        player.queue.close()
        assert not list(data.glob("*.bad"))
        assert len(list(data.iterdir())) <= 2, "the meta file, and the file that is written to"
        assert player.rig.open_files() == 0


@given(histories, file_limits, sync_limits)
@settings(max_examples=80)
def test_a_killed_process_loses_nothing_and_repeats_only_what_was_taken_since_the_last_sync(
    history: list[Operation], max_bytes_per_file: int, sync_every: int
) -> None:
    with folder() as data:
        data.mkdir()
        player = Player(Rig(data, fs=UnsyncedFiles()), max_bytes_per_file=max_bytes_per_file, sync_every=sync_every)
        player.play(history)
        model = player.model
        copy = shutil.copytree(data, data.with_name("killed"))
        queue = player.reopened(Rig(copy, fs=UnsyncedFiles()))
        depth, found = queue.depth, drain(queue)
        queue.close()
        player.queue.close()
        assert len(found) == depth
        assert found == model.put[len(model.put) - len(found) :]
        assert model.synced_taken <= len(model.put) - len(found) <= model.taken


class Disk:
    """Knows how much of each file an fsync has made durable."""

    def __init__(self) -> None:
        self._durable_bytes: dict[int, int] = {}  # inode -> length at its last fsync
        self._fsync = os.fsync

    def fsync(self, fd: int) -> None:
        self._fsync(fd)
        status = os.fstat(fd)
        self._durable_bytes[status.st_ino] = status.st_size

    def after_power_failure(self, data: Path, *, luck: float) -> Path:
        """A copy of the folder in which files end between their durable and their real length, as luck has it."""
        copy = shutil.copytree(data, data.with_name("failed"))
        for path in data.iterdir():
            status = path.stat()
            durable = self._durable_bytes.get(status.st_ino, 0)
            os.truncate(copy / path.name, durable + round((status.st_size - durable) * luck))
        return copy


@given(histories, file_limits, sync_limits, st.floats(0, 1))
@settings(max_examples=80)
def test_a_power_failure_loses_nothing_that_was_synced(
    history: list[Operation], max_bytes_per_file: int, sync_every: int, luck: float
) -> None:
    disk = Disk()
    with folder() as data, ExitStack() as patches:
        data.mkdir()
        patches.enter_context(mock.patch("os.fsync", disk.fsync))
        player = Player(Rig(data), max_bytes_per_file=max_bytes_per_file, sync_every=sync_every)
        player.play(history)
        model = player.model
        queue = player.reopened(Rig(disk.after_power_failure(data, luck=luck)))
        found = drain(queue)
        queue.put(batch(b"new record"))
        assert drain(queue) == [b"new record"]
        queue.close()
        player.queue.close()
        must_be_there = model.put[model.taken : model.synced_put]
        first = model.put.index(found[0]) if found else len(model.put)
        assert found == model.put[first : first + len(found)]
        assert first >= model.synced_taken
        assert not must_be_there or (first <= model.taken and first + len(found) >= model.synced_put)


damages = st.lists(
    st.tuples(
        st.sampled_from(["truncate", "overwrite", "append", "delete"]),
        st.integers(0, 20),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def damage(path: Path, kind: str, place: float, content: bytes) -> None:
    """Do to a file what a bad disk or a person might do."""
    original = path.read_bytes()
    position = round(len(original) * place)
    if kind == "delete":
        path.unlink()
    elif kind == "truncate":
        path.write_bytes(original[:position])
    elif kind == "append":
        path.write_bytes(original + content)
    else:
        path.write_bytes(original[:position] + content + original[position + len(content) :])


@given(histories, file_limits, damages, st.booleans())
@settings(max_examples=150)
def test_no_damage_raises_or_keeps_later_records_from_coming(
    history: list[Operation],
    max_bytes_per_file: int,
    damages: list[tuple[str, int, float, bytes]],
    while_running: bool,
) -> None:
    with folder() as data:
        data.mkdir()
        player = Player(Rig(data, fs=UnsyncedFiles()), max_bytes_per_file=max_bytes_per_file, sync_every=-1)
        player.play(history)
        if not while_running:
            player.queue.close()
        for kind, which, place, content in damages:
            paths = sorted(data.glob("*.dat"))
            if paths:
                damage(paths[which % len(paths)], kind, place, content)
        queue = player.queue if while_running else player.reopened(player.rig)
        drain(queue)
        assert queue.depth == 0
        later = [b"later %04d" % number for number in range(10)]
        for payload in later:
            queue.put(batch(payload))
        assert drain(queue) == later
        queue.close()
        assert player.reopened(player.rig).depth == 0
