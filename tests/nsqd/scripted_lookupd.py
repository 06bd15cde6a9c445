"""An nsqlookupd for tests that answers as it is told, right or wrong, and what a link to it needs."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self, cast

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.http.client import HttpClient
from emberq.nsqd.lookup import LookupLink
from emberq.wire.lookup import NsqdIdentity, TopicAndChannels
from tests.support.scripted_server import answer
from tests.support.waiting import PATIENCE_S, until

"""Turns of the loop within which it has passed on all that was sent on the loopback."""

IDENTITY = NsqdIdentity(
    broadcast_address="nsqd.example", hostname="box", tcp_port=4150, http_port=4151, version="1.3.0-test"
)
MAX_ANSWER_BYTES = 10_000


def framed(answer: bytes) -> bytes:
    """An answer as it travels."""
    return struct.pack(">i", len(answer)) + answer


OK = framed(b"OK")


def info(*, http_port: int = 4161, **members: object) -> bytes:
    """The answer to IDENTIFY."""
    document = {"broadcast_address": "127.0.0.1", "http_port": http_port, "tcp_port": 4160, "version": "1.3.0"}
    return framed(json.dumps(document | members).encode())


class HangUp(Exception):
    """Raised by a script that wants the connection closed."""


Script = Callable[[str], bytes]
"""What to send for a command, to the byte; raises `HangUp` to close. Empty means silence."""


def sound(command: str) -> bytes:
    """What a sound nsqlookupd answers."""
    return info() if command == "IDENTIFY" else OK


def only_identifies(command: str) -> bytes:
    """What one answers that hangs as soon as it is told of something."""
    return info() if command == "IDENTIFY" else b""


def anonymous(command: str) -> bytes:
    """What one answers that does not say where its HTTP is."""
    return framed(b"{}") if command == "IDENTIFY" else OK


def with_http(port: int) -> Script:
    """The script of an nsqlookupd whose HTTP is on this port of the loopback."""
    return lambda command: info(http_port=port) if command == "IDENTIFY" else OK


def channels(*names: str) -> bytes:
    """nsqlookupd's answer to `/channels`."""
    return answer(json.dumps({"channels": names}).encode())


class _Visit(asyncio.Protocol):
    """One connection, taken apart without emberq's code."""

    def __init__(self, lookupd: ScriptedLookupd) -> None:
        self._lookupd = lookupd
        self._received = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._lookupd.visits.append(self)
        self._lookupd.visit_count += 1
        self._lookupd.received.put_nowait("connected")

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._received = self._received.removeprefix(b"  V1")
        while b"\n" in self._received:
            line, _, rest = self._received.partition(b"\n")
            if line == b"IDENTIFY":
                (size,) = struct.unpack_from(">i", rest)
                self._lookupd.identities.append(json.loads(rest[4 : 4 + size]))
                rest = rest[4 + size :]
            self._received = rest
            self._answer(line.decode())

    def _answer(self, command: str) -> None:
        self._lookupd.received.put_nowait(command)
        assert self.transport is not None
        try:
            self.transport.write(self._lookupd.script(command))
        except HangUp:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lookupd.visits.remove(self)
        self._lookupd.received.put_nowait("disconnected")


class ScriptedLookupd:
    """Listens on the loopback. `received` has what happened, in order: commands, `connected`, `disconnected`."""

    def __init__(self, script: Script = sound) -> None:
        self.script = script
        self.received: asyncio.Queue[str] = asyncio.Queue()
        self.identities: list[dict[str, object]] = []
        self.visits: list[_Visit] = []
        """The connections that are open."""
        self.visit_count = 0
        """Those that ever were, unless a test sets it back."""
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.go_away()

    async def listen(self) -> None:
        """Accept connections, again on the same port if it did before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Visit(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        """Refuse connections and close those that are open."""
        if self._server is not None:
            self._server.close()
            self.hang_up()
            await self._server.wait_closed()
            self._server = None

    def hang_up(self) -> None:
        for visit in self.visits:
            self._transport_of(visit).abort()

    def send(self, data: bytes) -> None:
        """Say something unasked."""
        for visit in self.visits:
            self._transport_of(visit).write(data)

    def _transport_of(self, visit: _Visit) -> asyncio.Transport:
        assert visit.transport is not None
        return visit.transport

    async def next(self) -> str:
        """What happened next."""
        return await asyncio.wait_for(self.received.get(), PATIENCE_S)

    async def expect(self, *events: str) -> None:
        """Exactly this happens next."""
        for event in events:
            happened = await self.next()
            assert happened == event


@dataclass
class Rig:
    """A link whose time and topics are the test's."""

    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    timers: Timers = field(default_factory=Timers)
    chance: float = 0.0

    def snapshot(self) -> list[TopicAndChannels]:
        return list(self.topics.items())

    def link(self, *addresses: str) -> LookupLink:
        return LookupLink(
            addresses,
            identity=IDENTITY,
            snapshot=self.snapshot,
            http_client=HttpClient(connect_timeout_ns=2 * NS_PER_SECOND, request_timeout_ns=5 * NS_PER_SECOND),
            max_answer_bytes=MAX_ANSWER_BYTES,
            clock=self.clock,
            timers=self.timers,
            chance=lambda: self.chance,
        )

    def advance(self, *, ms: float) -> None:
        self.clock.advance(ms=ms)
        self.timers.run_due(self.clock.monotonic_ns())

    @asynccontextmanager
    async def linked(self, *addresses: str) -> AsyncIterator[LookupLink]:
        """A link that runs, and of which nothing is left afterwards."""
        link = self.link(*addresses)
        others = asyncio.all_tasks()
        link.start()
        try:
            yield link
        finally:
            await link.stop()
        assert asyncio.all_tasks() <= others
        self.advance(ms=3_600_000)
        assert self.timers.next_due_ns == NEVER


async def all_up(link: LookupLink) -> None:
    """Wait until everything is registered everywhere."""
    await until(lambda: all(peer.is_up for peer in link.peers))
