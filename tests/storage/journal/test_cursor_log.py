"""The log beside a cursor: its bytes, what a crash may leave of it, and how much is written."""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.error import StorageError
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.cursor import Cursor, save_cursor, to_bytes
from emberq.storage.journal.cursor_log import (
    SHORTEST_LONG_LOG_BYTES,
    CursorFile,
    header_bytes,
    load_logged_cursor,
    log_path,
    record_bytes,
    remove_leftovers,
    replay,
    seed_of,
)
from tests.crash.simulated_files import ROOT, Choice, Fault, SimulatedFiles

JOURNAL = UUID(int=7)


class Channel:
    """A channel's cursor with its files, on a simulated disk. What would run in another thread waits for `run`."""

    def __init__(self, fs: SimulatedFiles | None = None) -> None:
        self.fs = fs or SimulatedFiles()
        self.waiting: deque[Work] = deque()
        self.told: list[StorageError | None] = []
        self.path = ROOT / "c.cursor"
        self.file = CursorFile(self.path, workers=Workers(start=self.waiting.append), fs=self.fs)
        loaded = self.file.load(journal=JOURNAL)
        self.cursor = loaded or Cursor(JOURNAL)
        if loaded is None:
            self.file.save(self.cursor)
        self.file.resume(self.cursor)

    def finish(self, *ranges: tuple[int, int]) -> None:
        """Acknowledge, and write it down."""
        for start, stop in ranges:
            self.cursor.acknowledge(start, stop)
        self.file.append(self.cursor)

    def save(self) -> None:
        self.file.save_soon(self.cursor, self.told.append)

    def sync(self) -> None:
        self.file.sync_soon(self.told.append)

    def run(self) -> None:
        while self.waiting:
            self.waiting.popleft()()

    def logs(self) -> list[str]:
        return [name for name in self.fs.names(ROOT) if name.endswith(".acks")]

    def killed(self) -> Channel:
        """The channel in the next process."""
        return Channel(self.fs.killed(self.fs.moment, Choice(0)))

    def after_power_cuts(self) -> list[Channel]:
        """The channel as many power cuts may leave it."""
        return [Channel(self.fs.power_cut(self.fs.moment, Choice(seed))) for seed in range(40)]


def state(cursor: Cursor) -> bytes:
    return to_bytes(cursor)


# Bytes.


def test_the_bytes_are_those_of_the_drawing() -> None:
    cursor = Cursor(JOURNAL, low_water=10)
    cursor.note_changes(wanted=True)
    cursor.acknowledge(12, 15)
    cursor.acknowledge(15, 16)
    cursor.acknowledge(20, 21)
    cursor.note_attempts(17, 3)
    cursor.note_due(18, 1_700_000_000_000_000_000)
    rest = struct.pack("<I16sII", 1, JOURNAL.bytes, 0x1234, 0)
    header = b"EMBERQAL" + struct.pack("<I", crc32(rest)) + rest
    assert header_bytes(JOURNAL, 0x1234) == header
    content = struct.pack("<IIIq", 2, 1, 1, 10) + struct.pack("<qq", 12, 20) + struct.pack("<qq", 16, 21)
    content += struct.pack("<q", 17) + struct.pack("<H6x", 3) + struct.pack("<qq", 18, 1_700_000_000_000_000_000)
    record = struct.pack("<I", crc32(content, crc32(header))) + content
    changes = cursor.take_changes()
    assert changes is not None
    assert record_bytes(changes, low_water=10, seed=seed_of(header)) == record
    assert log_path(Path("x/c.cursor"), 0x1234).name == "c.00001234.acks"


def test_a_log_ends_at_the_first_record_that_is_not_whole() -> None:
    header = header_bytes(JOURNAL, 5)
    cursor = Cursor(JOURNAL)
    cursor.note_changes(wanted=True)
    ends, content = [len(header)], header
    for start in (10, 20, 30):
        cursor.acknowledge(start, start + 1)
        changes = cursor.take_changes()
        assert changes is not None
        content += record_bytes(changes, low_water=0, seed=seed_of(header))
        ends.append(len(content))
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        for damaged in (content[:position], bytes(flipped)):
            found = Cursor(JOURNAL)
            found.generation = 5
            replay(damaged, found)
            whole = sum(end <= position for end in ends[1:])
            assert found.acknowledged_above.count == (whole if position >= ends[0] else 0)
            assert found.logged_bytes == (ends[whole] if position >= ends[0] else 0)


@pytest.mark.parametrize(("journal", "generation"), [(JOURNAL, 6), (UUID(int=8), 5)])
def test_the_log_of_another_file_is_not_believed(journal: UUID, generation: int) -> None:
    header = header_bytes(journal, generation)
    cursor = Cursor(journal)
    cursor.note_changes(wanted=True)
    changes = cursor.take_changes()
    assert changes is not None
    found = Cursor(JOURNAL)
    found.generation = 5
    replay(header + record_bytes(changes, low_water=9, seed=seed_of(header)), found)
    assert (found.low_water, found.logged_bytes) == (0, 0)


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("acknowledge"), st.integers(0, 40), st.integers(0, 12)),
        st.tuples(st.just("note_attempts"), st.integers(0, 40), st.integers(0, 5)),
        st.tuples(st.just("note_due"), st.integers(0, 40), st.integers(0, 1000)),
        st.tuples(st.sampled_from(["append", "save", "run", "sync", "killed"]), st.just(0), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 40), st.just(0)),
    ),
    max_size=40,
)


@given(deeds)
def test_a_process_that_dies_finds_what_was_last_written_down(history: list[tuple[str, int, int]]) -> None:
    channel = Channel()
    for name, offset, value in history:
        if name == "acknowledge":
            channel.cursor.acknowledge(offset, offset + value)
        elif name in ("note_attempts", "note_due"):
            getattr(channel.cursor, name)(offset, value)
        elif name == "append":
            channel.file.append(channel.cursor)
        elif name == "seek":
            channel.cursor.seek(offset)
            channel.file.append(channel.cursor)
            channel.save()
            channel.run()
        elif name == "killed":
            channel.file.append(channel.cursor)
            channel.run()
            expected = state(channel.cursor)
            channel = channel.killed()
            assert state(channel.cursor) == expected
        else:
            channel.file.append(channel.cursor)
            getattr(channel, name)()
    channel.file.append(channel.cursor)
    assert state(channel.killed().cursor) == state(channel.cursor)


# A process that dies.


def test_what_is_written_down_while_a_new_file_is_on_its_way_is_found_beside_either() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.save()
    channel.finish((7, 8))
    assert len(channel.logs()) == 2
    assert state(channel.killed().cursor) == state(channel.cursor)
    channel.run()
    assert len(channel.logs()) == 1
    assert state(channel.killed().cursor) == state(channel.cursor)


def test_a_new_file_that_could_not_be_written_leaves_the_old_one_with_its_log() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.fs.faults.append(Fault("sync", suffix=".tmp"))
    channel.save()
    channel.finish((7, 8))
    channel.run()
    assert isinstance(channel.told[0], StorageError)
    assert channel.file.is_new_file_due
    channel.finish((9, 10))
    assert len(channel.logs()) == 1
    assert state(channel.killed().cursor) == state(channel.cursor)


def test_what_crashes_have_left_is_removed_when_the_folder_is_opened() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.save()
    channel.finish((7, 8))
    again = channel.killed()
    again.fs.close(again.fs.open(ROOT / "gone.0000abcd.acks", os.O_CREAT | os.O_WRONLY))
    again.fs.close(again.fs.open(ROOT / "c.cursor.1.tmp", os.O_CREAT | os.O_WRONLY))
    remove_leftovers(ROOT, fs=again.fs)
    assert len(again.logs()) == 1
    assert sorted(again.fs.names(ROOT)) == sorted([*again.logs(), "c.cursor"])
    assert state(again.killed().cursor) == state(channel.cursor)


def test_nothing_that_went_before_a_move_is_joined_with_the_new_place() -> None:
    channel = Channel()
    channel.finish((0, 50))
    channel.cursor.seek(10)
    channel.cursor.acknowledge(60, 70)
    channel.file.append(channel.cursor)
    channel.save()
    assert (channel.killed().cursor.low_water, channel.killed().cursor.acknowledged_above.count) == (50, 0)
    channel.run()
    channel.finish((20, 21))
    assert state(channel.killed().cursor) == state(channel.cursor)
    assert channel.cursor.low_water == 10


def test_a_log_with_a_torn_end_is_gone_on_with() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.fs.faults.append(Fault("write", suffix=".acks", taken_bytes=11))
    channel.fs.faults.append(Fault("write", errno.ENOSPC, suffix=".acks"))
    with pytest.raises(StorageError, match="no space left"):
        channel.finish((7, 8))
    again = channel.killed()
    assert list(again.cursor.acknowledged_above) == [(5, 6)]
    again.finish((9, 10))
    assert list(again.killed().cursor.acknowledged_above) == [(5, 6), (9, 10)]


def test_after_a_failed_append_the_next_save_is_a_new_file() -> None:
    channel = Channel()
    channel.fs.faults.append(Fault("write", errno.ENOSPC, suffix=".acks"))
    with pytest.raises(StorageError):
        channel.finish((5, 6))
    channel.finish((7, 8))  # is not tried
    assert channel.file.is_new_file_due
    channel.save()
    channel.run()
    assert not channel.file.is_new_file_due
    channel.finish((9, 10))
    assert list(channel.killed().cursor.acknowledged_above) == [(5, 6), (7, 8), (9, 10)]


def test_a_deleted_channel_leaves_no_log() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.file.remove()
    assert channel.fs.names(ROOT) == []


# A machine that dies.


def test_what_was_synced_outlives_a_power_cut() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.sync()
    channel.run()
    expected = state(channel.cursor)
    assert {state(left.cursor) for left in channel.after_power_cuts()} == {expected}
    channel.finish((7, 8))
    found = {state(left.cursor) for left in channel.after_power_cuts()}
    assert found == {expected, state(channel.cursor)}


def test_a_new_file_and_its_log_outlive_a_power_cut() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.save()
    channel.finish((7, 8))
    channel.run()
    channel.sync()
    channel.run()
    assert {state(left.cursor) for left in channel.after_power_cuts()} == {state(channel.cursor)}


def test_a_log_whose_sync_failed_is_followed_by_a_new_file() -> None:
    channel = Channel()
    channel.finish((5, 6))
    channel.fs.faults.append(Fault("sync", suffix=".acks"))
    channel.sync()
    channel.run()
    assert isinstance(channel.told[0], StorageError)
    assert channel.file.is_new_file_due
    channel.save()
    channel.run()
    assert {state(left.cursor) for left in channel.after_power_cuts()} == {state(channel.cursor)}


def test_the_log_of_a_process_that_died_is_followed_by_a_new_file() -> None:
    channel = Channel()
    assert not channel.file.is_new_file_due
    channel.finish((5, 6))
    assert channel.killed().file.is_new_file_due


# Folders of earlier versions.


def test_a_file_without_a_generation_has_no_log_until_it_is_replaced() -> None:
    fs = SimulatedFiles()
    save_cursor(ROOT / "c.cursor", to_bytes(Cursor(JOURNAL, low_water=3)), fs=fs)
    channel = Channel(fs)
    assert channel.cursor.low_water == 3
    channel.finish((5, 6))
    assert channel.logs() == []
    assert channel.file.is_new_file_due
    channel.save()
    channel.run()
    channel.finish((7, 8))
    assert list(channel.killed().cursor.acknowledged_above) == [(5, 6), (7, 8)]


# How much is written.


class Writes:
    """Counts the bytes that are written to the cursor's files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.byte_count = 0
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._count)

    def _count(self, fd: int, content: bytes | memoryview, position: int) -> int:
        self.byte_count += len(content)
        return self._write(fd, content, position)


def test_a_cursor_of_very_many_ranges_costs_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.cursor"
    cursor = Cursor(JOURNAL)
    cursor.catch_up(low_water=0, ranges=[(at, at + 1) for at in range(2, 200_000, 2)], attempts={}, due_ns={})
    file = CursorFile(path, workers=Workers())
    file.save(cursor)
    file.resume(cursor)
    writes = Writes(monkeypatch)
    for offset in range(200_000, 200_200, 2):
        cursor.acknowledge(offset, offset + 1)
        file.append(cursor)
    assert writes.byte_count <= 100 * 48
    assert not file.is_new_file_due
    assert state(cursor) == state(load_logged_cursor(path, journal=JOURNAL) or Cursor(JOURNAL))


def test_a_long_log_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "c.cursor"
    cursor = Cursor(JOURNAL)
    file = CursorFile(path, workers=Workers())
    file.save(cursor)
    file.resume(cursor)
    offset = 2
    while not file.is_new_file_due:
        for _ in range(1000):
            cursor.acknowledge(offset, offset + 1)
            offset += 2
        file.append(cursor)
    (log,) = tmp_path.glob("*.acks")
    assert SHORTEST_LONG_LOG_BYTES < log.stat().st_size < 2 * SHORTEST_LONG_LOG_BYTES
    file.save_soon(cursor, lambda _failure: None)
    assert [found.name for found in tmp_path.iterdir()] == ["c.cursor"]
    assert state(cursor) == state(load_logged_cursor(path, journal=JOURNAL) or Cursor(JOURNAL))
