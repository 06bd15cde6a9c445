"""A new topic waits for the channels that the nsqlookupds know, and nobody waits with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from emberq.broker.broker import Broker
from emberq.nsqd.lookup import MAX_HOLD_NS, LookupLink, Precreation
from emberq.storage.error import StorageError
from tests.broker.rig import Consumer
from tests.broker.rig import Rig as BrokerRig
from tests.nsqd.scripted_lookupd import Rig, ScriptedLookupd, all_up, channels, with_http
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import turns, until

pytestmark = pytest.mark.loop("uvloop")

MAX_HOLD_MS = MAX_HOLD_NS // 1_000_000


def precreation(rig: BrokerRig, link: LookupLink) -> Precreation:
    return Precreation(link, find_topic=rig.broker.find_topic, clock=rig.clock, timers=rig.timers)


@asynccontextmanager
async def linked(rig: BrokerRig, *http_servers: ScriptedServer) -> AsyncIterator[LookupLink]:
    """The broker of the rig, linked to an nsqlookupd for each of these HTTP servers."""
    lookup_rig = Rig(clock=rig.clock, timers=rig.timers)
    lookupds = [ScriptedLookupd(with_http(http.port)) for http in http_servers]
    for lookupd in lookupds:
        await lookupd.listen()
    async with lookup_rig.linked(*(lookupd.address for lookupd in lookupds)) as link:
        await all_up(link)
        rig.broker.add_listener(link.changed)
        rig.broker.add_listener(precreation(rig, link).changed)
        yield link
    for lookupd in lookupds:
        await lookupd.go_away()


def depths(broker: Broker, topic: str = "t") -> dict[str, int]:
    """The channels of a topic, with what each holds."""
    found = broker.find_topic(topic)
    assert found is not None
    return {channel.name: channel.depth for channel in found.stats().channels}


def gated(gate: threading.Event, reply: bytes) -> Iterator[bytes]:
    """An answer that waits for the test."""
    gate.wait()
    yield reply


async def test_the_first_message_goes_to_the_channels_that_nsqlookupd_knows(rig: BrokerRig) -> None:
    with ScriptedServer(channels("pc", "pe#ephemeral")) as http:
        async with linked(rig, http):
            rig.publish(b"first")
            assert (rig.topic_stats().depth, depths(rig.broker)) == (1, {})
            await until(lambda: rig.topic_stats().depth == 0)
            assert depths(rig.broker) == {"pc": 1}


async def test_channels_of_all_nsqlookupds_are_created_before_the_first_message_leaves_the_topic(
    rig: BrokerRig,
) -> None:
    gate = threading.Event()
    with ScriptedServer(channels("fast")) as fast, ScriptedServer(gated(gate, channels("slow"))) as slow:
        async with linked(rig, fast, slow):
            rig.publish(b"first")
            await until(lambda: depths(rig.broker) == {"fast": 0})
            rig.publish(b"second")
            await turns()
            assert (rig.topic_stats().depth, depths(rig.broker)) == (2, {"fast": 0})
            gate.set()
            await until(lambda: rig.topic_stats().depth == 0)
            assert depths(rig.broker) == {"fast": 2, "slow": 2}


async def test_a_held_topic_is_not_paused_in_the_eyes_of_anybody(rig: BrokerRig) -> None:
    with ScriptedServer(channels()) as http:
        async with linked(rig, http):
            rig.publish(b"m")
            assert not rig.topic_stats().paused
            assert not rig.broker.metadata("test").topics[0].paused


async def test_a_consumer_of_a_new_topic_has_its_channel_at_once_and_gets_what_waited(rig: BrokerRig) -> None:
    with ScriptedServer(channels("pc")) as http:
        async with linked(rig, http):
            consumer = rig.consumer(rdy=10)
            rig.publish(b"m")
            assert consumer.received == []
            await until(lambda: bool(consumer.received))
            assert consumer.new_bodies() == [b"m"]
            consumer.finish(*consumer.received)
            assert depths(rig.broker) == {"c": 0, "pc": 1}


async def test_a_silent_nsqlookupd_holds_a_topic_for_a_while_and_other_topics_not_at_all(rig: BrokerRig) -> None:
    with ScriptedServer() as silent:
        old = Consumer(rig.channel("c", topic="old"), rdy=10)
        async with linked(rig, silent):
            new = rig.consumer(rdy=10)
            rig.publish(b"m")
            rig.publish(b"n", topic="old")
            assert old.new_bodies() == [b"n"]
            await until(lambda: bool(silent.requests))
            rig.advance(ms=MAX_HOLD_MS - 1)
            assert new.received == []
            rig.advance(ms=1)
            assert new.new_bodies() == [b"m"]
            rig.publish(b"later")
            assert new.new_bodies() == [b"later"]
            for consumer in (old, new):
                consumer.finish(*consumer.received)


async def test_an_answer_that_comes_after_the_release_still_creates_its_channels(rig: BrokerRig) -> None:
    gate = threading.Event()
    with ScriptedServer(gated(gate, channels("pc"))) as http:
        async with linked(rig, http):
            rig.channel("c")
            rig.publish(b"early")
            await until(lambda: bool(http.requests))
            rig.advance(ms=MAX_HOLD_MS)
            gate.set()
            await until(lambda: len(depths(rig.broker)) == 2)
            rig.publish(b"late")
            assert depths(rig.broker) == {"c": 2, "pc": 1}


async def test_channels_found_for_a_topic_that_was_deleted_are_not_created(rig: BrokerRig) -> None:
    gate = threading.Event()
    with ScriptedServer(gated(gate, channels("old")), channels("new")) as http:
        async with linked(rig, http):
            rig.publish(b"m")
            await until(lambda: bool(http.requests))
            rig.broker.delete_topic("t")
            rig.publish(b"another")
            gate.set()
            await until(lambda: rig.topic_stats().depth == 0)
            assert depths(rig.broker) == {"new": 1}


async def test_a_topic_paused_while_it_is_held_stays_paused(rig: BrokerRig) -> None:
    with ScriptedServer(channels("pc")) as http:
        async with linked(rig, http):
            rig.publish(b"m")
            rig.topic().pause()
            await until(lambda: depths(rig.broker) == {"pc": 0})
            await turns()
            assert rig.topic_stats().depth == 1
            rig.topic().unpause()
            assert depths(rig.broker) == {"pc": 1}


async def test_stopping_releases_what_is_held(rig: BrokerRig) -> None:
    with ScriptedServer() as silent:
        async with linked(rig, silent):
            rig.channel("c")
            rig.publish(b"m")
            await until(lambda: bool(silent.requests))
        assert depths(rig.broker) == {"c": 1}


async def test_a_broker_that_was_closed_first_keeps_what_was_held_for_the_next_run(rig: BrokerRig) -> None:
    with ScriptedServer() as silent:
        async with linked(rig, silent):
            rig.publish(b"m")
            await until(lambda: bool(silent.requests))
            rig.restart()
    assert rig.topic_stats().depth == 1


async def test_loaded_topics_are_not_held(rig: BrokerRig) -> None:
    with ScriptedServer() as silent:
        rig.channel("c")
        metadata = rig.broker.metadata("test")
        rig.broker.delete_topic("t")
        async with linked(rig, silent):
            rig.broker.load(metadata)
            rig.publish(b"m")
            assert depths(rig.broker) == {"c": 1}


async def test_without_nsqlookupds_a_new_topic_is_not_held(rig: BrokerRig) -> None:
    async with linked(rig):
        rig.channel("c")
        rig.publish(b"m")
        assert depths(rig.broker) == {"c": 1}


async def test_with_no_nsqlookupd_to_be_reached_a_new_topic_is_released_at_once(
    rig: BrokerRig, caplog: pytest.LogCaptureFixture
) -> None:
    lookup_rig = Rig(clock=rig.clock, timers=rig.timers)
    async with lookup_rig.linked("127.0.0.1:1") as link:
        await until(link.peers[0].tried.is_set)
        rig.broker.add_listener(precreation(rig, link).changed)
        rig.channel("c")
        rig.publish(b"m")
        await until(lambda: depths(rig.broker) == {"c": 1})
    text = "no available nsqlookupd to query for channels to pre-create for topic t"
    assert caplog.records[-1].getMessage() == text


async def test_a_channel_that_cannot_be_created_is_logged_and_the_others_are(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend_of = rig.disk.backend

    def refuse_bad(name: str) -> object:
        if name == "t:bad":
            raise StorageError("no space")
        return backend_of(name)

    with ScriptedServer(channels("bad", "good")) as http:
        async with linked(rig, http):
            monkeypatch.setattr(rig.disk, "backend", refuse_bad)
            rig.publish(b"m")
            await until(lambda: rig.topic_stats().depth == 0)
            assert depths(rig.broker) == {"good": 1}
    assert "TOPIC(t): failed to create channel bad - no space" in [record.getMessage() for record in caplog.records]


async def test_a_burst_of_new_topics_is_released_topic_by_topic(rig: BrokerRig) -> None:
    names = [f"t{number}" for number in range(100)]
    with ScriptedServer(*[channels("pc")] * len(names)) as http:
        async with linked(rig, http):
            for name in names:
                rig.publish(b"m", topic=name)
            await asyncio.wait_for(until(lambda: not any(rig.topic_stats(name).depth for name in names)), 10)
            assert all(depths(rig.broker, name) == {"pc": 1} for name in names)
