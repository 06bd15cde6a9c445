"""One nsqlookupd that comes, goes, and misbehaves."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.broker import TopologyChange
from emberq.nsqd import lookup_peer
from emberq.nsqd.lookup_peer import FIRST_RETRY_NS, MAX_RETRY_NS, retry_delay_ns
from tests.nsqd.scripted_lookupd import (
    MAX_ANSWER_BYTES,
    OK,
    HangUp,
    Rig,
    ScriptedLookupd,
    anonymous,
    framed,
    info,
    only_identifies,
    sound,
)
from tests.support.waiting import turns, until

pytestmark = pytest.mark.loop("uvloop")

FIRST_RETRY_MS = FIRST_RETRY_NS / NS_PER_MS
MAX_RETRY_MS = MAX_RETRY_NS / NS_PER_MS
NEW_TOPIC = TopologyChange("t", None, exists=True)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "emberq")
    return caplog


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of coming up and going down, without the addresses."""
    lines = [(record.levelname, record.getMessage().partition("): ")[2]) for record in caplog.records]
    return [f"{level} {text}" for level, text in lines if text.startswith(("registered", "not registered", "it "))]


REGISTERED = "INFO registered with nsqlookupd v1.3.0"
LOST = "ERROR not registered, will keep trying - "


# A sound one.


async def test_on_connecting_nsqd_identifies_itself_and_registers_all_that_exists(
    logged: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(topics={"a": (), "b": ("x", "y#ephemeral")})
    async with ScriptedLookupd() as lookupd:
        async with rig.linked(lookupd.address) as link:
            await lookupd.expect("connected", "IDENTIFY", "REGISTER a", "REGISTER b x", "REGISTER b y#ephemeral")
            await until(lambda: link.peers[0].is_up)
        await lookupd.expect("disconnected")
        assert lookupd.identities[0]["broadcast_address"] == "nsqd.example"
    assert lines_of(logged) == [REGISTERED]


async def test_more_than_fits_into_the_window_is_registered_as_answers_come() -> None:
    rig = Rig(topics={f"t{number}": () for number in range(3 * lookup_peer.WINDOW)})
    async with ScriptedLookupd() as lookupd, rig.linked(lookupd.address) as link:
        await until(lambda: link.peers[0].is_up)
        await lookupd.expect("connected", "IDENTIFY", *(f"REGISTER {topic}" for topic in rig.topics))


async def test_a_ping_leaves_every_15_seconds() -> None:
    rig = Rig()
    async with ScriptedLookupd() as lookupd, rig.linked(lookupd.address) as link:
        await until(lambda: link.peers[0].is_up)
        await lookupd.expect("connected", "IDENTIFY")
        for _ in range(3):
            rig.advance(ms=14_999)
            await turns()
            assert lookupd.received.empty()
            rig.advance(ms=1)
            await lookupd.expect("PING")
            await turns()
        assert link.peers[0].is_up


async def test_an_address_without_a_host_means_this_machine() -> None:
    async with ScriptedLookupd() as lookupd, Rig().linked(f":{lookupd.port}"):
        await lookupd.expect("connected", "IDENTIFY")


# One that goes and comes back.


async def test_one_that_comes_back_is_told_all_that_exists_then_and_no_change_of_before(
    logged: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(topics={"old": ()})
    async with ScriptedLookupd() as lookupd, rig.linked(lookupd.address) as link:
        await lookupd.expect("connected", "IDENTIFY", "REGISTER old")
        await until(lambda: link.peers[0].is_up)
        await lookupd.go_away()
        await until(lambda: not link.peers[0].is_up)
        rig.topics = {"new": ("c",)}
        link.changed(TopologyChange("old", None, exists=False))
        await lookupd.listen()
        rig.advance(ms=FIRST_RETRY_MS)
        await lookupd.expect("disconnected", "connected", "IDENTIFY", "REGISTER new c")
        await until(lambda: link.peers[0].is_up)
    assert lines_of(logged) == [REGISTERED, LOST + "the connection was closed", REGISTERED]


async def test_one_that_is_not_there_is_logged_once_however_often_it_is_tried(logged: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    async with ScriptedLookupd() as lookupd:
        await lookupd.go_away()
        async with rig.linked(lookupd.address) as link:
            for _ in range(10):
                await turns()
                rig.advance(ms=MAX_RETRY_MS)
            await lookupd.listen()
            await turns()
            rig.advance(ms=MAX_RETRY_MS)
            await until(lambda: link.peers[0].is_up)
    first, second = lines_of(logged)
    assert first.startswith(LOST + "cannot connect: ")
    assert "Connect" in first
    assert second == REGISTERED


@pytest.mark.parametrize("address", ["nowhere", "", "h:99999", "a..b:1", "127.0.0.1:no-such-service"])
async def test_an_address_that_is_none_is_logged_once(address: str, logged: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    async with rig.linked(address):
        for _ in range(3):
            await until(lambda: bool(lines_of(logged)))
            rig.advance(ms=MAX_RETRY_MS)
    assert len(lines_of(logged)) == 1


async def test_intervals_grow_until_a_connection_has_lasted() -> None:
    def fails_late(command: str) -> bytes:
        if command == "IDENTIFY":
            return info()
        raise HangUp

    rig = Rig(topics={"t": ()})
    async with ScriptedLookupd(fails_late) as lookupd, rig.linked(lookupd.address) as link:
        for failure_count in range(1, 8):
            await lookupd.expect("connected", "IDENTIFY", "REGISTER t", "disconnected")
            await turns()
            rig.advance(ms=retry_delay_ns(failure_count, chance=0) / NS_PER_MS - 1)
            await turns()
            assert lookupd.received.empty()
            if failure_count == 7:
                lookupd.script = sound
            rig.advance(ms=1)
        await lookupd.expect("connected", "IDENTIFY", "REGISTER t")
        await until(lambda: link.peers[0].is_up)
        rig.advance(ms=15_000)
        await lookupd.expect("PING")
        await turns()
        lookupd.hang_up()
        await until(lambda: not link.peers[0].is_up)
        rig.advance(ms=FIRST_RETRY_MS)
        await lookupd.expect("disconnected", "connected")


def test_intervals_double_up_to_a_bound_and_chance_takes_at_most_half_away() -> None:
    assert [retry_delay_ns(count, chance=0) // NS_PER_MS for count in range(1, 8)] == [
        250,
        500,
        1000,
        2000,
        4000,
        5000,
        5000,
    ]
    assert retry_delay_ns(1_000_000, chance=0) == MAX_RETRY_NS
    assert retry_delay_ns(1, chance=1) == FIRST_RETRY_NS // 2


# One that misbehaves.


@pytest.mark.parametrize(
    ("bad_command", "answer", "reason"),
    [
        ("IDENTIFY", framed(b"E_INVALID"), 'it answered IDENTIFY by "E_INVALID"'),
        ("IDENTIFY", framed(b"no JSON"), 'it answered IDENTIFY by "no JSON"'),
        ("IDENTIFY", b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer of 1213486160 bytes"),
        ("IDENTIFY", framed(b"x" * (MAX_ANSWER_BYTES + 1)), "an answer of 10001 bytes"),
        ("IDENTIFY", b"\xff\xff\xff\xff", "an answer of -1 bytes"),
        ("IDENTIFY", info() + OK, "it answered what was not asked"),
        ("REGISTER t", framed(b"E_BAD_TOPIC no"), 'it answered "E_BAD_TOPIC no"'),
        ("REGISTER t", OK + OK, "it answered what was not asked"),
    ],
)
async def test_an_answer_that_is_none_ends_the_connection(
    bad_command: str, answer: bytes, reason: str, logged: pytest.LogCaptureFixture
) -> None:
    rig = Rig(topics={"t": ()})
    async with (
        ScriptedLookupd(lambda command: answer if command == bad_command else sound(command)) as lookupd,
        rig.linked(lookupd.address) as link,
    ):
        for _ in range(4):
            await until(lambda: lookupd.visit_count > 0 and not lookupd.visits)
            lookupd.visit_count = 0
            await turns()
            rig.advance(ms=MAX_RETRY_MS)
        await until(lambda: lookupd.visit_count > 0 and not lookupd.visits)
        lookupd.script = sound
        await turns()
        rig.advance(ms=MAX_RETRY_MS)
        await until(lambda: link.peers[0].is_up)
    assert lines_of(logged) == [LOST + reason, REGISTERED]


@pytest.mark.parametrize("silent_at", ["IDENTIFY", "REGISTER t", "PING"])
@pytest.mark.parametrize("answer", [b"", b"\x00\x00", info()[:-1]])
async def test_an_answer_must_be_complete_within_a_second(
    silent_at: str, answer: bytes, logged: pytest.LogCaptureFixture
) -> None:
    rig = Rig(topics={"t": ()})
    async with (
        ScriptedLookupd(lambda command: answer if command == silent_at else sound(command)) as lookupd,
        rig.linked(lookupd.address) as link,
    ):
        if silent_at == "PING":
            await until(lambda: link.peers[0].is_up)
            rig.advance(ms=15_000)
        while await lookupd.next() != silent_at:
            pass
        await turns()
        rig.advance(ms=999)
        await turns()
        assert lookupd.visits
        rig.advance(ms=1)
        await lookupd.expect("disconnected")
    assert lines_of(logged)[-1] == LOST + "no answer in time"


async def test_an_answer_that_drips_does_not_get_more_time() -> None:
    rig = Rig()
    async with ScriptedLookupd(lambda _command: b"") as lookupd, rig.linked(lookupd.address):
        await lookupd.expect("connected", "IDENTIFY")
        for byte in info()[:3]:
            rig.advance(ms=300)
            lookupd.send(bytes([byte]))
            await turns()
        assert lookupd.visits
        rig.advance(ms=100)
        await lookupd.expect("disconnected")


async def test_each_answer_gives_the_next_a_second_of_its_own() -> None:
    rig = Rig(topics={f"t{number}": () for number in range(5)})
    async with ScriptedLookupd(only_identifies) as lookupd, rig.linked(lookupd.address) as link:
        await lookupd.expect("connected", "IDENTIFY", *(f"REGISTER {topic}" for topic in rig.topics))
        for _ in range(5):
            rig.advance(ms=900)
            assert not link.peers[0].is_up
            lookupd.send(OK)
            await turns()
        await until(lambda: link.peers[0].is_up)
        rig.advance(ms=2000)
        await turns()
        assert link.peers[0].is_up


@contextmanager
def full_backlog() -> Iterator[str]:
    """An address that neither accepts nor refuses connections: its queue is full, and nobody empties it."""
    with ExitStack() as sockets:
        listening = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_a_connection_must_be_accepted_within_a_second(logged: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with full_backlog() as address:
        async with rig.linked(address):
            await turns()
            rig.advance(ms=999)
            await turns()
            assert not lines_of(logged)
            rig.advance(ms=1)
            await turns()
            assert lines_of(logged) == [LOST + "cannot connect: no answer in time"]


async def test_stopping_does_not_wait_for_a_connection_that_is_not_accepted(logged: pytest.LogCaptureFixture) -> None:
    with full_backlog() as address:
        async with Rig().linked(address):
            await turns()
    assert not lines_of(logged)


async def test_one_that_falls_far_behind_is_told_anew_all_that_exists(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookup_peer, "MAX_QUEUED", 3)
    monkeypatch.setattr(lookup_peer, "WINDOW", 1)
    rig = Rig()
    async with ScriptedLookupd(only_identifies) as lookupd, rig.linked(lookupd.address) as link:
        await until(lambda: link.peers[0].is_up)
        for _ in range(5):
            link.changed(NEW_TOPIC)
        rig.topics = {"t": ()}
        lookupd.script = sound
        await until(lambda: not lookupd.visits)
        rig.advance(ms=FIRST_RETRY_MS)
        await until(lambda: link.peers[0].is_up)
        assert [await lookupd.next() for _ in range(lookupd.received.qsize())][-1] == "REGISTER t"
    assert lines_of(logged)[1] == LOST + "more than 3 changes wait to be registered"


async def test_one_that_announces_no_address_is_registered_with_all_the_same(logged: pytest.LogCaptureFixture) -> None:
    async with ScriptedLookupd(anonymous) as lookupd, Rig(topics={"t": ()}).linked(lookupd.address) as link:
        await until(lambda: link.peers[0].is_up)
        await lookupd.expect("connected", "IDENTIFY", "REGISTER t")
    assert lines_of(logged)[1] == "ERROR it announces no address, so it cannot be asked for channels"
