"""A channel that is a cursor: what it delivers, what it remembers, and where it goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.journaled_channel import LOGS_PER_TURN
from emberq.broker.stats import LatencyConfig
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Message, numbered
from tests.storage.journal.rig import flip


@pytest.fixture
def rig(tmp_path: Path) -> JournalRig:
    return JournalRig(tmp_path)


def with_memory(tmp_path: Path, mem_queue_size: int, **options: Any) -> JournalRig:
    return JournalRig(tmp_path, mem_queue_size=mem_queue_size, **options)


any_memory = pytest.mark.parametrize("mem_queue_size", [0, 1, 3, 1000])


def drain(consumer: Consumer) -> list[Message]:
    """Everything it is given, finished."""
    came: list[Message] = []
    while new := consumer.take_new():
        came += new
        consumer.finish(*new)
    return came


# Delivering.


@any_memory
def test_messages_come_in_order_with_their_offsets_as_ids(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    rig.channel()
    for first in range(0, 30, 10):
        rig.publish(*numbered(10, first=first))
    rig.publish(b"of another size", b"")
    came = drain(rig.consumer(rdy=7))
    assert [message.body for message in came] == [*numbered(30), b"of another size", b""]
    assert [message.id for message in came] == [b"%016x" % offset for offset in range(32)]
    assert {message.attempts for message in came} == {1}


@any_memory
def test_two_channels_at_different_speeds_do_not_disturb_each_other(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    fast, slow = Consumer(rig.channel("fast"), rdy=100), Consumer(rig.channel("slow"), rdy=1)
    held: list[Message] = []
    for first in range(0, 40, 8):
        rig.publish(*numbered(8, first=first))
        assert [message.body for message in drain(fast)] == numbered(8, first=first)
        held += slow.take_new()
        slow.finish(held[-1])
    slow.ready(100)
    assert [message.body for message in [*held, *drain(slow)]] == numbered(40)


def test_messages_beyond_the_sequence_numbers_of_one_batch_have_ids_of_their_own(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(4090))
    rig.publish(*numbered(20, first=4090))
    came = drain(rig.consumer(rdy=5000))
    assert [int(message.id, 16) for message in came] == list(range(4110))
    assert [message.body for message in came] == numbered(4110)


def test_a_replayed_message_is_the_same_to_the_last_byte(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(b"a", b"bb", b"", b"dddd")
    first = consumer.take_new()
    rig.crash()
    assert rig.consumer(rdy=100).take_new() == first


# Finishing.


def test_what_is_finished_out_of_order_does_not_come_again(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(10))
    messages = consumer.take_new()
    consumer.finish(messages[7], messages[2], messages[3])
    rig.advance(ms=1000)
    rig.crash()
    assert rig.stats().depth == 7
    left = [body for number, body in enumerate(numbered(10)) if number not in (2, 3, 7)]
    assert [message.body for message in drain(rig.consumer(rdy=100))] == left


def test_what_a_sample_leaves_out_is_done_with(rig: JournalRig) -> None:
    consumer = Consumer(rig.channel(), sample_rate=50, rdy=1000)
    rig.publish(*numbered(200))
    taken = drain(consumer)
    assert 0 < len(taken) < 200
    rig.restart()
    assert rig.stats().depth == 0
    assert rig.journaled_channel().low_water == 200


def test_what_a_sample_leaves_out_is_no_finished_message_to_the_statistics(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, latency=LatencyConfig(quantiles=(0.5,), window_ns=60 * NS_PER_SECOND))
    consumer = Consumer(rig.channel(), sample_rate=1, rdy=1000)
    rig.publish(*numbered(200))
    assert rig.stats().e2e.count == 0
    taken = drain(consumer)
    assert rig.stats().e2e.count == len(taken)


def test_finished_messages_are_counted_by_the_time_they_took(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, latency=LatencyConfig(quantiles=(1.0,), window_ns=60 * NS_PER_SECOND))
    consumer = rig.consumer(rdy=10)
    rig.publish(b"a", b"b")
    rig.advance(ms=250)
    consumer.finish(*consumer.take_new())
    assert rig.stats().e2e.count == 2


# Saving.


def test_the_cursor_is_saved_within_a_second(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    before = rig.cursor_path().read_bytes()
    consumer.finish(*consumer.take_new())
    rig.advance(ms=999)
    assert rig.cursor_path().read_bytes() == before
    rig.advance(ms=1)
    rig.crash()
    assert rig.stats().depth == 0


def test_what_was_not_saved_comes_again(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    consumer.finish(*consumer.take_new())
    rig.crash()
    assert len(drain(rig.consumer(rdy=100))) == 4


@any_memory
def test_what_was_finished_a_moment_before_the_process_dies_does_not_come_again(
    tmp_path: Path, mem_queue_size: int
) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=100)
    rig.slow_disk.is_slow = False
    rig.publish(*numbered(10))
    messages = consumer.take_new()
    rig.slow_disk.is_slow = True  # no thread comes to run before the crash
    consumer.finish(*messages[:4], messages[7])
    consumer.requeue(messages[9], delay_ms=10_000)
    rig.advance(ms=20)
    rig.crash(down_ms=1000)
    consumer = rig.consumer(rdy=100)
    assert consumer.new_bodies() == [messages[number].body for number in (4, 5, 6, 8)]
    rig.advance(ms=9_000)
    assert [(message.body, message.attempts) for message in consumer.take_new()] == [(messages[9].body, 2)]


def test_a_log_is_gone_on_with_after_each_of_many_crashes(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(20))
    came: list[bytes] = []
    for _ in range(10):
        consumer = rig.consumer(rdy=2)
        messages = consumer.take_new()
        came += [message.body for message in messages]
        consumer.ready(0)
        consumer.finish(*messages)
        rig.advance(ms=20)
        rig.crash()
    assert came == numbered(20)


def test_many_busy_channels_take_turns_in_writing_down_what_was_finished(rig: JournalRig) -> None:
    consumers = [Consumer(rig.channel(f"c{number}"), rdy=10) for number in range(3 * LOGS_PER_TURN)]
    rig.publish(*numbered(2))
    for consumer in consumers:
        consumer.finish(*consumer.take_new())
    logs = rig.topic_folder() / "cursors"
    for turn in range(1, 4):
        rig.advance(ms=20)
        assert len(list(logs.glob("*.acks"))) == turn * LOGS_PER_TURN
    rig.crash()
    assert {rig.stats(f"c{number}").depth for number in range(3 * LOGS_PER_TURN)} == {0}


def test_a_clean_stop_leaves_no_log(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    consumer.finish(*consumer.take_new())
    rig.advance(ms=20)
    assert len(list((rig.topic_folder() / "cursors").iterdir())) == 2
    rig.restart()
    assert [found.name for found in (rig.topic_folder() / "cursors").iterdir()] == ["c.cursor"]


def test_a_clean_stop_saves_the_cursor(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    consumer.finish(*consumer.take_new())
    rig.restart()
    assert rig.stats().depth == 0


def test_an_idle_channel_is_not_saved_again(rig: JournalRig) -> None:
    rig.channel()
    before = rig.cursor_path().stat().st_ino
    rig.publish(*numbered(4))
    rig.advance(ms=5000)
    assert rig.cursor_path().stat().st_ino == before


def test_what_changes_during_a_slow_save_is_saved_after_it(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    first, *others = consumer.take_new()
    consumer.finish(first)
    rig.slow_disk.is_slow = True
    rig.advance(ms=1000)
    consumer.finish(*others)
    rig.advance(ms=1000)
    rig.advance(ms=1000)
    rig.slow_disk.is_slow = False
    rig.slow_disk.work_off()
    rig.advance(ms=1000)
    rig.crash()
    assert rig.stats().depth == 0


def test_a_save_that_failed_is_tried_again(rig: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(b"a")
    consumer.finish(consumer.take_one())

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        rig.advance(ms=1000)
        rig.advance(ms=1000)
    rig.advance(ms=1000)
    rig.crash()
    assert rig.stats().depth == 0


def test_a_damaged_cursor_costs_duplicates_and_no_message(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(4))
    consumer.finish(*consumer.take_new())
    rig.advance(ms=1000)
    rig.crash(before_start=lambda: flip(rig.cursor_path(), 33))
    assert [message.body for message in drain(rig.consumer(rdy=100))] == numbered(4)


# Attempts and due times.


@any_memory
def test_attempts_outlive_a_crash_once_they_are_saved(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=2)
    rig.publish(b"a", b"b")
    for message in consumer.take_new():
        consumer.requeue(message)
    consumer.leave()
    rig.advance(ms=1000)
    rig.crash()
    assert {message.attempts for message in rig.consumer(rdy=2).take_new()} == {2}


def test_attempts_of_what_is_in_flight_outlive_a_clean_stop(rig: JournalRig) -> None:
    rig.consumer(rdy=2)
    rig.publish(b"a", b"b")
    rig.restart()
    assert {message.attempts for message in rig.consumer(rdy=2).take_new()} == {2}


@any_memory
@pytest.mark.parametrize("crashes", [True, False])
def test_a_requeue_with_a_delay_outlives_the_end_of_nsqd(tmp_path: Path, mem_queue_size: int, crashes: bool) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=10)
    rig.publish(*numbered(3))
    first, *others = consumer.take_new()
    consumer.requeue(first, delay_ms=10_000)
    consumer.finish(*others)
    rig.advance(ms=1000)
    rig.crash(down_ms=1000) if crashes else rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=10)
    rig.advance(ms=7_999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    again = consumer.take_one()
    assert (again.body, again.attempts) == (first.body, 2)


@any_memory
@pytest.mark.parametrize("crashes", [True, False])
def test_a_deferred_publish_outlives_the_end_of_nsqd(tmp_path: Path, mem_queue_size: int, crashes: bool) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    rig.channel()
    rig.publish(b"now")
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.crash(down_ms=1000) if crashes else rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=10)
    assert consumer.new_bodies() == [b"now"]
    rig.advance(ms=8_999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_a_due_time_that_passed_while_nsqd_was_down_is_now(rig: JournalRig) -> None:
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.crash(down_ms=20_000)
    assert rig.consumer(rdy=10).new_bodies() == [b"later"]


def test_a_wall_clock_that_is_set_does_not_move_what_is_deferred_over_a_restart(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=10)
    rig.publish(b"a")
    consumer.requeue(consumer.take_one(), delay_ms=10_000)
    rig.clock.set_wall(rig.clock.wall_ns() + 86_400 * NS_PER_SECOND)
    rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=10)
    rig.advance(ms=8_999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"a"]


@any_memory
def test_a_wall_clock_that_was_set_back_holds_no_message_longer_than_any_may_be(
    tmp_path: Path, mem_queue_size: int
) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=1)
    rig.publish(b"requeued")
    consumer.requeue(consumer.take_one(), delay_ms=1000)
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.restart(wall_ns=rig.clock.wall_ns() - 86_400 * NS_PER_SECOND)
    consumer = rig.consumer(rdy=10)
    rig.advance(ms=3_599_999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    assert sorted(consumer.new_bodies()) == [b"later", b"requeued"]


@any_memory
def test_a_message_that_timed_out_comes_again(tmp_path: Path, mem_queue_size: int) -> None:
    rig = with_memory(tmp_path, mem_queue_size)
    consumer = rig.consumer(rdy=10, msg_timeout_ms=1000)
    rig.publish(*numbered(6))
    first = consumer.take_new()
    rig.advance(ms=1000)
    again = consumer.take_new()
    assert sorted(message.body for message in again) == [message.body for message in first] == numbered(6)
    assert {message.attempts for message in again} == {2}
    assert rig.stats().timeout_count == 6
    assert consumer.finish(*again) == []
    assert rig.journaled_channel().low_water == 6


# Moving.


def test_a_channel_that_goes_back_delivers_again_as_if_for_the_first_time(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(10))
    consumer.finish(*consumer.take_new())
    rig.journaled_channel().seek(6)
    again = consumer.take_new()
    assert [message.body for message in again] == numbered(4, first=6)
    assert {message.attempts for message in again} == {1}


def test_a_channel_goes_back_to_a_moment(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(3))
    rig.advance(ms=5000)
    moment_ns = rig.clock.wall_ns()
    rig.publish(*numbered(3, first=3))
    rig.advance(ms=5000)
    rig.publish(*numbered(3, first=6))
    consumer.finish(*consumer.take_new())
    rig.journaled_channel().seek(rig.journaled_topic().offset_at(moment_ns))
    assert consumer.new_bodies() == numbered(6, first=3)


def test_one_channel_goes_back_and_the_others_stay(rig: JournalRig) -> None:
    moved, other = Consumer(rig.channel("moved"), rdy=100), Consumer(rig.channel("other"), rdy=100)
    rig.publish(*numbered(5))
    drain(moved)
    drain(other)
    rig.journaled_channel("moved").seek(0)
    assert (moved.new_bodies(), other.new_bodies()) == (numbered(5), [])


def test_what_is_in_flight_is_forgotten_when_a_channel_is_moved(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=3)
    rig.publish(*numbered(10))
    held = consumer.take_new()
    rig.journaled_channel().seek(9)
    last = consumer.take_one()
    assert last.body == numbered(10)[9]
    assert consumer.finish(*held) == [message.id for message in held]
    assert consumer.finish(last) == []
    assert rig.stats().depth == 0


@pytest.mark.parametrize("offset", [-5, 0, 4, 10, 99])
def test_a_channel_can_be_moved_no_further_than_there_is(rig: JournalRig, offset: int) -> None:
    rig.channel()
    rig.publish(*numbered(10))
    rig.journaled_channel().seek(offset)
    expected = numbered(10)[min(max(offset, 0), 10) :]
    assert rig.stats().depth == len(expected)
    rig.publish(b"new")
    assert [message.body for message in drain(rig.consumer(rdy=100))] == [*expected, b"new"]


def test_a_move_outlives_a_crash_once_it_is_saved(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=100)
    rig.publish(*numbered(10))
    consumer.finish(*consumer.take_new())
    consumer.leave()
    rig.journaled_channel().seek(4)
    rig.advance(ms=1000)
    rig.crash()
    assert rig.stats().depth == 6


def test_the_caller_of_a_move_is_told_when_it_is_saved(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(10))
    rig.slow_disk.is_slow = True
    told: list[Exception | None] = []
    rig.journaled_channel().seek(4)
    rig.journaled_channel().when_saved(told.append)
    rig.journaled_channel().when_saved(told.append)
    assert told == []
    rig.slow_disk.work_off()
    assert told == [None, None]
    rig.crash()
    assert rig.stats().depth == 6


def test_an_emptied_channel_stays_empty_over_a_crash_once_it_is_saved(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=3)
    rig.publish(*numbered(10))
    consumer.requeue(consumer.take_new()[0], delay_ms=5000)
    rig.channel().empty()
    assert (rig.stats().depth, rig.stats().in_flight_count, rig.stats().deferred_count) == (0, 0, 0)
    rig.publish(b"new")
    rig.advance(ms=1000)
    rig.crash()
    assert [message.body for message in drain(rig.consumer(rdy=100))] == [b"new"]


@pytest.mark.parametrize("mem_queue_size", [0, 1000])
def test_a_message_deferred_for_a_channel_comes_when_it_is_due_whether_the_channel_lags_or_not(
    tmp_path: Path, mem_queue_size: int
) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=mem_queue_size)
    rig.channel()
    rig.publish(b"first")
    rig.publish_deferred(b"later", delay_ms=1000)
    assert (rig.stats().message_count, rig.journaled_channel().lag) == (2, 2)
    consumer = rig.consumer(rdy=10)
    assert consumer.new_bodies() == [b"first"]
    rig.publish(b"second")
    assert consumer.new_bodies() == [b"second"]
    rig.advance(ms=999)
    assert consumer.new_bodies() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]
    consumer.finish(*consumer.received)
    assert (rig.stats().depth, rig.journaled_channel().lag, rig.journaled_channel().low_water) == (0, 0, 3)


def test_a_deferred_message_counts_as_seen_by_a_channel_that_keeps_up(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path)
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=1000)
    assert (rig.journaled_channel().lag, rig.stats().depth, rig.stats().deferred_count) == (1, 0, 1)


def test_a_channel_that_is_put_beyond_what_it_may_see_leaves_out_what_comes_before(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path)
    consumer = rig.consumer(rdy=10)
    rig.topic().pause()
    rig.publish(b"a", b"b", b"c")
    rig.journaled_channel().seek(2)
    rig.topic().unpause()
    assert consumer.new_bodies() == [b"c"]
