"""Several nsqlookupds: what they are told, what they are asked, and how they change."""

from __future__ import annotations

import asyncio
import logging

import pytest

from emberq.broker.broker import TopologyChange
from emberq.nsqd.lookup import LookupLink
from emberq.nsqd.lookup_peer import MAX_QUERY_COUNT
from tests.nsqd.scripted_lookupd import (
    Rig,
    Script,
    ScriptedLookupd,
    all_up,
    anonymous,
    channels,
    only_identifies,
    with_http,
)
from tests.support.scripted_server import ScriptedServer, answer
from tests.support.waiting import PATIENCE_S, turns, until

pytestmark = pytest.mark.loop("uvloop")


async def ask(link: LookupLink, topic: str = "t") -> list[list[str]]:
    """What each answer names."""
    found: list[list[str]] = []
    await asyncio.wait_for(link.ask_channels(topic, found=found.append), PATIENCE_S)
    return sorted(found)


# What they are told.


async def test_everyone_is_told_of_each_change_in_order() -> None:
    async with (
        ScriptedLookupd() as one,
        ScriptedLookupd() as other,
        Rig().linked(one.address, other.address) as link,
    ):
        await all_up(link)
        link.changed(TopologyChange("t", None, exists=True))
        link.changed(TopologyChange("t", "c", exists=True))
        link.changed(TopologyChange("t", "c", exists=False))
        link.changed(TopologyChange("t", None, exists=False))
        for lookupd in (one, other):
            await lookupd.expect("connected", "IDENTIFY")
            await lookupd.expect("REGISTER t", "REGISTER t c", "UNREGISTER t c", "UNREGISTER t")


async def test_one_that_hangs_does_not_keep_the_others_from_being_told() -> None:
    async with (
        ScriptedLookupd(lambda _command: b"") as silent,
        ScriptedLookupd(only_identifies) as stuck,
        ScriptedLookupd() as sound,
        Rig(topics={"a": ()}).linked(silent.address, stuck.address, sound.address) as link,
    ):
        await until(lambda: link.peers[2].is_up)
        link.changed(TopologyChange("b", None, exists=True))
        await sound.expect("connected", "IDENTIFY", "REGISTER a", "REGISTER b")


# Which ones there are.


@pytest.mark.conformance(197)
async def test_a_new_list_closes_those_that_are_not_in_it_and_keeps_the_connections_of_those_that_are() -> None:
    async with (
        ScriptedLookupd() as first,
        ScriptedLookupd() as second,
        ScriptedLookupd() as third,
        Rig(topics={"t": ()}).linked(first.address, second.address) as link,
    ):
        await all_up(link)
        addresses = (third.address, second.address)
        link.set_addresses(addresses)
        assert link.addresses == addresses
        assert tuple(peer.address for peer in link.peers) == addresses
        await first.expect("connected", "IDENTIFY", "REGISTER t", "disconnected")
        await third.expect("connected", "IDENTIFY", "REGISTER t")
        await second.expect("connected", "IDENTIFY", "REGISTER t")
        assert second.received.empty()


async def test_an_address_given_twice_is_one_connection() -> None:
    async with ScriptedLookupd() as lookupd, Rig().linked(lookupd.address, lookupd.address) as link:
        await all_up(link)
        assert link.addresses == (lookupd.address, lookupd.address)
        assert lookupd.visit_count == 1


async def test_no_more_addresses_means_no_more_connections() -> None:
    rig = Rig()
    async with ScriptedLookupd() as lookupd, rig.linked(lookupd.address) as link:
        await all_up(link)
        link.set_addresses(())
        await lookupd.expect("connected", "IDENTIFY", "disconnected")
        rig.advance(ms=60_000)
        await turns()
        assert lookupd.received.empty()


async def test_after_stopping_changes_are_nobodys_business() -> None:
    async with ScriptedLookupd() as lookupd:
        async with Rig().linked(lookupd.address) as link:
            await all_up(link)
        link.changed(TopologyChange("t", None, exists=True))
        assert await ask(link) == []
        await lookupd.expect("connected", "IDENTIFY", "disconnected")


# What they are asked.


async def test_all_are_asked_for_the_channels_of_a_topic() -> None:
    with ScriptedServer(channels("a", "b")) as one_http, ScriptedServer(channels("a", "x#ephemeral")) as other_http:
        async with (
            ScriptedLookupd(with_http(one_http.port)) as one,
            ScriptedLookupd(with_http(other_http.port)) as other,
            Rig().linked(one.address, other.address) as link,
        ):
            await all_up(link)
            assert await ask(link, "t#ephemeral") == [["a"], ["a", "b"]]
    assert one_http.requests[0].startswith(b"GET /channels?topic=t%23ephemeral HTTP/1.1\r\n")


async def test_one_that_was_never_tried_yet_is_waited_for() -> None:
    with ScriptedServer(channels("a")) as http:
        async with ScriptedLookupd(with_http(http.port)) as lookupd, Rig().linked(lookupd.address) as link:
            assert not link.peers[0].is_up
            assert await ask(link) == [["a"]]


async def test_one_whose_connection_was_lost_is_asked_all_the_same() -> None:
    with ScriptedServer(channels("a")) as http:
        async with ScriptedLookupd(with_http(http.port)) as lookupd, Rig().linked(lookupd.address) as link:
            await all_up(link)
            await lookupd.go_away()
            await until(lambda: not link.peers[0].is_up)
            assert await ask(link) == [["a"]]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "the connection was closed before the answer was complete"),
        (b"garbage", "the answer is not HTTP"),
        (answer(b"garbage"), "the answer is not JSON"),
        (answer(b"{}"), "the answer does not list channels"),
        (answer(b'{"message":"NO"}', status="500 Oops"), 'got response 500 Oops "{\\"message\\":\\"NO\\"}"'),
    ],
)
async def test_a_wrong_answer_is_logged_and_the_others_count(
    reply: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer(reply) as bad_http, ScriptedServer(channels("a")) as good_http:
        async with (
            ScriptedLookupd(with_http(bad_http.port)) as bad,
            ScriptedLookupd(with_http(good_http.port)) as good,
            Rig().linked(bad.address, good.address) as link,
        ):
            await all_up(link)
            assert await ask(link) == [["a"]]
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    address = f"127.0.0.1:{bad_http.port}"
    expected = f"failed to query nsqlookupd for channels to pre-create for topic t - {address}: {reason}"
    assert (record.levelname, record.getMessage()) == ("WARNING", expected)


@pytest.mark.parametrize("script", [anonymous, lambda _command: b"garbage"])
async def test_when_no_nsqlookupd_is_known_that_is_an_error(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedLookupd(script) as lookupd, Rig().linked(lookupd.address) as link:
        assert await ask(link) == []
    record = caplog.records[-1]
    text = "no available nsqlookupd to query for channels to pre-create for topic t"
    assert (record.levelname, record.getMessage()) == ("ERROR", text)


async def test_without_addresses_nobody_is_asked_and_nothing_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Rig().linked() as link:
        assert await ask(link) == []
    assert not caplog.records


async def test_a_burst_of_questions_is_put_a_few_at_a_time() -> None:
    async with (
        ScriptedLookupd(lambda _request_line: b"") as silent_http,
        ScriptedLookupd(with_http(silent_http.port)) as lookupd,
        Rig().linked(lookupd.address) as link,
    ):
        await all_up(link)
        for number in range(3 * MAX_QUERY_COUNT):
            link.spawn(link.ask_channels(f"t{number}", found=lambda _names: None))
        await until(lambda: silent_http.visit_count == MAX_QUERY_COUNT)
        await turns()
        assert silent_http.visit_count == MAX_QUERY_COUNT


async def test_stopping_does_not_wait_for_an_answer() -> None:
    with ScriptedServer() as silent:
        async with ScriptedLookupd(with_http(silent.port)) as lookupd, Rig().linked(lookupd.address) as link:
            await all_up(link)
            link.spawn(link.ask_channels("t", found=lambda _names: None))
            await until(lambda: bool(silent.requests))
