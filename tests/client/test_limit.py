"""Messages that are too large, and the messages beside them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.error import AuthError, BadRequestError, ClosedError, ConnectionLostError, MessageTooLargeError
from emberq.client.limit import LEARNED_FOR_S, UNSUSPECTED_BYTES
from emberq.client.observer import Observer
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.client.test_producer import consume
from tests.support.loop import advance
from tests.support.publishing import Mute, connect_all
from tests.support.scripted_peer import Peer, scripted_peer
from tests.support.waiting import until

PUBLISH_COUNT = 2000
AT_A_TIME = 100
MIB = 1024 * 1024


class Endings(Observer):
    """Counts the connections that were lost."""

    def __init__(self) -> None:
        self.count = 0

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        self.count += failure is not None


@asynccontextmanager
async def nsqd_with(*, tells_limits: bool = True, **options: Any) -> AsyncIterator[str]:
    """The address of an nsqd that tells its limits, or keeps them to itself as NSQ's own does."""
    async with Embedded(with_lookupd=False, **options) as nsq:
        context = nsq.nsqds[0]._context
        if not tells_limits:
            context.server_limits = replace(context.server_limits, max_msg_size=0, max_body_size=0)
        yield nsq.nsqd_tcp_addresses[0]


class Nsqd:
    """A script: an nsqd that tells no limits, and refuses what is too large by `refusal`, or without a word."""

    def __init__(self, *, limit_bytes: int, refusal: str = "", **answer: Any) -> None:
        self.limit_bytes = limit_bytes
        self.answer = answer
        self.bodies: list[bytes] = []
        self.refused_count = 0
        self._refusal = refusal

    async def __call__(self, peer: Peer) -> None:
        await peer.accept(**self.answer)
        while len(body := await peer.read_publication()) <= self.limit_bytes:
            self.bodies.append(body)
            peer.respond(b"OK")
        self.refused_count += 1
        if self._refusal:
            peer.refuse(self._refusal.format(size=len(body), limit=self.limit_bytes).encode())


def mixed_bodies(count: int, *, oversized_bytes: int) -> list[bytes]:
    """Different bodies; every tenth has more bytes than `oversized_bytes`."""
    return [b"%d" % number + (b"x" * oversized_bytes if number % 10 == 5 else b"") for number in range(count)]


async def outcomes_of(producer: Producer, bodies: list[bytes]) -> list[BaseException | None]:
    """How each ended, when so many are published at a time."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def publish(body: bytes) -> None:
        async with room:
            await producer.publish("t", body)

    return await asyncio.gather(*map(publish, bodies), return_exceptions=True)


# Neighbours


@pytest.mark.loop("movable", "uvloop")
@pytest.mark.parametrize(
    ("tells_limits", "limit_bytes", "oversized_bytes"),
    [(True, MIB, MIB), (False, MIB, MIB), (True, 1000, 1000), (False, 1000, 300_000)],
)
async def test_one_oversized_body_in_ten_harms_no_other(
    *, tells_limits: bool, limit_bytes: int, oversized_bytes: int
) -> None:
    bodies = mixed_bodies(PUBLISH_COUNT, oversized_bytes=oversized_bytes)
    valid = [body for body in bodies if len(body) <= limit_bytes]
    async with nsqd_with(tells_limits=tells_limits, max_msg_size=limit_bytes) as address:
        async with Producer(address) as producer:
            outcomes = await outcomes_of(producer, bodies)
        assert Counter(map(type, outcomes)) == {type(None): len(valid), MessageTooLargeError: len(bodies) - len(valid)}
        assert Counter(await consume(address, "t", count=len(valid))) == Counter(valid)


async def test_small_ones_that_are_too_large_do_not_keep_others_from_being_published() -> None:
    """nsqd closes while more is sent to it; so its answers may get lost, and what they confirmed is sent again."""
    bodies = mixed_bodies(PUBLISH_COUNT, oversized_bytes=1000)
    valid = [body for body in bodies if len(body) <= 1000]
    async with nsqd_with(tells_limits=False, max_msg_size=1000) as address:
        async with Producer(address) as producer:
            outcomes = await outcomes_of(producer, bodies)
        assert Counter(map(type, outcomes)) == {type(None): len(valid), MessageTooLargeError: len(bodies) - len(valid)}
        assert set(await consume(address, "t", count=len(valid))) == set(valid)


@pytest.mark.parametrize("refusal", ["", "E_BAD_MESSAGE no", "E_BAD_MESSAGE PUB message too big {size} > {limit}"])
async def test_what_may_be_too_large_goes_alone_whatever_nsqd_says_of_it(refusal: str) -> None:
    nsqd = Nsqd(limit_bytes=UNSUSPECTED_BYTES, refusal=refusal)
    bodies = mixed_bodies(100, oversized_bytes=2 * UNSUSPECTED_BYTES)
    valid = [body for body in bodies if len(body) <= nsqd.limit_bytes]
    endings = Endings()
    async with scripted_peer(nsqd) as address, Producer(address, ClientConfig(observer=endings)) as producer:
        await connect_all(producer)
        outcomes = await outcomes_of(producer, bodies)
        assert endings.count == 0
    expected = BadRequestError if refusal else ConnectionLostError
    assert [outcome for outcome in outcomes if outcome and not isinstance(outcome, expected)] == []
    assert [outcome is None for outcome in outcomes] == [len(body) <= nsqd.limit_bytes for body in bodies]
    assert Counter(nsqd.bodies) == Counter(valid)


async def test_a_large_message_that_nsqd_has_confirmed_makes_way_for_others_of_its_size() -> None:
    nsqd = Nsqd(limit_bytes=MIB)
    connections = 0

    async def count_and_serve(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await nsqd(peer)

    async with scripted_peer(count_and_serve) as address, Producer(address) as producer:
        await producer.publish("t", b"x" * 500_000)
        for size in (400_000, 499_999, 500_000):
            await producer.publish("t", b"x" * size)
        assert connections == 2  # that of the producer, and the one for the first
        await producer.publish("t", b"x" * 500_001)
        assert connections == 3
    assert nsqd.refused_count == 0


async def test_closing_gives_up_on_what_goes_alone_as_well() -> None:
    mute = Mute()
    async with scripted_peer(mute) as address, Producer(address) as producer:
        bodies = [b"%d" % number * UNSUSPECTED_BYTES * 2 for number in range(3)]
        publishing = [asyncio.create_task(producer.publish("t", body)) for body in bodies]
        await until(lambda: bool(mute.bodies))
        await producer.close(timeout_s=0)
        outcomes = await asyncio.gather(*publishing, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ClosedError] * 3
    assert mute.bodies == bodies[:1]


# What is known


async def test_what_is_too_large_for_the_limit_that_nsqd_told_is_not_sent() -> None:
    endings = Endings()
    too_large = pytest.raises(MessageTooLargeError, match=r"a message of 101 bytes .* 100 \(--max-msg-size\)")
    config = ClientConfig(observer=endings)
    async with nsqd_with(max_msg_size=100) as address, Producer(address, config) as producer:
        await producer.publish("t", b"x" * 100)
        with too_large as raised:
            await producer.publish("t", b"x" * 101)
        assert (raised.value.size_bytes, raised.value.limit_bytes) == (101, 100)
        assert raised.value.code == "E_BAD_MESSAGE"
        with too_large:
            await producer.publish_deferred("t", b"x" * 101, delay_s=1)
        assert endings.count == 0
        assert producer.health()[0].failures == 0


async def test_the_limit_that_nsqd_says_when_it_refuses_is_kept_for_a_while() -> None:
    nsqd = Nsqd(limit_bytes=100, refusal="E_BAD_MESSAGE PUB message too big {size} > {limit}")
    config = ClientConfig(heartbeat_interval_ms=-1)
    async with scripted_peer(nsqd) as address, Producer(address, config) as producer:
        for _ in range(3):
            with pytest.raises(MessageTooLargeError):
                await producer.publish("t", b"x" * 101)
        assert nsqd.refused_count == 1
        nsqd.limit_bytes = 200  # as after a restart with another limit
        advance(LEARNED_FOR_S)
        await producer.publish("t", b"x" * 101)
    assert nsqd.bodies == [b"x" * 101]


async def test_a_batch_is_split_for_the_limit_that_nsqd_told() -> None:
    bodies = [b"%04d" % number * 256 for number in range(1000)]
    async with nsqd_with(max_msg_size=10_000, max_body_size=100_000) as address:
        async with Producer(address) as producer:
            await producer.publish_many("t", bodies)  # the first of all, before a limit is known
        assert await consume(address, "t", count=len(bodies)) == bodies


async def test_a_batch_with_a_message_that_is_too_large_is_not_sent_at_all() -> None:
    bodies = [b"x" * 1000] * 400
    async with nsqd_with(max_msg_size=10_000, max_body_size=100_000) as address:
        async with Producer(address) as producer:
            with pytest.raises(MessageTooLargeError, match="a message of 10001 bytes"):
                await producer.publish_many("t", [*bodies, b"x" * 10_001])
            await producer.publish("t", b"the first")
        assert await consume(address, "t", count=1) == [b"the first"]


async def test_a_batch_above_the_limit_that_cannot_be_split_is_not_sent() -> None:
    async with nsqd_with(max_msg_size=200_000, max_body_size=100_000) as address, Producer(address) as producer:
        with pytest.raises(MessageTooLargeError, match=r"a batch of 150008 bytes .* 100000 \(--max-body-size\)"):
            await producer.publish_many("t", [b"x" * 150_000])
        await producer.publish("t", b"x" * 150_000)  # alone it is no batch


# Behind a refusal


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(b"E_BAD_MESSAGE PUB message too big 6 > 5", MessageTooLargeError), (b"E_UNAUTHORIZED PUB to t", AuthError)],
)
async def test_what_is_behind_a_refused_command_is_sent_again_though_nothing_may_be_sent_twice(
    refusal: bytes, kind: type[BaseException]
) -> None:
    executed: list[bytes] = []

    async def refuse_the_second(peer: Peer) -> None:
        await peer.accept()
        while (body := await peer.read_publication()) != b"refuse":
            executed.append(body)
            peer.respond(b"OK")
        peer.refuse(refusal)

    once = RetryPolicy(max_attempts=1)
    async with scripted_peer(refuse_the_second) as address, Producer(address, retry=once) as producer:
        await connect_all(producer)
        bodies = [b"one", b"refuse", b"two", b"three"]
        outcomes = await asyncio.gather(*(producer.publish("t", body) for body in bodies), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), kind, type(None), type(None)]
        assert producer.health()[0].failures == 0  # nsqd is well
    assert sorted(executed) == [b"one", b"three", b"two"]


@pytest.mark.parametrize("tells_limits", [True, False])
async def test_numbered_messages_bear_one_that_is_too_large_among_them(*, tells_limits: bool) -> None:
    bodies = mixed_bodies(200, oversized_bytes=1000)
    valid = [body for body in bodies if len(body) <= 1000]
    async with nsqd_with(tells_limits=tells_limits, max_msg_size=1000, journal=True) as address:
        async with Producer(address, idempotent=True) as producer:
            outcomes = await outcomes_of(producer, bodies)
        assert Counter(map(type, outcomes)) == {type(None): len(valid), MessageTooLargeError: len(bodies) - len(valid)}
        assert Counter(await consume(address, "t", count=len(valid))) == Counter(valid)
