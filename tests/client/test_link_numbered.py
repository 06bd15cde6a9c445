"""Numbered batches: each is stored once, in order, whatever happens to the connection; and never goes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.error import (
    BadRequestError,
    ClosedError,
    ConnectionLostError,
    HandshakeError,
    PublishError,
    RequestTimeoutError,
)
from emberq.client.link import MAX_UNCONFIRMED
from emberq.client.observer import Observer, Publication
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.support.loop import advance
from tests.support.publishing import AT_ONCE, NEVER_AGAIN, connect_all, numbered, publish_all
from tests.support.scripted_peer import Peer, scripted_peer
from tests.support.waiting import until


class Journal:
    """A script that stores what it is sent under a number it has not seen, as nsqd does.

    `dies_after` is told how many were stored and says whether the connection breaks before the answer.
    """

    def __init__(self, *, dies_after: Callable[[int], bool] = lambda _count: False) -> None:
        self.bodies: list[bytes] = []
        self.numbers: list[int] = []
        """All that came, repetitions too."""
        self.connection_count = 0
        self._last_number = -1
        self._dies_after = dies_after

    async def __call__(self, peer: Peer) -> None:
        self.connection_count += 1
        await peer.accept(emberq_idempotent=True)
        while True:
            verb, _, number = (await peer.read_line()).split(b" ")
            assert verb in (b"PUB", b"MPUB")
            is_new = self._store(int(number), await peer.read_body())
            if is_new and self._dies_after(len(self.bodies)):
                return
            peer.respond(b"OK")

    def _store(self, number: int, body: bytes) -> bool:
        self.numbers.append(number)
        if number <= self._last_number:
            return False
        self._last_number = number
        self.bodies.append(body)
        return True


def idempotent(addresses: str | Sequence[str], config: ClientConfig | None = None, **options: object) -> Producer:
    settings = {"reconnect_delay": AT_ONCE, "retry": RetryPolicy(max_attempts=100), **options}
    return Producer(addresses, config, idempotent=True, **settings)  # type: ignore[arg-type]


async def test_a_producer_names_itself_and_numbers_its_batches() -> None:
    ids: list[str] = []
    lines: list[bytes] = []

    async def script(peer: Peer) -> None:
        ids.append((await peer.read_identify())["emberq_producer_id"])
        peer.respond(b'{"emberq_idempotent":true}')
        for _ in range(2):
            lines.append(await peer.read_line())
            await peer.read_body()
            peer.respond(b"OK")

    async with scripted_peer(script) as address, idempotent(address) as producer:
        await producer.publish("t", b"x")
        await producer.publish_many("u", [b"y", b"z"])
    assert len(bytes.fromhex(ids[0])) == 16
    assert lines == [b"PUB t 0", b"MPUB u 1"]


async def test_whatever_is_lost_with_a_connection_is_sent_again_and_stored_once_in_order() -> None:
    journal = Journal(dies_after=lambda count: count % 7 == 0)
    async with scripted_peer(journal) as address, idempotent(address) as producer:
        await publish_all(producer, numbered(100))
    assert journal.bodies == numbered(100)
    assert journal.connection_count > 10
    assert len(journal.numbers) > 100


async def test_new_batches_go_behind_those_that_are_sent_again() -> None:
    journal = Journal(dies_after=lambda count: count == 3)
    may_return = asyncio.Event()

    async def script(peer: Peer) -> None:
        if journal.connection_count:
            await may_return.wait()
        await journal(peer)

    async with scripted_peer(script) as address, idempotent(address) as producer:
        await connect_all(producer)
        first = asyncio.gather(*(producer.publish("t", body) for body in (b"a", b"b", b"c", b"d")))
        await until(lambda: len(journal.bodies) == 3 and not producer.health()[0].is_connected)
        second = asyncio.create_task(producer.publish("t", b"e"))
        await asyncio.sleep(0)  # so that it has begun
        may_return.set()
        await asyncio.gather(first, second)
    assert journal.bodies == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_batch_stays_with_the_nsqd_that_may_have_it() -> None:
    dying, living = Journal(dies_after=lambda _count: True), Journal()
    async with (
        scripted_peer(dying) as first,
        scripted_peer(living) as second,
        idempotent([first, second]) as producer,
    ):
        await connect_all(producer)
        await publish_all(producer, numbered(20))
    assert sorted(dying.bodies + living.bodies) == sorted(numbered(20))
    assert dying.bodies


async def test_a_change_of_one_link_does_not_send_anything_again_on_another() -> None:
    may_connect, may_answer = asyncio.Event(), asyncio.Event()
    received: list[bytes] = []
    visits: list[Peer] = []

    async def steady(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        while True:
            received.append(await peer.read_publication())
            await may_answer.wait()
            peer.respond(b"OK")

    async def restless(peer: Peer) -> None:
        await may_connect.wait()
        await peer.accept(emberq_idempotent=True)
        visits.append(peer)

    async with (
        scripted_peer(steady) as first,
        scripted_peer(restless) as second,
        idempotent([first, second]) as producer,
    ):
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: received == [b"x"])
        may_connect.set()
        await until(lambda: len(visits) > 3)
        may_answer.set()
        await publishing
        await producer.close()
    assert received == [b"x"]


async def test_an_nsqd_that_does_not_come_back_in_time_leaves_the_last_failure() -> None:
    journal = Journal(dies_after=lambda _count: True)
    async with scripted_peer(journal) as address, idempotent(address, reconnect_delay=NEVER_AGAIN) as producer:
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: producer.health()[0].last_failure is not None)
        advance(31)
        with pytest.raises(ConnectionLostError) as failure:
            await publishing
        assert failure.value.__notes__ == ["given up after attempt 1"]


async def test_when_the_attempts_are_used_up_the_last_failure_is_raised() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        await peer.read_publication()
        peer.refuse(b"E_PUB_FAILED PUB failed exiting")

    async with scripted_peer(script) as address, idempotent(address, retry=RetryPolicy(max_attempts=3)) as producer:
        with pytest.raises(PublishError) as failure:
            await producer.publish("t", b"x")
        assert failure.value.__notes__ == ["given up after attempt 3"]


async def test_a_message_that_nsqd_refuses_raises_at_once_and_harms_no_other() -> None:
    stored: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        while True:
            body = await peer.read_publication()
            if body == b"bad":
                peer.refuse(b"E_BAD_MESSAGE PUB message too big")
                return
            stored.append(body)
            peer.respond(b"OK")

    async with scripted_peer(script) as address, idempotent(address) as producer:
        await connect_all(producer)
        outcomes = await asyncio.gather(
            *(producer.publish("t", body) for body in (b"1", b"bad", b"2")), return_exceptions=True
        )
    assert [type(outcome) for outcome in outcomes] == [type(None), BadRequestError, type(None)]
    assert stored == [b"1", b"2"]


async def test_an_answer_that_does_not_come_ends_the_connection_and_the_batch_is_sent_again() -> None:
    bodies: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        bodies.append(await peer.read_publication())
        if len(bodies) == 1:
            await peer.wait_until_closed()
        else:
            peer.respond(b"OK")

    async with (
        scripted_peer(script) as address,
        idempotent(address, ClientConfig(request_timeout_s=0.05)) as producer,
    ):
        await producer.publish("t", b"x")
    assert bodies == [b"x", b"x"]


async def test_no_more_are_under_way_than_can_be_sent_again() -> None:
    received: list[bytes] = []
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        while True:
            received.append(await peer.read_publication())
            if len(received) >= MAX_UNCONFIRMED:
                await go_on.wait()
                for _ in range(MAX_UNCONFIRMED if len(received) == MAX_UNCONFIRMED else 1):
                    peer.respond(b"OK")

    async with scripted_peer(script) as address, idempotent(address) as producer:
        await connect_all(producer)
        publishing = asyncio.create_task(publish_all(producer, numbered(MAX_UNCONFIRMED + 1)))
        await until(lambda: len(received) == MAX_UNCONFIRMED)
        assert producer.health()[0].pending_count == MAX_UNCONFIRMED
        go_on.set()
        await publishing
    assert received == numbered(MAX_UNCONFIRMED + 1)


async def test_whoever_waits_too_long_for_his_turn_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(emberq_idempotent=True)
        await peer.wait_until_closed()

    config = ClientConfig(request_timeout_s=1000, heartbeat_interval_ms=-1)
    async with scripted_peer(script) as address:
        producer = idempotent(address, config)
        await connect_all(producer)
        publishing = [asyncio.create_task(producer.publish("t", b"x")) for _ in range(MAX_UNCONFIRMED + 1)]
        await until(lambda: producer.health()[0].pending_count == MAX_UNCONFIRMED)
        advance(31)
        outcomes = await asyncio.gather(*publishing, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RequestTimeoutError}
        await producer.close()


async def test_an_nsqd_that_does_not_know_numbers_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.wait_until_closed()

    async with scripted_peer(script) as address, idempotent(address) as producer:
        with pytest.raises(HandshakeError, match="cannot tell batches that are sent again"):
            await producer.publish("t", b"x")


async def test_a_batch_is_given_up_when_its_nsqd_refuses_to_let_us_in_again() -> None:
    connections: list[Peer] = []

    async def script(peer: Peer) -> None:
        connections.append(peer)
        if len(connections) == 1:
            await peer.accept(emberq_idempotent=True)
            await peer.read_publication()
        else:
            await peer.accept()

    async with scripted_peer(script) as address, idempotent(address) as producer:
        with pytest.raises(HandshakeError):
            await producer.publish("t", b"x")


async def test_closing_gives_up_on_what_waits_for_its_nsqd() -> None:
    journal = Journal(dies_after=lambda _count: True)
    async with scripted_peer(journal) as address:
        producer = idempotent(address, reconnect_delay=NEVER_AGAIN)
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: producer.health()[0].last_failure is not None)
        await producer.close(timeout_s=0.01)
        with pytest.raises(ClosedError):
            await publishing


async def test_a_batch_can_be_given_up_by_its_publisher() -> None:
    journal = Journal(dies_after=lambda count: count == 1)
    async with scripted_peer(journal) as address, idempotent(address, reconnect_delay=NEVER_AGAIN) as producer:
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: producer.health()[0].last_failure is not None)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


async def test_an_observer_hears_of_numbered_batches() -> None:
    heard: list[Publication] = []

    class Listener(Observer):
        def published(self, publication: Publication, *, duration_s: float) -> None:
            heard.append(publication)

    async with scripted_peer(Journal()) as address:
        async with idempotent(address, ClientConfig(observer=Listener())) as producer:
            await producer.publish_many("t", [b"a", b"bb"])
        assert heard == [Publication("t", address, 2, 3)]


async def test_nothing_is_stored_twice_when_a_real_nsqd_is_restarted_under_load(tmp_path: Path) -> None:
    confirmed: list[bytes] = []

    async def publish_one_by_one(producer: Producer, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await producer.publish("t", body)
            confirmed.append(body)

    async with Embedded(with_lookupd=False, data_path=tmp_path, journal=True) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        producer = idempotent(address)
        bodies = numbered(400)
        workers = [asyncio.create_task(publish_one_by_one(producer, bodies[start::8])) for start in range(8)]
        await until(lambda: len(confirmed) >= 50)
    async with Embedded(with_lookupd=False, data_path=tmp_path, journal=True, tcp_address=address) as nsq:
        await asyncio.gather(*workers)
        await producer.close()
        assert nsq.nsqds[0].broker.topic("t").depth == 400
