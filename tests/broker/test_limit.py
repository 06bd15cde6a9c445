"""What may wait in a topic and its channels: refused, dropped or expired beyond the limits, and always counted."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.error import GateClosedError, MessageNotInFlightError, TopicFullError
from emberq.broker.limit import PORTION_COUNT, TopicLimits, WhenFull
from emberq.broker.store import SyncMode
from emberq.wire.parameter import ProducerSequence
from tests.broker.dead_letters import fail, give_up_after
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Rig, numbered, published
from tests.support.examples import examples

SECOND_MS = 1000


class Start(Protocol):
    """Starts a broker with these limits."""

    def __call__(self, limits: TopicLimits, *, mem_queue_size: int = 10_000) -> Rig: ...


@pytest.fixture(params=["classic", "journaled"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """For behaviour that both kinds of topic have."""
    kind: type[Rig] = Rig if request.param == "classic" else JournalRig
    with ExitStack() as stack:

        def start(limits: TopicLimits, *, mem_queue_size: int = 10_000) -> Rig:
            return stack.enter_context(kind(folder=tmp_path, limits=limits, mem_queue_size=mem_queue_size))

        yield start


def drain(rig: Rig, channel: str = "c") -> list[bytes]:
    """The bodies that a new consumer of the channel gets, in any order: those in memory and on disk take turns."""
    consumer = Consumer(rig.channel(channel), rdy=2500)
    bodies: list[bytes] = []
    for _ in range(100):
        new = consumer.take_new()
        bodies += [message.body for message in new]
        consumer.finish(*new)
        rig.run_due()
    consumer.leave()
    return sorted(bodies)


# Refuse.


def test_a_full_channel_refuses_a_publish_until_there_is_room(start: Start) -> None:
    rig = start(TopicLimits(max_depth=4), mem_queue_size=2)
    rig.channel("slow")
    rig.channel("c")
    rig.publish(*numbered(3))
    with pytest.raises(TopicFullError, match="t is full: no more than 4 messages may wait"):
        rig.publish(*numbered(2, first=3))
    rig.publish(b"000003")
    with pytest.raises(TopicFullError):
        rig.publish_deferred(b"later", delay_ms=1000)
    assert rig.topic_stats().refused_count == 3
    assert drain(rig) == numbered(4)
    with pytest.raises(TopicFullError):
        rig.publish(b"the other channel is still full")
    assert drain(rig, "slow") == numbered(4)
    rig.publish(b"000004")
    assert (rig.stats().depth, rig.topic_stats().message_count) == (1, 5)


def test_a_topic_without_channels_refuses_too_and_a_restart_changes_nothing(start: Start) -> None:
    rig = start(TopicLimits(max_depth=3), mem_queue_size=2)
    rig.publish(*numbered(3))
    with pytest.raises(TopicFullError):
        rig.publish(b"four")
    rig.restart()
    with pytest.raises(TopicFullError):
        rig.publish(b"four")
    assert rig.topic_stats().depth == 3
    rig.channel("c")
    rig.run_due()
    assert drain(rig) == numbered(3)


@pytest.mark.parametrize("mem_queue_size", [0, 1, 100])
def test_bytes_are_counted_in_memory_and_on_disk_and_over_a_restart(start: Start, mem_queue_size: int) -> None:
    rig = start(TopicLimits(max_bytes=30_000), mem_queue_size=mem_queue_size)
    rig.channel("c")
    bodies = [bytes([65 + index]) * 7000 for index in range(4)]
    rig.publish(*bodies[:2])
    rig.publish(bodies[2])
    rig.restart()
    rig.publish(bodies[3])
    with pytest.raises(TopicFullError, match="no more than 30000 bytes may wait"):
        rig.publish(b"x" * 7000)
    assert drain(rig) == bodies
    assert rig.channel("c").waiting_bytes == 0
    rig.publish(b"x" * 30_000)


def test_what_is_paused_in_the_topic_counts_for_its_channels(start: Start) -> None:
    rig = start(TopicLimits(max_depth=3))
    rig.channel("c")
    rig.publish(*numbered(2))
    rig.topic().pause()
    rig.publish(b"000002")
    with pytest.raises(TopicFullError):
        rig.publish(b"too much")
    rig.topic().unpause()
    rig.run_due()
    assert rig.stats().depth == 3


def test_a_full_topic_of_a_closed_node_names_what_concerns_the_node(start: Start) -> None:
    rig = start(TopicLimits(max_depth=1))
    rig.publish(b"one")
    rig.broker.gate.reason = "the disk is nearly full"
    with pytest.raises(GateClosedError):
        rig.publish(b"two")
    assert rig.topic_stats().refused_count == 0


def test_an_ephemeral_channel_refuses_nothing(start: Start) -> None:
    rig = start(TopicLimits(max_depth=2))
    rig.channel("tail#ephemeral")
    for _ in range(3):
        rig.publish(b"a message")
    assert rig.topic_stats().refused_count == 0


def test_a_numbered_batch_that_is_stored_is_not_refused_when_it_comes_again(tmp_path: Path) -> None:
    with JournalRig(tmp_path, limits=TopicLimits(max_depth=1)) as rig:
        rig.channel("c")
        first, second = (ProducerSequence(b"p" * 16, number) for number in (1, 2))
        topic = rig.topic()
        topic.publish(*published([b"one"]), producer=first)
        with pytest.raises(TopicFullError):
            topic.publish(*published([b"two"]), producer=second)
        topic.publish(*published([b"one"]), producer=first)
        assert drain(rig) == [b"one"]
        topic.publish(*published([b"two"]), producer=second)
        assert drain(rig) == [b"two"]


def test_messages_on_their_way_to_the_disk_count(tmp_path: Path) -> None:
    with JournalRig(tmp_path, limits=TopicLimits(max_depth=2)) as rig:
        rig.channel("c")
        rig.slow_disk.is_slow = True
        rig.send(b"one", b"two")
        with pytest.raises(TopicFullError):
            rig.send(b"three")
        rig.slow_disk.is_slow = False
        rig.slow_disk.work_off()
        assert rig.stats().depth == 2


def test_dead_letters_wait_until_their_topic_has_room(start: Start) -> None:
    rig = start(TopicLimits(max_depth=2))
    rig.channel("graves", topic="dead")
    consumer = rig.consumer(rdy=2)
    give_up_after(rig, 1)
    rig.publish(*numbered(2), topic="dead")
    rig.publish(b"dies")
    fail(rig, consumer, times=2)
    rig.advance(ms=1)
    kept = rig.stats()
    assert kept.depth + kept.in_flight_count + kept.deferred_count == 1
    rig.channel("graves", topic="dead").empty()
    rig.advance(ms=600_000)
    rig.run_due()
    (letter,) = rig.channel("graves", topic="dead").peek(10)
    assert b'"dies"' in letter.body
    assert rig.stats().dead_letter_count == 1


# Drop the oldest.


@pytest.mark.parametrize("mem_queue_size", [0, 2, 100])
def test_the_oldest_messages_go_when_too_many_wait(
    start: Start, mem_queue_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(TopicLimits(max_depth=5, when_full=WhenFull.DROP_OLDEST), mem_queue_size=mem_queue_size)
    rig.channel("c")
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            rig.publish(b"%06d" % number)
            rig.advance(ms=1)
    assert (rig.stats().depth, rig.stats().dropped_count) == (5, 15)
    assert rig.topic_stats().refused_count == 0
    assert "CHANNEL(t:c): dropped its oldest 1 messages" in caplog.text
    assert len(caplog.records) == 1
    rig.restart()
    rig.run_due()
    assert drain(rig) == numbered(5, first=15)


def test_what_is_in_flight_is_not_dropped_and_comes_back(start: Start) -> None:
    rig = start(TopicLimits(max_depth=3, when_full=WhenFull.DROP_OLDEST))
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(10))
    held = consumer.take_new()
    assert [message.body for message in held] == numbered(2)
    assert (rig.stats().depth, rig.stats().in_flight_count, rig.stats().dropped_count) == (3, 2, 5)
    consumer.ready(1)
    consumer.requeue(held[0])
    assert (rig.stats().depth, rig.stats().dropped_count) == (3, 6)
    consumer.finish(held[1])
    rest = consumer.new_bodies()
    consumer.leave()
    assert rest
    assert set(rest) <= {b"000000", *numbered(3, first=7)}


def test_bytes_make_the_oldest_go(start: Start) -> None:
    rig = start(TopicLimits(max_bytes=10_000, when_full=WhenFull.DROP_OLDEST), mem_queue_size=3)
    rig.channel("c")
    for number in range(10):
        rig.publish(b"%d" % number * 3000)
        rig.advance(ms=1)
    assert rig.channel("c").waiting_bytes <= 10_000
    kept = drain(rig)
    assert kept == [b"%d" % number * 3000 for number in range(10 - len(kept), 10)]
    assert len(kept) == 3


def test_a_topic_without_channels_drops_its_oldest(start: Start) -> None:
    rig = start(TopicLimits(max_depth=5, when_full=WhenFull.DROP_OLDEST), mem_queue_size=2)
    for number in range(8):
        rig.publish(b"%06d" % number)
        rig.advance(ms=1)
    rig.publish_deferred(b"000008", delay_ms=10)
    stats = rig.topic_stats()
    assert (stats.depth, stats.dropped_count, stats.message_count) == (5, 4, 9)
    rig.restart()
    rig.channel("c")
    rig.run_due()
    rig.advance(ms=10)
    rig.run_due()
    assert drain(rig) == numbered(5, first=4)


def test_a_paused_journal_lets_no_channel_see_what_it_dropped(tmp_path: Path) -> None:
    with JournalRig(tmp_path, limits=TopicLimits(max_depth=4, when_full=WhenFull.DROP_OLDEST)) as rig:
        rig.channel("c")
        rig.topic().pause()
        rig.publish(*numbered(9))
        rig.topic().unpause()
        assert (rig.topic_stats().dropped_count, rig.stats().dropped_count) == (5, 0)
        assert drain(rig) == numbered(4, first=5)
        assert rig.journaled_topic().journal.first_offset == 0, "the journal keeps what was dropped"


def test_a_backlog_beyond_a_new_limit_goes_in_portions(start: Start) -> None:
    rig = start(TopicLimits(max_depth=10 * PORTION_COUNT, when_full=WhenFull.DROP_OLDEST), mem_queue_size=100)
    rig.channel("c")
    for _ in range(5):
        rig.publish(*numbered(PORTION_COUNT))
    rig._config = Rig(limits=TopicLimits(max_depth=7, when_full=WhenFull.DROP_OLDEST))._config
    rig.restart()
    depths = []
    for _ in range(400):
        rig.run_due()
        depths.append(rig.stats().depth)
    assert depths[-1] == 7
    steps = [before - after for before, after in zip([5 * PORTION_COUNT, *depths], depths, strict=False)]
    assert max(steps) <= PORTION_COUNT
    assert rig.stats().dropped_count == 5 * PORTION_COUNT - 7


acts = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 12)),
        st.tuples(st.just("defer"), st.sampled_from([1, 500, 20_000])),
        st.tuples(st.just("pass"), st.sampled_from([1, 1000, 11_000])),
        st.tuples(st.just("ready"), st.sampled_from([0, 1, 5])),
        st.tuples(st.sampled_from(["finish", "requeue", "pause"]), st.integers(1, 5)),
        st.tuples(st.just("restart"), st.sampled_from([1000, 5000])),
    ),
    max_size=40,
)


class Play:
    """One channel with limits, and the sum of its messages: each is kept, finished, dropped or expired."""

    def __init__(self, rig: Rig, limits: TopicLimits) -> None:
        self.rig = rig
        self.limits = limits
        self.consumer = rig.consumer()
        self.finished_count = 0
        self.restored_count = 0
        """Messages that an earlier run left."""

    def act(self, act: str, number: int) -> None:
        rig, consumer = self.rig, self.consumer
        held = consumer.received[-number:]
        match act:
            case "publish":
                rig.publish(*numbered(number))
            case "defer":
                rig.publish_deferred(b"deferred", delay_ms=number)
            case "pass":
                rig.advance(ms=number)
            case "ready":
                consumer.ready(number)
            case "finish":
                self.finished_count += len(held) - len(consumer.finish(*held))
            case "requeue":
                for message in held:
                    with suppress(MessageNotInFlightError):
                        consumer.requeue(message, delay_ms=number * 700)
            case "pause":
                rig.topic().unpause() if rig.topic().paused else rig.topic().pause()
            case "restart":
                self.restart(down_ms=number)
        rig.run_due()

    def restart(self, *, down_ms: int) -> None:
        self.rig.restart(down_ms=down_ms)
        self.consumer, self.finished_count = self.rig.consumer(), 0
        self.rig.run_due()
        self.restored_count = 0
        self.restored_count = self.missing_count()

    def missing_count(self) -> int:
        """How many messages are somewhere, but did not come since the start."""
        stats = self.rig.stats()
        here = stats.depth + stats.in_flight_count + stats.deferred_count
        gone = self.finished_count + stats.dropped_count + stats.expired_count
        return here + gone - stats.message_count - self.restored_count

    def check(self) -> None:
        stats, channel = self.rig.stats(), self.rig.channel()
        assert self.missing_count() == 0
        assert stats.depth <= self.limits.max_depth
        assert self.rig.topic_stats().depth <= self.limits.max_depth
        oldest_ns = self.rig.clock.wall_ns() - self.limits.ttl_ns
        assert all(message.timestamp_ns >= oldest_ns for message in self.consumer.take_new())
        waiting = channel.peek(100)  # of what is on disk it may show a part
        if len(waiting) == stats.depth and (type(self.rig) is Rig or not stats.backend_depth):
            assert channel.waiting_bytes == sum(len(message.body) for message in waiting)


@pytest.mark.parametrize("kind", [Rig, JournalRig])
@examples(24, deadline=None)
@given(
    acts=acts,
    max_depth=st.integers(1, 8),
    mem_queue_size=st.sampled_from([0, 3, 100]),
    ttl_s=st.sampled_from([10, 3600]),
)
def test_every_message_is_delivered_or_counted(
    kind: type[Rig], acts: list[tuple[str, int]], max_depth: int, mem_queue_size: int, ttl_s: int
) -> None:
    limits = TopicLimits(
        max_depth=max_depth, max_bytes=10**6, when_full=WhenFull.DROP_OLDEST, ttl_ns=ttl_s * NS_PER_SECOND
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        kind(folder=Path(folder), limits=limits, mem_queue_size=mem_queue_size) as rig,
    ):
        play = Play(rig, limits)
        for act, number in acts:
            play.act(act, number)
            play.check()


# Time to live.


@pytest.mark.parametrize("mem_queue_size", [0, 2, 100])
def test_an_old_message_goes_without_a_consumer(start: Start, mem_queue_size: int) -> None:
    rig = start(TopicLimits(ttl_ns=60 * NS_PER_SECOND), mem_queue_size=mem_queue_size)
    rig.channel("c")
    rig.publish(*numbered(10))
    rig.advance(ms=50 * SECOND_MS)
    rig.publish(*numbered(10, first=10))
    assert (rig.stats().depth, rig.stats().expired_count) == (20, 0)
    for _ in range(16):
        rig.advance(ms=SECOND_MS)
    assert (rig.stats().depth, rig.stats().expired_count) == (10, 10)
    rig.restart(down_ms=20 * SECOND_MS)
    rig.publish(b"young")
    for _ in range(30):
        rig.advance(ms=SECOND_MS)
    assert (rig.stats().depth, rig.stats().expired_count) == (1, 10)
    assert drain(rig) == [b"young"]


def test_an_old_message_is_not_delivered_any_more(start: Start) -> None:
    """Also one that was tried before, or deferred: its age counts from when it was published."""
    rig = start(TopicLimits(ttl_ns=60 * NS_PER_SECOND))
    consumer = rig.consumer(rdy=2, msg_timeout_ms=600_000)
    rig.publish(b"requeued", b"finished late")
    requeued, late = consumer.take_new()
    rig.publish_deferred(b"due in time", delay_ms=59 * SECOND_MS)
    rig.publish_deferred(b"due too late", delay_ms=61 * SECOND_MS)
    consumer.requeue(requeued, delay_ms=70 * SECOND_MS)
    rig.advance(ms=59 * SECOND_MS)
    in_time = consumer.take_one()
    assert in_time.body == b"due in time"
    rig.advance(ms=20 * SECOND_MS)
    consumer.finish(in_time)
    assert consumer.new_bodies() == []
    assert (rig.stats().depth, rig.stats().deferred_count, rig.stats().expired_count) == (0, 0, 2)
    assert consumer.finish(late) == [], "what is in flight stays there"
    assert rig.stats().in_flight_count == 0


def test_a_topic_without_channels_forgets_what_is_too_old(start: Start) -> None:
    rig = start(TopicLimits(ttl_ns=60 * NS_PER_SECOND), mem_queue_size=3)
    rig.publish(*numbered(10))
    rig.advance(ms=30 * SECOND_MS)
    rig.publish(b"young")
    for _ in range(45):
        rig.advance(ms=SECOND_MS)
    stats = rig.topic_stats()
    assert (stats.depth, stats.expired_count) == (1, 10)
    rig.channel("c")
    rig.run_due()
    assert drain(rig) == [b"young"]


def test_a_long_journal_expires_in_one_go_without_being_read(tmp_path: Path) -> None:
    limits = TopicLimits(ttl_ns=60 * NS_PER_SECOND)
    with JournalRig(tmp_path, limits=limits, sync=SyncMode.NEVER, mem_queue_size=0) as rig:
        rig.channel("c")
        for _ in range(4):
            rig.publish(*numbered(2 * PORTION_COUNT))
        rig.advance(ms=30 * SECOND_MS)
        rig.publish(b"young")
        rig.advance(ms=31 * SECOND_MS)
        rig.advance(ms=10 * SECOND_MS)
        assert (rig.stats().depth, rig.stats().expired_count) == (1, 8 * PORTION_COUNT)
        assert drain(rig) == [b"young"]


def test_old_messages_that_were_tried_before_go_from_a_journal_too(tmp_path: Path) -> None:
    """Memory has no room for them: only their offsets are kept."""
    with JournalRig(tmp_path, limits=TopicLimits(ttl_ns=60 * NS_PER_SECOND), mem_queue_size=0) as rig:
        consumer = rig.consumer(rdy=20)
        rig.publish(*numbered(20))
        consumer.ready(0)
        for message in consumer.take_new():
            consumer.requeue(message)
        assert (rig.stats().depth, rig.stats().expired_count) == (20, 0)
        rig.advance(ms=61 * SECOND_MS)
        rig.advance(ms=10 * SECOND_MS)
        assert (rig.stats().depth, rig.stats().expired_count) == (0, 20)
        journal = rig.topic_stats().journal
        assert journal is not None
        assert journal.lag == 0


# The size of a journal.


def test_a_journal_may_have_a_limit_of_its_own(tmp_path: Path) -> None:
    limits = TopicLimits(journal_max_bytes=200_000)
    with JournalRig(tmp_path, limits=limits, segment_bytes=50_000, sync=SyncMode.NEVER) as rig:
        rig.channel("forgotten")
        for _ in range(40):
            rig.publish(bytes(10_000))
        rig.advance(ms=10_000)
        journal = rig.topic_stats().journal
        assert journal is not None
        assert journal.size_bytes <= 250_000
