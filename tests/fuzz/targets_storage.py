"""Targets that find damaged files: disk queues, journals, cursors, nsqd.dat.

An input is a folder, written as `head` shows several files:

    ==> q.diskqueue.meta.dat
    2
    0,0
    0,60
    ==> q.diskqueue.000000.dat
    ...

Its files lie in the simulated file system of the crash tests, so that no play touches the disk. What is damaged may be
lost, but never become a message that was not published, an exception that is no `StorageError`, or an endless loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock
from uuid import UUID

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.storage.data_folder import load_metadata, load_policies
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import load_due_times
from emberq.storage.error import JournalOpenError, MetadataError, StorageError
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.cursor import Cursor, from_bytes, to_bytes
from emberq.storage.journal.cursor_log import header_bytes, load_logged_cursor, replay
from emberq.storage.journal.folder import JournalFolder
from emberq.storage.journal.inspection import JournalRow, dump, survey, verify
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.recovery import identity_now
from emberq.storage.journal.recovery import save as save_identity
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies
from tests.crash.simulated_files import ROOT, SimulatedFiles
from tests.fuzz.engine import Target, tells_in_a_line
from tests.storage.journal.rig import producer
from tests.storage.rig import Rig, batch, payloads_of

_NAME = rb"(?!\.\.?[/\n])[^\n/\0]{1,60}"
"""Of a file or of a folder: neither . nor .., which are folders that are there."""
_HEAD = re.compile(rb"==> (%b(?:/%b)?)\n" % (_NAME, _NAME))
MAX_STEPS = 2000
"""Reads of one file that has some kB: more would be a loop without an end."""
WALL_NS = 1_700_000_000 * NS_PER_SECOND


def unpacked(data: bytes) -> SimulatedFiles:
    """The file system that the input describes."""
    files = SimulatedFiles()
    parts = _HEAD.split(data)
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        write(files, ROOT / name.decode("latin-1"), content)
    return files


def write(files: SimulatedFiles, path: Path, content: bytes) -> None:
    """Make a file, in a folder that is made too; not if another one is in the way."""
    with suppress(OSError):
        if not files.exists(path.parent):
            files.create_folder(path.parent)
        fd = files.open(path, os.O_CREAT | os.O_WRONLY)
        files.truncate(fd, 0)
        files.write(fd, content, 0)
        files.close(fd)


def packed(files: SimulatedFiles, folder: Path = ROOT) -> bytes:
    """The input that describes a file system."""
    return b"".join(
        b"==> %b\n%b" % (str(path.relative_to(ROOT)).encode(), files.read_file(path)) for path in _paths(files, folder)
    )


def _paths(files: SimulatedFiles, folder: Path) -> Iterator[Path]:
    for name in sorted(files.names(folder)):
        path = folder / name
        if files.is_folder(path):
            yield from _paths(files, path)
        else:
            yield path


class DiskQueueTarget(Target):
    """A disk queue is opened on damaged files, read to its end, written to, and read again."""

    name = "disk-queue"
    modules = ("storage/disk_queue.py", "storage/disk_queue_files.py", "storage/disk_queue_sync.py")
    tokens = (b"==> q.diskqueue.000001.dat\n", b"==> q.diskqueue.meta.dat\n", b"0,0\n", b"\0\0\0\x08", b"999999", b"-1")
    slice_count = 200

    def seeds(self) -> Iterable[bytes]:
        for sizes in ((8, 8, 8), (6, 30, 11), (60,) * 6):
            files = SimulatedFiles()
            rig = Rig(ROOT, fs=files)
            queue = rig.queue(max_bytes_per_file=100)
            queue.put(batch(*(b"x" * size for size in sizes)))
            yield packed(files)
            queue.take(max_count=1, max_bytes=1)
            rig.close()
            yield packed(files)
        due = b"emberq-due 1 due\n" + b"00" * 16 + b" 1700000000000000000 00000000\n"
        yield b"==> q.diskqueue.due.dat\n" + due

    def play(self, data: bytes) -> None:
        files = unpacked(data)
        load_due_times(ROOT / "q.diskqueue.due.dat", fs=files)
        rig = Rig(ROOT, fs=files)
        try:
            queue = rig.queue(max_bytes_per_file=100, max_record_bytes=1000)
        except StorageError:
            return
        self._drain(queue)
        assert queue.depth == 0, queue
        queue.put(batch(b"new one", b"another"))
        assert payloads_of(queue.peek(max_count=1)) == [b"new one"], queue
        rig.advance(ms=5000)
        queue.close()
        again = rig.queue(max_bytes_per_file=100, max_record_bytes=1000)
        assert self._drain(again) == [b"new one", b"another"], again
        rig.close()
        assert files.open_count == 0

    def _drain(self, queue: DiskQueue) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(MAX_STEPS):
            records = queue.take(max_count=10, max_bytes=1000)
            if records is None:
                return found
            found += payloads_of(records)
        raise AssertionError("a queue without an end")


CONFIG = JournalConfig(segment_bytes=400, index_interval_bytes=100, max_producers=5, retention_bytes=2000)
TOPIC = ROOT / "t.journal"


class JournalTarget(Target):
    """A journal is looked at from outside, opened, read to its end, written to and opened again."""

    name = "journal"
    modules = ("storage/journal/*.py", "wire/journal_batch.py")
    tokens = (
        b"==> t.journal/00000000000000000000.log\n",
        b"==> t.journal/00000000000000000006.idx\n",
        b"==> t.journal/cursors/c.cursor\n",
        b"==> t.journal/journal.json\n",
        b"\xff" * 8,
        bytes(8),
    )
    max_bytes = 8192
    slice_count = 60

    def seeds(self) -> Iterable[bytes]:
        with mock.patch("secrets.randbits", return_value=5):  # the generation of a cursor
            yield from [self._made(*shape) for shape in ((1, True), (4, False), (9, True), (9, False))]

    def _made(self, count: int, closes: bool) -> bytes:
        files = SimulatedFiles()
        files.create_folder(TOPIC)
        save_identity(TOPIC, identity_now(UUID(int=9), now_ns=WALL_NS), fs=files)  # not a random one
        folder = self._folder(files)
        for number in range(count):
            self._append(folder.journal, number)
        cursor = folder.cursor("c", start_offset=0)
        cursor.acknowledge(0, 1)
        cursor.acknowledge(2, 3)
        folder.cursor_file("c").save(cursor)
        folder.save_mark(1)
        if closes:
            folder.journal.close()
        return packed(files)

    def play(self, data: bytes) -> None:
        files = unpacked(data)
        published = {b"%0*d" % (20 + number, number) for number in range(-1, 20)}
        self._look(files, published)
        with suppress(StorageError):
            folder = self._folder(files)
            bodies = self._read(folder.journal)
            assert set(bodies) <= published, set(bodies) - published
            self._use(folder)
            assert self._read(folder.journal)[-1:] == [b"%0*d" % (19, -1)]
            folder.journal.close()
            again = self._folder(files)
            assert self._read(again.journal)[-1:] == [b"%0*d" % (19, -1)]
            again.journal.close()
            assert files.open_count == 0

    def _look(self, files: SimulatedFiles, published: set[bytes]) -> None:
        with suppress(JournalOpenError):
            for finding in verify(TOPIC, fs=files):
                assert str(finding)
        with suppress(JournalOpenError):
            for row in dump(TOPIC, fs=files):
                assert not isinstance(row, JournalRow) or row.body in published
        with suppress(JournalOpenError):
            survey(TOPIC, fs=files)

    def _folder(self, files: SimulatedFiles) -> JournalFolder:
        if not files.exists(TOPIC):
            files.create_folder(TOPIC)
        return JournalFolder(TOPIC, CONFIG, clock=ManualClock(wall_ns=WALL_NS), workers=Workers(), fs=files)

    def _append(self, journal: Journal, number: int) -> None:
        body = b"%0*d" % (20 + number, number)
        sender = producer(b"p", number + 1) if number in (1, 3, 5, 7) else None
        journal.append(Bodies.of([body] * 3), timestamp_ns=WALL_NS + number, producer=sender)
        journal.sync()

    def _use(self, folder: JournalFolder) -> None:
        """What a topic and its channels do with it."""
        journal = folder.journal
        folder.load_mark()
        journal.skip_to(min(folder.seen_offset(), 1 << 40))
        for name in folder.channel_names()[:3]:
            cursor = folder.cursor(name, start_offset=journal.first_offset)
            cursor.count_unacknowledged(journal.next_offset)
        journal.offset_at(WALL_NS + 3)
        journal.locate(journal.first_offset, max_bytes=1000)
        journal.jumps()
        self._append(journal, -1)
        journal.trim(before_offset=journal.first_offset, now_ns=WALL_NS)

    def _read(self, journal: Journal) -> list[bytes]:
        bodies: list[bytes] = []
        offset = journal.first_offset
        for _ in range(MAX_STEPS):
            if offset >= journal.next_offset:
                return bodies
            chunk = journal.read(offset, max_bytes=500)
            assert chunk.next_offset > offset
            bodies += [body for each in chunk.batches for body in each.messages()]
            offset = chunk.next_offset
        raise AssertionError("a journal without an end")


class CursorTarget(Target):
    """A cursor and its log, damaged anywhere; then used."""

    name = "cursor"
    modules = ("storage/journal/cursor.py", "storage/journal/cursor_log.py")
    tokens = (b"==> c.cursor\n", b"==> c.00000001.acks\n", bytes(8), b"\xff" * 8)
    slice_count = 300
    _journal = UUID(int=7)

    def seeds(self) -> Iterable[bytes]:
        cursor = Cursor(self._journal, low_water=5)
        for offset in (7, 8, 12, 30):
            cursor.acknowledge(offset, offset + 1)
        head = header_bytes(self._journal, 1)
        yield b"==> c.cursor\n" + to_bytes(cursor, generation=1) + b"==> c.00000001.acks\n" + head
        yield b"==> c.cursor\n" + to_bytes(cursor)

    def play(self, data: bytes) -> None:
        files = unpacked(data)
        with suppress(StorageError):
            cursor = load_logged_cursor(ROOT / "c.cursor", journal=self._journal, fs=files)
            if cursor is not None:
                self._use(cursor)
        fresh = Cursor(self._journal, low_water=5)
        replay(header_bytes(self._journal, 0) + data, fresh)
        self._use(fresh)

    def _use(self, cursor: Cursor) -> None:
        low = cursor.low_water
        cursor.acknowledge(low, low + 1)
        cursor.acknowledge(low + 3, low + 4)
        assert cursor.low_water > low
        same = from_bytes(to_bytes(cursor), journal=self._journal)
        assert (same.low_water, same.high_water) == (cursor.low_water, cursor.high_water)


class MetadataTarget(Target):
    """nsqd.dat and channel-policies.json."""

    name = "metadata"
    modules = ("storage/data_folder.py",)
    tokens = (b'"paused":true', b'"channels":null', b"null", b"[]", b'"name":')
    slice_count = 300

    def seeds(self) -> Iterable[bytes]:
        yield b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}'
        yield b'{"topics":null,"version":"1"}'
        policy = b'{"topic":"t","channel":"c","max_attempts":3,"dead_letter_topic":"dead"}'
        yield b'{"version":1,"policies":[' + policy + b"]}"

    def play(self, data: bytes) -> None:
        files = SimulatedFiles()
        path = ROOT / "nsqd.dat"
        write(files, path, data)
        for load in (load_metadata, load_policies):
            try:
                load(path, fs=files)
            except MetadataError as wrong:
                tells_in_a_line(wrong, max_characters=20_000)  # it may quote the operator's own file


TARGETS: tuple[type[Target], ...] = (DiskQueueTarget, JournalTarget, CursorTarget, MetadataTarget)
