"""What clients publish in one turn of the loop becomes one batch, and each hears what became of its part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.broker.broker import Broker
from emberq.broker.store import DiskStore
from emberq.broker.topic import TopicConfig
from emberq.nsqd.publishing import ALONE_COUNT, MAX_GATHERED_BYTES, MAX_UNTOLD_BYTES, MAX_UNTOLD_REPLIES, PublishBatcher
from emberq.storage.backend import DiskLimits
from emberq.storage.disk_queue_sync import Syncer
from emberq.wire.command import Publish


class Client:
    """A publisher that remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        self.heard.append((topic, count, reply_count))

    def refused(self, verb: bytes, refusal: Exception) -> None:
        self.heard.append((verb, str(refusal)))

    def promised(self) -> Client:
        """Whatever it is told, it is told itself."""
        return self


class Turns:
    """An event loop that only knows `call_soon`."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def end(self) -> None:
        callbacks = list(self.callbacks)
        self.callbacks.clear()
        for callback in callbacks:
            callback()


def message(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def mpub(topic: str, *bodies: bytes) -> Publish:
    parts = [message(body) for body in bodies]
    ends = [sum(map(len, parts[: index + 1])) for index in range(len(parts))]
    return Publish(b"MPUB", topic, b"".join(parts), ends, 1)


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    clock, timers = ManualClock(), Timers()
    syncer = Syncer(clock=clock, timers=timers, inline=True)
    store = DiskStore(tmp_path, limits=DiskLimits(), syncer=syncer)
    return Broker(config=TopicConfig(), store=store, clock=clock, timers=timers)


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def noted() -> list[int]:
    """How many bytes the batcher says were published, each time."""
    return []


@pytest.fixture
def intake(broker: Broker, turns: Turns, noted: list[int]) -> PublishBatcher:
    return PublishBatcher(broker, turns.callbacks.append, noted.append)


def bodies_in(broker: Broker, topic: str) -> list[bytes]:
    return [peeked.body for peeked in broker.topic(topic).channel("c").peek(100)]


def test_nobody_is_answered_before_the_turn_ends(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    client = Client()
    intake.add_single(client, b"PUB", "t", message(b"x"))
    assert (client.heard, broker.find_topic("t")) == ([], None)
    turns.end()
    assert client.heard == [("t", 1, 1)]
    assert bodies_in(broker, "t") == [b"x"]


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 2, 3)])
def test_all_of_a_turn_arrives_in_its_order(
    broker: Broker, turns: Turns, intake: PublishBatcher, sizes: tuple[int, ...]
) -> None:
    clients = [Client() for _ in sizes]
    bodies = [bytes([65 + index]) * size for index, size in enumerate(sizes)]
    for client, body in zip(clients, bodies, strict=True):
        intake.add_single(client, b"PUB", "t", message(body))
    turns.end()
    assert bodies_in(broker, "t") == bodies
    assert [client.heard for client in clients] == [[("t", 1, 1)]] * len(sizes)


def test_single_messages_and_batches_go_together(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    first, second, third = Client(), Client(), Client()
    intake.add_single(first, b"PUB", "t", message(b"one"))
    intake.add(second, mpub("t", b"two", b"three"))
    intake.add_single(third, b"PUB", "t", message(b"four"))
    turns.end()
    assert bodies_in(broker, "t") == [b"one", b"two", b"three", b"four"]
    assert (first.heard, second.heard, third.heard) == ([("t", 1, 1)], [("t", 2, 1)], [("t", 1, 1)])


def test_each_topic_gets_its_own(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    client = Client()
    intake.add_single(client, b"PUB", "a", message(b"x"))
    intake.add_single(client, b"PUB", "b", message(b"y"))
    assert len(turns.callbacks) == 1
    turns.end()
    assert (bodies_in(broker, "a"), bodies_in(broker, "b")) == ([b"x"], [b"y"])


def test_a_refusal_reaches_everyone_in_the_batch(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    broker.gate.reason = "no room"
    single, batch = Client(), Client()
    intake.add_single(single, b"PUB", "t", message(b"x"))
    intake.add(batch, mpub("t", b"y"))
    turns.end()
    assert (single.heard, batch.heard) == ([(b"PUB", "no room")], [(b"MPUB", "no room")])


def test_every_byte_is_noted_gathered_or_not(turns: Turns, intake: PublishBatcher, noted: list[int]) -> None:
    batch = mpub("t", b"y" * 5000, b"z")
    intake.add_single(Client(), b"PUB", "t", message(b"x"))
    intake.add_deferred(Client(), "t", message(b"later"), 1000)
    turns.end()
    intake.publish(Client(), batch)
    assert sum(noted) == len(message(b"x")) + len(message(b"later")) + len(batch.blob)


def test_a_large_turn_is_published_in_between(broker: Broker, intake: PublishBatcher) -> None:
    client = Client()
    large = message(b"x" * (MAX_GATHERED_BYTES // 2))
    for _ in range(3):
        intake.add_single(client, b"PUB", "t", large)
    assert client.heard.count(("t", 1, 1)) >= 2


def test_what_is_a_batch_already_is_published_at_once_and_answered_with_the_others(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    one, other = Client(), Client()
    intake.publish(one, mpub("t", b"1", b"2"))
    intake.publish(other, mpub("t", b"3"))
    assert bodies_in(broker, "t") == [b"1", b"2", b"3"]
    assert one.heard == other.heard == []
    turns.end()
    assert one.heard == [("t", 2, 1)]
    assert other.heard == [("t", 1, 1)]
    assert turns.callbacks == []


def test_a_few_batches_of_one_publisher_are_answered_together(intake: PublishBatcher) -> None:
    client = Client()
    for body in range(MAX_UNTOLD_REPLIES):
        assert client.heard == []
        intake.publish(client, mpub("t", b"%d" % body))
    assert client.heard == [("t", MAX_UNTOLD_REPLIES, MAX_UNTOLD_REPLIES)]


def test_a_batch_is_answered_before_what_its_publisher_sent_later(turns: Turns, intake: PublishBatcher) -> None:
    client = Client()
    intake.publish(client, mpub("batch", b"1", b"2"))
    intake.add_single(client, b"PUB", "single", message(b"3"))
    turns.end()
    assert client.heard == [("batch", 2, 1), ("single", 1, 1)]


def test_what_was_gathered_is_stored_and_answered_before_a_batch_of_the_same_publisher(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    client = Client()
    intake.add_single(client, b"PUB", "t", message(b"1"))
    intake.store()
    intake.publish(client, mpub("t", b"2", b"3"))
    turns.end()
    assert bodies_in(broker, "t") == [b"1", b"2", b"3"]
    assert client.heard == [("t", 1, 1), ("t", 2, 1)]


def test_a_refused_batch_is_heard_of_behind_those_that_were_stored(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    client = Client()
    intake.publish(client, mpub("t", b"1", b"2"))
    broker.gate.reason = "no room"
    intake.publish(client, mpub("t", b"3", b"4"))
    turns.end()
    assert client.heard == [("t", 2, 1), (b"MPUB", "no room")]


def test_after_many_bytes_batches_are_answered_within_the_turn(intake: PublishBatcher) -> None:
    clients = [Client() for _ in range(1 + MAX_UNTOLD_BYTES // 100_000)]
    for client in clients:
        assert clients[0].heard == []
        intake.publish(client, mpub("t", b"x" * 100_000))
    assert all(client.heard for client in clients)


def test_a_client_that_sends_batches_alone_is_answered_at_once(turns: Turns, intake: PublishBatcher) -> None:
    client = Client()
    intake.publish(client, mpub("t", b"1", b"2"))
    turns.end()
    intake.publish(client, mpub("t", b"3", b"4"))
    assert client.heard == [("t", 2, 1), ("t", 2, 1)]
    assert turns.callbacks == []


def test_a_client_that_publishes_alone_is_answered_without_waiting_for_the_turn_to_end(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    client = Client()
    intake.add_single(client, b"PUB", "t", message(b"first"))
    turns.end()
    intake.add_single(client, b"PUB", "t", message(b"second"))
    intake.add(client, mpub("t", b"third", b"fourth"))
    assert client.heard == [("t", 1, 1), ("t", 1, 1), ("t", 2, 1)]
    assert bodies_in(broker, "t") == [b"first", b"second", b"third", b"fourth"]


def test_once_in_a_while_it_is_tried_whether_there_is_something_to_gather(turns: Turns, intake: PublishBatcher) -> None:
    client, other = Client(), Client()
    intake.add_single(client, b"PUB", "t", message(b"x"))
    turns.end()
    for _ in range(ALONE_COUNT):
        intake.add_single(client, b"PUB", "t", message(b"x"))
    intake.add_single(client, b"PUB", "t", message(b"x"))
    intake.add_single(other, b"PUB", "t", message(b"y"))
    assert other.heard == []
    turns.end()
    assert other.heard == [("t", 1, 1)]
    intake.add_single(client, b"PUB", "t", message(b"x"))
    assert len(turns.callbacks) == 1, "a turn brought two, so the next are gathered again"


def test_a_client_alone_hears_of_a_refusal(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    client = Client()
    intake.add_single(client, b"PUB", "t", message(b"x"))
    turns.end()
    broker.close()
    intake.add_single(client, b"PUB", "t", message(b"x"))
    assert client.heard == [("t", 1, 1), (b"PUB", "exiting")]


# Deferred messages.


def test_deferred_messages_of_a_turn_are_published_at_its_end(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    channel = broker.topic("t").channel("c")
    first, second = Client(), Client()
    intake.add_deferred(first, "t", message(b"x"), 1000)
    intake.add_deferred(second, "t", message(b"y"), 0)
    assert (first.heard, channel.stats().message_count, len(turns.callbacks)) == ([], 0, 1)
    turns.end()
    assert (first.heard, second.heard) == ([("t", 1, 1)], [("t", 1, 1)])
    assert (channel.stats().deferred_count, bodies_in(broker, "t")) == (1, [b"y"])


def test_a_publish_behind_a_deferred_one_is_answered_behind_it(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    client = Client()
    intake.add_deferred(client, "later", message(b"x"), 1000)
    intake.add_single(client, b"PUB", "now", message(b"y"))
    turns.end()
    intake.add_deferred(client, "later", message(b"x"), 1000)
    intake.add(client, mpub("now", b"y", b"z"))
    turns.end()
    assert client.heard == [("later", 1, 1), ("now", 1, 1), ("later", 1, 1), ("now", 2, 1)]


def test_a_deferred_message_that_is_refused(broker: Broker, turns: Turns, intake: PublishBatcher) -> None:
    broker.gate.reason = "no room"
    client = Client()
    intake.add_deferred(client, "t", message(b"x"), 1000)
    turns.end()
    assert client.heard == [(b"DPUB", "no room")]


def test_a_client_that_defers_alone_does_not_wait_for_the_turn(
    broker: Broker, turns: Turns, intake: PublishBatcher
) -> None:
    client = Client()
    intake.add_deferred(client, "t", message(b"x"), 1000)
    turns.end()
    intake.add_deferred(client, "t", message(b"x"), 1000)
    assert client.heard == [("t", 1, 1)] * 2
    assert turns.callbacks == []
