"""The queue of a journaled channel: how much it holds, and what becomes of messages that cannot be read."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from emberq.broker.journal_queue import READ_AHEAD_BYTES, JournalQueue, JournalSource, replayed_batches
from emberq.storage.journal.cursor import Cursor
from emberq.wire.journal_batch import Bodies, decode, encode, header_at
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Message, numbered
from tests.storage.journal.rig import flip


@pytest.fixture
def rig(tmp_path: Path) -> JournalRig:
    return JournalRig(tmp_path)


def with_memory(tmp_path: Path, mem_queue_size: int, **options: Any) -> JournalRig:
    return JournalRig(tmp_path, mem_queue_size=mem_queue_size, **options)


any_memory = pytest.mark.parametrize("mem_queue_size", [0, 1, 3, 1000])


def in_memory(rig: JournalRig, channel: str = "c") -> int:
    """How many messages the channel holds that wait to be delivered."""
    stats = rig.stats(channel)
    return stats.depth - stats.backend_depth


def drain(consumer: Consumer) -> list[Message]:
    """Everything it is given, finished."""
    came: list[Message] = []
    while new := consumer.take_new():
        came += new
        consumer.finish(*new)
    return came


# Memory.


@any_memory
def test_no_more_is_held_than_the_memory_queue(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    rig.channel()
    for _ in range(20):
        rig.publish(*numbered(2))
    assert rig.stats().depth == 40
    assert in_memory(rig) <= mem_queue_size


def test_a_lagging_channel_holds_one_block(tmp_path: Path) -> None:
    rig = with_memory(tmp_path, 0)
    rig.channel()
    body_bytes = 1000
    for _ in range(100):
        rig.publish(*[b"x" * body_bytes] * 10)
    consumer = rig.consumer(rdy=1)
    assert 0 < in_memory(rig) * body_bytes <= READ_AHEAD_BYTES
    assert (rig.stats().depth, rig.stats().in_flight_count) == (999, 1)
    consumer.ready(1000)
    assert len(drain(consumer)) == 1000


@pytest.mark.parametrize("mem_queue_size", [0, 3])
def test_messages_that_are_tried_again_are_not_held_beyond_it_either(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=20)
    rig.publish(*numbered(20))
    messages = consumer.take_new()
    consumer.ready(0)
    for message in messages:
        consumer.requeue(message)
    assert rig.stats().depth == 20
    assert in_memory(rig) <= mem_queue_size
    consumer.ready(20)
    assert sorted(message.body for message in drain(consumer)) == numbered(20)
    assert (rig.stats().depth, rig.stats().backend_depth) == (0, 0)


def test_messages_of_which_only_the_offset_is_held_take_no_memory_from_others(tmp_path: Path) -> None:
    rig = with_memory(tmp_path, 3)
    consumer = rig.consumer(rdy=20)
    rig.publish(*numbered(20))
    messages = consumer.take_new()
    consumer.ready(0)
    for message in messages:
        consumer.requeue(message)
    consumer.ready(3)
    assert (in_memory(rig), rig.stats().backend_depth) == (0, 17)
    rig.publish(b"new")
    assert (in_memory(rig), rig.stats().backend_depth) == (1, 17)


@any_memory
def test_attempts_are_known_after_a_restart(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(10))
    waits, held = consumer.take_new()
    consumer.ready(0)
    consumer.requeue(waits)
    rig.restart()
    attempts = {message.body: message.attempts for message in drain(rig.consumer(rdy=20))}
    assert attempts == dict.fromkeys(numbered(10), 1) | {waits.body: 2, held.body: 2}


@any_memory
def test_messages_that_are_read_before_they_are_due_wait_for_it(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    rig.topic()
    rig.publish_deferred(b"in ten seconds", delay_ms=10_000)
    rig.publish_deferred(b"in twenty", delay_ms=20_000)
    rig.publish(b"now")
    rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=9)
    assert consumer.new_bodies() == [b"now"]
    rig.advance(ms=8_999)
    assert consumer.new_bodies() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"in ten seconds"]
    rig.advance(ms=10_000)
    assert consumer.new_bodies() == [b"in twenty"]


def test_a_block_in_which_all_is_due_later_delivers_nothing(tmp_path: Path) -> None:
    rig = with_memory(tmp_path, 0)
    rig.topic()
    rig.publish_deferred(b"later", delay_ms=10_000)
    consumer = rig.consumer(rdy=9)
    assert (consumer.received, rig.stats().deferred_count, rig.stats().depth) == ([], 1, 0)
    rig.advance(ms=10_000)
    assert consumer.new_bodies() == [b"later"]


@pytest.mark.parametrize("bodies", [numbered(6), [b"a", b"bb", b"", b"cccc", b"d", b"ee"]])
@pytest.mark.parametrize("times_ns", [None, [7, 8, 9, 10, 11, 12]])
@pytest.mark.parametrize(("start", "stop"), [(100, 106), (102, 105), (105, 106)])
def test_any_part_of_a_batch_that_was_read_is_as_it_was_published(
    bodies: list[bytes], times_ns: list[int] | None, start: int, stop: int
) -> None:
    content = b"".join(encode(Bodies.of(bodies), base_offset=100, timestamp_ns=5, seed=1, times_ns=times_ns).parts)
    batch = decode(memoryview(content), header_at(memoryview(content)), seed=1)
    pieces = list(replayed_batches(batch, start, stop))
    found = [piece.message(index, 4) for piece in pieces for index in range(piece.count)]
    assert [tuple(message) for message in found] == [
        (5 if times_ns is None else times_ns[offset - 100], 4, b"%016x" % offset, bodies[offset - 100])
        for offset in range(start, stop)
    ]


# Work.


class Reads:
    """Counts the bytes that are read from files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.byte_count = 0
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self._read)

    def _read(self, fd: int, length: int, position: int) -> bytes:
        content = self._pread(fd, length, position)
        self.byte_count += len(content)
        return content


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def requeue_all(consumer: Consumer, messages: list[Message], *, delay_ms: int) -> None:
    for message in messages:
        consumer.requeue(message, delay_ms=delay_ms)


def come_again(rig: JournalRig, consumer: Consumer, *, ms: int) -> list[Message]:
    """Everything that comes in this time and is finished, over as many turns of the loop as it takes."""
    came: list[Message] = []
    rig.advance(ms=ms)
    for _ in range(100):
        came += drain(consumer)
        rig.advance(ms=1)
    return came


@any_memory
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_the_messages_of_one_batch_that_are_due_together_share_one_reading(
    tmp_path: Path, reads: Reads, mem_queue_size: int, is_shuffled: bool
) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=2500)
    bodies = [b"%0100d" % number for number in range(2500)]
    rig.publish(*bodies)
    messages = consumer.take_new()
    if is_shuffled:
        random.Random(1).shuffle(messages)
    requeue_all(consumer, messages, delay_ms=1500)
    before = reads.byte_count
    came = come_again(rig, consumer, ms=1500)
    assert sorted(message.body for message in came) == bodies
    assert {message.attempts for message in came} == {2}
    assert reads.byte_count - before <= 2 * rig.last_segment().stat().st_size
    assert (rig.stats().depth, rig.stats().deferred_count, rig.journaled_channel().low_water) == (0, 0, 2500)


def test_messages_of_many_batches_that_are_due_in_any_order_are_read_batch_by_batch(
    tmp_path: Path, reads: Reads
) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=2500)
    for first in range(0, 2500, 250):
        rig.publish(*[b"%0100d" % number for number in range(first, first + 250)])
    messages = consumer.take_new()
    random.Random(1).shuffle(messages)
    requeue_all(consumer, messages, delay_ms=1500)
    before = reads.byte_count
    assert len(come_again(rig, consumer, ms=1500)) == 2500
    assert reads.byte_count - before <= 4 * rig.last_segment().stat().st_size


def test_messages_of_one_batch_that_come_due_one_after_the_other_share_one_reading(
    tmp_path: Path, reads: Reads
) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=300)
    rig.publish(*numbered(300))
    for message in consumer.take_new():
        consumer.requeue(message, delay_ms=1500)
        rig.advance(ms=5)
    before = reads.byte_count
    for _ in range(300):
        rig.advance(ms=5)
    assert len(drain(consumer)) == 300
    assert reads.byte_count - before <= 2 * rig.last_segment().stat().st_size


def test_a_block_of_large_messages_that_are_tried_again_is_bounded(tmp_path: Path) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=30)
    rig.publish(*[b"%030000d" % number for number in range(30)])
    requeue_all(consumer, consumer.take_new(), delay_ms=1500)
    consumer.ready(1)
    rig.advance(ms=1500)
    assert 0 < in_memory(rig) * 30_000 <= READ_AHEAD_BYTES
    consumer.ready(30)
    assert len(drain(consumer)) == 30


def test_messages_that_were_tried_differently_often_share_a_reading_and_keep_their_attempts(
    tmp_path: Path, reads: Reads
) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(100))
    messages = consumer.take_new()
    requeue_all(consumer, messages[::2], delay_ms=500)
    rig.advance(ms=500)
    requeue_all(consumer, [*consumer.take_new(), *messages[1::2]], delay_ms=1500)
    before = reads.byte_count
    attempts = {message.body: message.attempts for message in come_again(rig, consumer, ms=1500)}
    assert attempts == {body: 3 - number % 2 for number, body in enumerate(numbered(100))}
    assert reads.byte_count - before <= 2 * rig.last_segment().stat().st_size


# Damage.


def test_a_damaged_batch_is_passed_over_and_counted_no_more(rig: JournalRig) -> None:
    rig.channel()
    ends = [rig.last_segment().stat().st_size]
    for first in range(0, 9, 3):
        rig.publish(*numbered(3, first=first))
        ends.append(rig.last_segment().stat().st_size)
    rig.restart()
    flip(rig.last_segment(), ends[2] - 10)
    assert rig.stats().depth == 9
    consumer = rig.consumer(rdy=100)
    assert consumer.new_bodies() == [*numbered(3), *numbered(3, first=6)]
    assert rig.stats().depth == 0
    consumer.finish(*consumer.received)
    assert rig.journaled_channel().low_water == 9


def test_a_message_that_was_to_be_tried_again_and_is_damaged_is_given_up(tmp_path: Path) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=1)
    rig.publish(b"damaged")
    consumer.requeue(consumer.take_one(), delay_ms=1000)
    flip(rig.last_segment(), rig.last_segment().stat().st_size - 3)
    rig.publish(b"good")
    assert consumer.new_bodies() == [b"good"]
    rig.advance(ms=1000)
    consumer.finish(*consumer.received)
    assert (rig.stats().depth, rig.stats().deferred_count) == (0, 0)
    assert rig.journaled_channel().low_water == 2


class Unreadable:
    """Makes the journal unreadable for a while, as a disk does that takes too long to answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patches = monkeypatch

    def begin(self) -> None:
        def pread(_fd: int, _length: int, _position: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self._patches.setattr(os, "pread", pread)

    def end(self) -> None:
        self._patches.undo()


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    return Unreadable(monkeypatch)


def test_a_journal_that_cannot_be_read_now_is_read_later(tmp_path: Path, unreadable: Unreadable) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=10)
    unreadable.begin()
    rig.publish(*numbered(3))
    assert (consumer.take_new(), rig.stats().depth) == ([], 3)
    assert rig.channel().peek(10) == []
    unreadable.end()
    rig.advance(ms=1000)
    assert consumer.new_bodies() == numbered(3)


def test_a_message_that_cannot_be_read_again_now_is_not_lost(tmp_path: Path, unreadable: Unreadable) -> None:
    rig = with_memory(tmp_path, 0)
    consumer = rig.consumer(rdy=1)
    rig.publish(b"a")
    message = consumer.take_one()
    unreadable.begin()
    consumer.requeue(message)
    assert (consumer.take_new(), rig.stats().depth) == ([], 1)
    unreadable.end()
    rig.advance(ms=1000)
    assert consumer.take_one().attempts == 2


# Looking.


@any_memory
def test_peeking_shows_what_comes_next_and_takes_nothing(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(6))
    first, _ = consumer.take_new()
    consumer.ready(0)
    consumer.requeue(first)
    seen = rig.channel().peek(10)
    assert sorted(message.body for message in seen) == [numbered(1)[0], *numbered(4, first=2)]
    assert {message.body: message.attempts for message in seen}[first.body] == 1
    assert len(rig.channel().peek(2)) == 2
    assert rig.stats().depth == 5


def test_a_count_that_is_too_high_ends_where_the_journal_does(
    rig: JournalRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.publish(*numbered(3))
    journal = rig.journaled_topic().journal
    cursor = Cursor(journal.uuid)
    queue = JournalQueue(
        JournalSource(journal),
        cursor,
        max_count=0,
        max_bytes=1 << 30,
        end_offset=3,
        wall_ns=rig.clock.wall_ns,
        monotonic_ns=rig.clock.monotonic_ns,
        defer=lambda _span, _due_ns: None,
        noted=lambda: None,
        wake=lambda: None,
    )
    assert queue.depth == 3
    cursor.acknowledge(0, 3)  # behind its back
    assert queue.take(max_count=10, max_bytes=1000) is None
    assert queue.depth == 0
    assert "counted 3 messages too many" in caplog.text


# What takes long.


def fake_headers(count: int) -> bytes:
    """A body full of batch headers, each of a batch that reaches to the end of the body."""
    fakes = b""
    for left in range(count, 0, -1):
        length = 64 * (left + 1)
        fakes += struct.pack("<4sIIHHqqII16sq", b"EqB1", left, length, 2, 0, 2, 7, 1, length - 80, bytes(16), 0)
    return fakes + bytes(64)


def test_messages_behind_damage_that_is_hard_to_pass_come_over_several_turns(tmp_path: Path, reads: Reads) -> None:
    rig = with_memory(tmp_path, 0)
    rig.channel()
    start = rig.last_segment().stat().st_size
    rig.publish(fake_headers(3000))
    rig.publish(b"good")
    rig.restart()
    flip(rig.last_segment(), start)
    consumer = rig.consumer(rdy=10)
    turns = 0
    while not consumer.received:
        before = reads.byte_count
        rig.advance(ms=5)
        assert reads.byte_count - before <= 4 << 20
        turns += 1
        assert turns < 1000
    assert turns > 5
    assert consumer.new_bodies() == [b"good"]
    consumer.finish(*consumer.received)
    assert rig.journaled_channel().low_water == 2
