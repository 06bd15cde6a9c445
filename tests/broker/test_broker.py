"""The broker: topics come and go, listeners hear of it, and a restart brings them back."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.broker.broker import PORTION_CHANNELS, TopologyChange
from emberq.broker.error import ExitingError, StoreError
from emberq.broker.topic import Topic
from emberq.storage.data_folder import ChannelMeta, ChannelPolicy, Metadata, TopicMeta
from tests.broker.dead_letters import fail
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Rig, numbered, published
from tests.broker.simulated_disk import REFUSAL


class Listener:
    """Records the changes it is told of."""

    def __init__(self, rig: Rig) -> None:
        self.changes: list[tuple[str, str | None, bool]] = []
        rig.broker.add_listener(self._note)

    def _note(self, change: TopologyChange) -> None:
        self.changes.append((change.topic, change.channel, change.exists))


# Topics.


@pytest.mark.conformance(116)
def test_a_topic_is_found_by_its_name() -> None:
    rig = Rig()
    topic = rig.broker.topic("t")
    assert rig.broker.topic("t") is topic
    assert rig.broker.find_topic("t") is topic
    assert rig.broker.topic("u") is not topic
    assert rig.broker.find_topic("v") is None


@pytest.mark.conformance(118)
def test_a_deleted_topic_takes_its_channels_and_files_with_it(tmp_path: Path) -> None:
    with Rig(folder=tmp_path, mem_queue_size=0) as rig:
        consumer = rig.consumer(rdy=1)
        rig.publish(*numbered(3))
        rig.topic().pause()
        rig.publish(*numbered(3))
        rig.publish_deferred(b"later", delay_ms=1000)
        assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"t", "t:c"}
        rig.broker.delete_topic("t")
        assert consumer.closed
        assert rig.broker.find_topic("t") is None
        assert list(tmp_path.iterdir()) == []


def test_a_topic_made_again_starts_empty() -> None:
    rig = Rig(mem_queue_size=1)
    rig.channel()
    rig.publish(*numbered(3))
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.broker.delete_topic("t")
    consumer = rig.consumer(rdy=9)
    rig.advance(ms=5000)
    assert consumer.received == []
    assert rig.topic_stats().message_count == 0


def test_a_topic_that_does_not_exist_cannot_be_deleted() -> None:
    with pytest.raises(KeyError):
        Rig().broker.delete_topic("t")


def test_a_snapshot_lists_topics_by_name() -> None:
    rig = Rig()
    for name in ("b", "a", "c"):
        rig.topic(name)
    assert [topic.name for topic in rig.broker.snapshot()] == ["a", "b", "c"]


# Ephemeral topics and channels.


@pytest.mark.conformance(120)
def test_an_ephemeral_channel_goes_with_its_last_consumer_and_takes_its_topic_along() -> None:
    rig = Rig()
    channel = rig.channel("c#ephemeral", topic="t#ephemeral")
    first, last = Consumer(channel), Consumer(channel)
    first.leave()
    rig.broker.leave(channel)
    assert rig.broker.find_topic("t#ephemeral") is not None
    last.leave()
    rig.broker.leave(channel)
    assert rig.broker.find_topic("t#ephemeral") is None


def test_an_ephemeral_channel_of_a_normal_topic_goes_alone() -> None:
    rig = Rig()
    consumer = Consumer(rig.channel("c#ephemeral"))
    consumer.leave()
    rig.broker.leave(consumer.channel)
    assert rig.topic().channels == {}


def test_a_normal_channel_stays_without_consumers() -> None:
    rig = Rig()
    consumer = rig.consumer()
    consumer.leave()
    rig.broker.leave(consumer.channel)
    assert rig.topic().find_channel("c") is consumer.channel


def test_an_ephemeral_channel_that_never_had_a_consumer_stays() -> None:
    rig = Rig()
    channel = rig.channel("c#ephemeral", topic="t#ephemeral")
    rig.advance(ms=1_000_000)
    assert rig.broker.topic("t#ephemeral").find_channel("c#ephemeral") is channel


def test_an_ephemeral_topic_that_never_had_a_channel_stays() -> None:
    rig = Rig(mem_queue_size=2)
    rig.publish(*numbered(5), topic="t#ephemeral")
    assert (rig.topic_stats("t#ephemeral").depth, rig.topic_stats("t#ephemeral").message_count) == (2, 5)


def test_an_ephemeral_topic_goes_when_its_last_channel_is_deleted() -> None:
    rig = Rig()
    topic = rig.topic("t#ephemeral")
    topic.channel("one")
    topic.channel("two")
    topic.delete_channel("one")
    assert rig.broker.find_topic("t#ephemeral") is topic
    topic.delete_channel("two")
    assert rig.broker.find_topic("t#ephemeral") is None


def test_a_consumer_of_a_deleted_channel_does_not_take_the_next_one_along() -> None:
    rig = Rig()
    old = Consumer(rig.channel("c#ephemeral"))
    rig.topic().delete_channel("c#ephemeral")
    new = rig.channel("c#ephemeral")
    old.leave()
    rig.broker.leave(old.channel)
    assert rig.topic().find_channel("c#ephemeral") is new


# Listeners.


def test_listeners_hear_of_every_topic_and_channel_that_comes_or_goes() -> None:
    rig = Rig()
    listener = Listener(rig)
    rig.channel("one")
    rig.channel("two")
    rig.topic().delete_channel("one")
    rig.broker.delete_topic("t")
    assert listener.changes == [
        ("t", None, True),
        ("t", "one", True),
        ("t", "two", True),
        ("t", "one", False),
        ("t", "two", False),
        ("t", None, False),
    ]


def test_what_a_listener_hears_of_is_already_so() -> None:
    rig = Rig()
    names: list[list[str]] = []
    rig.broker.add_listener(lambda _: names.append([topic.name for topic in rig.broker.metadata("test").topics]))
    rig.topic("t")
    rig.broker.delete_topic("t")
    assert names == [["t"], []]


def test_an_ephemeral_topic_says_good_bye_once() -> None:
    rig = Rig()
    channel = rig.channel("c#ephemeral", topic="t#ephemeral")
    consumer = Consumer(channel)
    listener = Listener(rig)
    consumer.leave()
    rig.broker.leave(channel)
    assert listener.changes == [("t#ephemeral", "c#ephemeral", False), ("t#ephemeral", None, False)]


@pytest.mark.conformance(126)
def test_listeners_do_not_hear_of_what_is_loaded() -> None:
    rig = Rig()
    listener = Listener(rig)
    rig.broker.load(Metadata(topics=(TopicMeta("t", channels=(ChannelMeta("c"),)),)))
    assert listener.changes == []
    rig.channel("new")
    assert listener.changes == [("t", "new", True)]


# Restarts.


@pytest.mark.conformance(128)
def test_pauses_are_remembered() -> None:
    rig = Rig()
    rig.channel("runs")
    rig.channel("stands").pause()
    rig.topic("paused").pause()
    rig.topic("paused").channel("c")
    assert rig.broker.metadata("1.0") == Metadata(
        topics=(
            TopicMeta("t", channels=(ChannelMeta("runs"), ChannelMeta("stands", paused=True))),
            TopicMeta("paused", paused=True, channels=(ChannelMeta("c"),)),
        ),
        version="1.0",
    )
    rig.restart()
    assert [rig.stats(name).paused for name in ("runs", "stands")] == [False, True]
    assert [rig.topic_stats(name).paused for name in ("t", "paused")] == [False, True]
    rig.channel("stands").unpause()
    rig.topic("paused").unpause()
    assert not any(channel.paused for topic in rig.broker.metadata("1.0").topics for channel in topic.channels)
    assert not any(topic.paused for topic in rig.broker.metadata("1.0").topics)


def test_ephemeral_topics_and_channels_are_not_remembered() -> None:
    rig = Rig()
    rig.channel("c#ephemeral")
    rig.channel("c", topic="t#ephemeral")
    assert rig.broker.metadata("1.0").topics == (TopicMeta("t"),)


def test_every_loaded_channel_gets_what_waited_in_the_topic() -> None:
    rig = Rig()
    rig.publish(*numbered(3))
    rig.broker.close()
    again = Rig()
    again.disk.files["t"] = rig.disk.files["t"]
    channels = (ChannelMeta("one"), ChannelMeta("two", paused=True), ChannelMeta("three"))
    again.broker.load(Metadata(topics=(TopicMeta("t", channels=channels),)))
    assert [again.stats(name).depth for name in ("one", "two", "three")] == [3, 3, 3]
    assert again.topic_stats().depth == 0


def test_a_topic_loaded_paused_keeps_what_waits_in_it() -> None:
    rig = Rig()
    rig.channel()
    rig.topic().pause()
    rig.publish(*numbered(3))
    rig.restart()
    assert (rig.topic_stats().depth, rig.stats().depth) == (3, 0)
    rig.topic().unpause()
    assert (rig.topic_stats().depth, rig.stats().depth) == (0, 3)


def test_names_that_are_not_valid_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    channels = (ChannelMeta("bad channel"), ChannelMeta("good"))
    rig.broker.load(Metadata(topics=(TopicMeta("bad$topic"), TopicMeta("t", channels=channels))))
    assert [topic.name for topic in rig.broker.snapshot()] == ["t"]
    assert list(rig.topic().channels) == ["good"]
    assert "skipping creation of invalid topic bad$topic" in caplog.messages
    assert "skipping creation of invalid channel bad channel" in caplog.messages


def test_a_closed_broker_takes_nothing_more() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.broker.close()
    assert consumer.closed
    for refused in (lambda: rig.publish(b"x"), lambda: rig.topic("new"), lambda: rig.channel("new")):
        with pytest.raises(ExitingError, match=r"^exiting$"):
            refused()


def test_a_closed_broker_does_not_ring_any_more() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x", b"y")
    rig.publish_deferred(b"later", delay_ms=500)
    rig.broker.close()
    before = list(rig.disk.files["t:c"])
    rig.advance(ms=10_000)
    assert len(consumer.received) == 1
    assert list(rig.disk.files["t:c"]) == before


def test_an_ephemeral_channel_of_a_closed_broker_is_left_alone() -> None:
    rig = Rig()
    consumer = Consumer(rig.channel("c#ephemeral", topic="t#ephemeral"))
    listener = Listener(rig)
    rig.broker.close()
    rig.broker.leave(consumer.channel)
    assert listener.changes == []


def test_the_health_is_that_of_the_last_write_of_any_queue() -> None:
    rig = Rig(mem_queue_size=0)
    rig.disk.room["t"] = 0
    with pytest.raises(StoreError, match="no space left"):
        rig.publish(b"x")
    assert rig.broker.health == REFUSAL
    rig.publish(b"x", topic="other")
    assert rig.broker.health is None


def test_every_failed_write_and_the_first_good_one_after_it_are_reported() -> None:
    rig = Rig(mem_queue_size=0)
    reports: list[str | None] = []
    rig.broker.on_health = reports.append
    rig.publish(b"x")
    assert reports == []
    rig.disk.room["t"] = 0
    for _ in range(2):
        with pytest.raises(StoreError, match="no space left"):
            rig.publish(b"x")
    del rig.disk.room["t"]
    rig.publish(b"x")
    rig.publish(b"x")
    assert reports == [REFUSAL, REFUSAL, None]


def test_a_policy_holds_and_is_shown_until_its_channel_is_deleted() -> None:
    rig = Rig()
    channel, policy = rig.channel(), ChannelPolicy(max_attempts=1, dead_letter_topic="dead")
    assert rig.broker.policy(channel) is None
    rig.broker.set_policy(channel, policy)
    assert rig.broker.policy(channel) == policy
    consumer = Consumer(channel, rdy=1)
    rig.publish(b"x")
    fail(rig, consumer, times=2)
    assert rig.topic_stats("dead").depth == 1
    rig.topic().delete_channel("c")
    assert rig.broker.policy(rig.channel()) is None


def test_messages_can_be_published_to_a_topic_by_its_name() -> None:
    rig = Rig()
    rig.broker.publish_to("u", *published([b"a", b"bb"]))
    assert (rig.topic_stats("u").message_count, rig.topic_stats("u").message_bytes) == (2, 3)


def test_topics_are_named_with_their_channels() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.channel(name)
    rig.topic("u")
    assert rig.broker.names() == (("t", ("a", "b")), ("u", ()))


# Deleting a topic with many channels.


def wide_topic(rig: Rig, *, channel_count: int) -> Topic:
    """The topic `t` with channels `c0`, `c1`, ..., each of which holds a message on disk."""
    topic = rig.topic()
    for number in range(channel_count):
        topic.channel(f"c{number}")
    rig.publish(b"old")
    return topic


def test_a_deleted_topic_is_out_of_sight_at_once_and_its_channels_go_in_portions() -> None:
    with Rig(mem_queue_size=0) as rig:
        topic = wide_topic(rig, channel_count=2 * PORTION_CHANNELS + 1)
        consumer = Consumer(topic.channel("c32"))
        deletion = rig.broker.delete_topic("t")
        settled: list[Exception | None] = []
        deletion.when_settled(settled.append)
        assert rig.broker.find_topic("t") is None
        assert rig.broker.snapshot() == ()
        left = [len(topic.channels)]
        while not settled:
            rig.run_due()
            left.append(len(topic.channels))
        assert left == [PORTION_CHANNELS + 1, 1, 0]
        assert settled == [None]
        assert consumer.closed
        assert rig.disk.files == {}


def test_a_topic_that_is_being_deleted_is_in_the_metadata_until_the_last_channel_is_gone() -> None:
    with Rig(mem_queue_size=0) as rig:
        wide_topic(rig, channel_count=PORTION_CHANNELS + 1)
        rig.broker.delete_topic("t")
        (topic,) = rig.broker.metadata("1").topics
        assert (topic.name, len(topic.channels)) == ("t", 1)
        rig.run_due()
        assert rig.broker.metadata("1").topics == ()


def test_a_topic_created_while_one_of_its_name_is_being_deleted_keeps_its_messages(tmp_path: Path) -> None:
    with Rig(folder=tmp_path, mem_queue_size=0) as rig:
        changes: list[TopologyChange] = []
        wide_topic(rig, channel_count=2 * PORTION_CHANNELS)
        rig.broker.delete_topic("t")
        rig.broker.add_listener(changes.append)
        last = f"c{2 * PORTION_CHANNELS - 1}"
        channel = rig.channel(last)
        assert channel.depth == 0, "what the old channel held is gone"
        rig.publish(b"new")
        rig.run_due()
        assert [message.body for message in channel.peek(10)] == [b"new"]
        gone = {change.channel for change in changes if not change.exists}
        assert None not in gone, "the topic's name is in use again"
        assert last not in gone
        assert len(gone) == PORTION_CHANNELS - 1
        rig.restart()
        assert [message.body for message in rig.channel(last).peek(10)] == [b"new"]
        assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"t", f"t:{last}"}


def test_a_journaled_topic_created_right_after_one_of_its_name_was_deleted_keeps_its_journal(tmp_path: Path) -> None:
    with JournalRig(tmp_path) as rig:
        wide_topic(rig, channel_count=2 * PORTION_CHANNELS)
        rig.broker.delete_topic("t")
        channel = rig.channel(f"c{2 * PORTION_CHANNELS - 1}")
        rig.publish(b"new")
        rig.run_due()
        assert [message.body for message in channel.peek(10)] == [b"new"]
        rig.restart()
        assert [message.body for message in rig.channel(channel.name).peek(10)] == [b"new"]


def test_closing_deletes_the_rest_of_a_topic_that_is_being_deleted(tmp_path: Path) -> None:
    with Rig(folder=tmp_path, mem_queue_size=0) as rig:
        wide_topic(rig, channel_count=2 * PORTION_CHANNELS)
        rig.broker.delete_topic("t")
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_topic_takes_the_policies_of_its_channels_along_at_once() -> None:
    with Rig() as rig:
        topic = wide_topic(rig, channel_count=PORTION_CHANNELS + 1)
        rig.channel("kept", topic="u")
        policy = ChannelPolicy(max_attempts=2, dead_letter_topic="dead")
        for channel in [*topic.channels.values(), rig.channel("kept", topic="u")]:
            rig.broker.set_policy(channel, policy)
        rig.broker.delete_topic("t")
        assert [entry.channel for entry in rig.disk.policies] == ["kept"]
        channel = rig.channel(f"c{PORTION_CHANNELS}")
        rig.broker.set_policy(channel, policy)
        rig.run_due()
        assert rig.broker.policy(channel) == policy
