"""Dead-letter redrive against a real nsqd: what is moved, what stays, and what a failure leaves behind."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from emberq.cli.requeue_dead import DeadLetterRedrive, Publish, RedriveLimits
from emberq.client import Consumer, PublishError
from emberq.embedded import EmbeddedThread
from emberq.sync import Producer
from emberq.wire.dead_letter import DeadLetter, encode_dead_letter
from tests.support.embedded import Broker, address_of
from tests.support.raw_client import Client, Message
from tests.support.waiting import PATIENCE_S

IDLE_S = 2.0
"""Much longer than nsqd keeps a message back to send it with others, which is a quarter of a second."""


class Target:
    """Where messages are moved to."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self.bodies: list[bytes] = []
        self.addresses: set[str] = set()
        self.topics: set[str] = set()
        self._capacity = capacity

    async def publish(self, address: str, topic: str, bodies: list[bytes]) -> None:
        if len(self.bodies) + len(bodies) > self._capacity:
            raise PublishError("E_MPUB_FAILED", "full")
        self.addresses.add(address)
        self.topics.add(topic)
        self.bodies += bodies


def publish(nsq: EmbeddedThread, *bodies: bytes) -> None:
    for address in nsq.nsqd_tcp_addresses:
        with Producer(address) as producer:
            producer.publish_many("dead", bodies)


def remaining(nsq: EmbeddedThread) -> list[Message]:
    """What is in the channel, with the attempts that this one makes."""
    broker = Broker(nsq)
    with closing(Client(address_of(broker.tcp_address))) as client:
        client.sub("dead", "c")
        count = broker.counts("dead", "c").unfinished
        client.rdy(count)
        return client.read_messages(count)


async def redrive(
    nsq: EmbeddedThread, publish: Publish, limits: RedriveLimits, *, to: str | None = "alive"
) -> DeadLetterRedrive:
    steps: list[int] = []
    async with Consumer("dead", "c", nsqd_addresses=nsq.nsqd_tcp_addresses) as consumer:
        run = DeadLetterRedrive(consumer, publish, to=to, limits=limits, on_moved=steps.append)
        await run.run()
    assert sum(steps) == run.moved_count
    return run


async def test_everything_is_moved_and_it_ends_by_itself(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"3")
    target = Target()
    assert (await redrive(nsq, target.publish, RedriveLimits(idle_s=IDLE_S))).moved_count == 3
    assert target.bodies == [b"1", b"2", b"3"]
    assert remaining(nsq) == []


@pytest.mark.nsq(nsqd_count=2)
async def test_each_message_goes_to_the_nsqd_that_it_came_from(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2")
    target = Target()
    await redrive(nsq, target.publish, RedriveLimits(idle_s=PATIENCE_S, count=4))
    assert target.addresses == set(nsq.nsqd_tcp_addresses)
    assert sorted(target.bodies) == [b"1", b"1", b"2", b"2"]


async def test_no_more_are_moved_than_asked_for(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"3", b"4")
    target = Target()
    assert (await redrive(nsq, target.publish, RedriveLimits(idle_s=PATIENCE_S, count=3))).moved_count == 3
    assert len(remaining(nsq)) == 1


async def test_what_came_after_the_start_stays_and_does_not_come_again_and_again(nsq: EmbeddedThread) -> None:
    publish(nsq, b"old")
    start_ns = time.time_ns()
    publish(nsq, b"new")
    target = Target()
    run = await redrive(nsq, target.publish, RedriveLimits(idle_s=IDLE_S, before_ns=start_ns))
    assert (run.moved_count, run.left_count) == (1, 1)
    assert target.bodies == [b"old"]
    assert [(message.body, message.attempts) for message in remaining(nsq)] == [(b"new", 2)]


async def test_a_message_that_could_not_be_published_is_not_lost(nsq: EmbeddedThread) -> None:
    publish(nsq, b"1", b"2", b"3")
    target = Target(capacity=2)
    with pytest.raises(PublishError):
        await redrive(nsq, target.publish, RedriveLimits(idle_s=PATIENCE_S, batch_size=1))
    assert sorted([*target.bodies, *(message.body for message in remaining(nsq))]) == [b"1", b"2", b"3"]


def letter(body: bytes, *, topic: str = "origin") -> bytes:
    note = DeadLetter(topic=topic, channel="c", id="1", attempts=3, timestamp_ns=1, reason="", body=body)
    encoded = encode_dead_letter(note, max_bytes=10_000)
    assert encoded is not None
    return encoded


async def test_a_message_is_taken_out_of_its_envelope_and_sent_where_it_came_from(nsq: EmbeddedThread) -> None:
    publish(nsq, letter(b"1"), letter(b"\xff"))
    target = Target()
    assert (await redrive(nsq, target.publish, RedriveLimits(idle_s=PATIENCE_S, count=2), to=None)).moved_count == 2
    assert (target.bodies, target.topics) == ([b"1", b"\xff"], {"origin"})


async def test_a_message_is_taken_out_of_its_envelope_wherever_it_is_sent(nsq: EmbeddedThread) -> None:
    publish(nsq, letter(b"1"), b"bare")
    target = Target()
    await redrive(nsq, target.publish, RedriveLimits(idle_s=PATIENCE_S, count=2), to="elsewhere")
    assert (target.bodies, target.topics) == ([b"1", b"bare"], {"elsewhere"})


async def test_what_does_not_say_where_it_belongs_stays_unless_one_is_told(nsq: EmbeddedThread) -> None:
    publish(nsq, b"bare", letter(b"1"), letter(b"2", topic="no name"), letter(b""))
    target = Target()
    run = await redrive(nsq, target.publish, RedriveLimits(idle_s=IDLE_S), to=None)
    assert (run.moved_count, run.unaddressed_count, run.left_count) == (1, 3, 0)
    assert target.bodies == [b"1"]
    assert len(remaining(nsq)) == 3
