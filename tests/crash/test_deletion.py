"""A topic or channel that is deleted is gone or as it was, at whatever moment the process dies or the power fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.topic import Pending
from emberq.storage.error import StorageError
from tests.broker.rig import Consumer, numbered, published
from tests.crash.node import Node, NodeSettings, batches_of, new_clock
from tests.crash.simulated_files import ROOT, Choice, Fault, SimulatedFiles

BODIES = numbered(6)
CHOICES = 4
"""How many states of each moment are tried."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def started(fs: SimulatedFiles) -> Node:
    node = Node(fs, NodeSettings(), clock=new_clock())
    node.start()
    return node


def with_a_topic() -> Node:
    """The topic `j` with six messages, two of which the channel `c` has finished; all of it is on the disk."""
    node = started(SimulatedFiles())
    topic = node.broker.topic("j")
    channel = topic.channel("c")
    assert isinstance(channel, JournaledChannel)
    consumer = Consumer(channel, rdy=2)
    topic.channel("d")
    assert node.settled(topic.publish(*published(BODIES))) is None
    consumer.finish(*consumer.take_new())
    consumer.leave()
    node.advance(ms=70_000)  # what came when it had finished the first two times out
    channel.when_saved(lambda _failure: None)
    node.settle()
    node.metadata_file.save()
    return node


def told(node: Node, pending: Pending | None) -> list[int]:
    """At which moment the caller is told that it is done; let everything happen that follows."""
    moments: list[int] = []
    assert pending is not None
    pending.when_settled(lambda failure: moments.append(node.fs.moment) if failure is None else None)
    node.settle()
    node.advance(ms=20_000)
    node.settle()
    return moments


def states(fs: SimulatedFiles, *, since: int) -> Iterator[tuple[int, Node]]:
    """What may be left at each moment from `since` on, as the next run finds it."""
    for moment in range(since, fs.moment + 1):
        yield moment, started(fs.killed(moment, Choice(moment)))
        for number in range(CHOICES):
            yield moment, started(fs.power_cut(moment, Choice(moment * CHOICES + number)))


def is_whole(node: Node) -> bool:
    """Whether the topic is as it was; False if it is gone. Anything else is an error."""
    topic = node.journaled_topic("j")
    if topic is None:
        assert not node.fs.exists(ROOT / "j.journal")
        return False
    assert [body for batch in batches_of(topic) for body in batch.messages()] == BODIES
    depths = {name: channel.depth for name, channel in topic.channels.items()}
    assert depths == {"c": 4, "d": 6}
    return True


def test_a_topic_is_gone_or_whole_at_every_moment_of_its_deletion_and_gone_when_that_is_answered() -> None:
    node = with_a_topic()
    since = node.fs.moment
    (answered,) = told(node, node.broker.delete_topic("j"))
    found = [(moment, is_whole(left)) for moment, left in states(node.fs, since=since)]
    assert not any(is_there for moment, is_there in found if moment >= answered)
    assert {is_there for _, is_there in found} == {True, False}


def test_a_deleted_topic_leaves_no_file() -> None:
    node = with_a_topic()
    told(node, node.broker.delete_topic("j"))
    assert [name for name in node.fs.names(ROOT) if name.startswith("j")] == []
    for _, left in states(node.fs, since=node.fs.moment):
        left.settle()
        assert [name for name in left.fs.names(ROOT) if name.startswith("j")] == []


def test_a_topic_that_cannot_be_deleted_stays_and_can_be_used() -> None:
    node = with_a_topic()
    node.fs.faults.append(Fault("rename", suffix=".journal"))
    with pytest.raises(StorageError, match="the journal of j cannot be removed"):
        node.broker.delete_topic("j")
    topic = node.journaled_topic("j")
    assert topic is not None
    assert node.settled(topic.publish(*published([b"more"]))) is None
    assert [channel.depth for channel in topic.channels.values()] == [5, 7]


def test_a_topic_whose_deletion_cannot_be_synced_is_gone_or_whole_and_its_caller_is_told() -> None:
    node = with_a_topic()
    since = node.fs.moment
    node.fs.faults.append(Fault("sync_folder", suffix=ROOT.name, count=10))
    assert told(node, node.broker.delete_topic("j")) == []
    found = {is_whole(left) for _, left in states(node.fs, since=since)}
    assert found == {True, False}


def channel_depth(node: Node) -> int | None:
    """How many messages the channel `c` has to give; None if it is gone. The other channel is there."""
    topic = node.journaled_topic("j")
    assert topic is not None
    assert topic.channels["d"].depth == 6
    channel = topic.find_channel("c")
    return None if channel is None else channel.depth


def test_a_channel_is_gone_or_whole_at_every_moment_of_its_deletion_and_gone_when_that_is_answered() -> None:
    node = with_a_topic()
    since = node.fs.moment
    (answered,) = told(node, node.broker.topic("j").delete_channel("c"))
    found = [(moment, channel_depth(left)) for moment, left in states(node.fs, since=since)]
    assert all(depth is None for moment, depth in found if moment >= answered)
    assert {depth for _, depth in found} == {4, None}


def test_a_channel_that_cannot_be_deleted_stays_and_can_be_used() -> None:
    node = with_a_topic()
    node.fs.faults.append(Fault("unlink", suffix=".cursor"))
    with pytest.raises(StorageError, match="remove"):
        node.broker.topic("j").delete_channel("c")
    channel = node.broker.topic("j").find_channel("c")
    assert isinstance(channel, JournaledChannel)
    assert len(Consumer(channel, rdy=10).take_new()) == 4


def test_a_channel_whose_deletion_cannot_be_synced_is_told() -> None:
    node = with_a_topic()
    node.fs.faults.append(Fault("sync_folder", suffix="cursors"))
    assert told(node, node.broker.topic("j").delete_channel("c")) == []
