"""Targets that listen: nsqd and nsqlookupd, over TCP and over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import tempfile
from collections.abc import Iterable
from typing import ClassVar

from emberq.base.clock import ManualClock
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import NsqdOptions
from emberq.wire import command, frame
from emberq.wire.command import MAGIC_V2
from emberq.wire.compression import Codec, DeflateCodec, SnappyCodec
from tests.fuzz.engine import Target
from tests.fuzz.stage import Address, BystanderError, DaemonTarget, LineClient, http_get
from tests.fuzz.targets_wire import COMMANDS, WORDS, HttpReaderTarget

ANY_PORT = "127.0.0.1:0"
STEADY = "steady#ephemeral"
"""The topic of the bystander, which keeps nothing on the disk."""
PUBLISH = command.pub(STEADY, b"steady")


class HomelyNsqd(Nsqd):
    """An nsqd that no input makes connect elsewhere."""

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Take them, and ask none of them."""


class NsqdTarget(DaemonTarget):
    """A whole nsqd. Its topics are deleted after each input, except the bystander's.

    An input that begins with S or D is compressed by snappy or deflate, behind an IDENTIFY that agrees on it. One that
    begins with s or d is sent there as it is. (The protocol begins with a space.)
    """

    name = "nsqd"
    modules: ClassVar[tuple[str, ...]] = ("nsqd/*.py", "broker/*.py", "wire/*.py")
    tokens: ClassVar[tuple[bytes, ...]] = (*COMMANDS, *WORDS)
    logs_debug = False

    def seeds(self) -> Iterable[bytes]:
        sub, publish = b"SUB t c\nRDY 10\n", b"".join(COMMANDS[8:13])
        yield MAGIC_V2 + publish + sub + b"".join(COMMANDS[:6]) + b"CLS\n"
        yield MAGIC_V2 + COMMANDS[13] + publish + sub + publish
        for kind, codec in ((b"s", SnappyCodec()), (b"d", DeflateCodec(6))):
            yield kind.upper() + publish + sub + b"NOP\n"
            yield kind + codec.compress(publish + sub + b"NOP\n") + codec.compress(bytes(50_000))
        numbered = {"feature_negotiation": True, "emberq_producer_id": "00" * 16}
        yield MAGIC_V2 + command.identify(numbered) + command.pub("t", b"x", sequence=1) + b"NOP\n"
        yield MAGIC_V2 + command.pub("t", b"x" * 5000) + command.mpub("t", [b"y" * 50] * 30)

    async def start(self) -> Address:
        self._folder = tempfile.TemporaryDirectory(prefix="emberq-fuzz-")
        options = NsqdOptions(
            data_path=self._folder.name,
            tcp_address=ANY_PORT,
            http_address=ANY_PORT,
            https_address="",
            mem_queue_size=3,
            journal_topic=("journaled",),
        )
        if self.logs_debug:
            logging.getLogger("emberq").setLevel(logging.DEBUG)
        self._nsqd = HomelyNsqd(options, clock=ManualClock())
        await self._nsqd.start()
        self._nsqd.log_level_changed()
        address = self._nsqd.tcp_address
        assert isinstance(address, tuple)
        self._bystander = LineClient(address, MAGIC_V2)
        return address

    async def stop(self) -> None:
        self._bystander.close()
        await self._nsqd.stop()
        self._folder.cleanup()
        logging.getLogger("emberq").setLevel(logging.INFO)

    async def prepare(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        feature = {b"S": "snappy", b"D": "deflate"}.get(data[:1].upper())
        if feature is None:
            return data
        writer.write(MAGIC_V2 + command.identify({"feature_negotiation": True, feature: True}))
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        codec: Codec = SnappyCodec() if feature == "snappy" else DeflateCodec(6)
        return codec.compress(data[1:]) if data[:1].isupper() else data[1:]

    async def bystand(self) -> None:
        await self._bystander.ask(PUBLISH, frame.OK)

    async def tidy(self) -> None:
        broker = self._nsqd.broker
        for name in [topic.name for topic in broker.topics() if topic.name != STEADY]:
            broker.delete_topic(name)
        for topic in broker.topics():
            topic.empty()
        await asyncio.sleep(0)


class TracedNsqdTarget(NsqdTarget):
    """The same with the debug log of connections, which takes another way through the session."""

    name = "nsqd-traced"
    logs_debug = True
    slice_count = 40


class NsqdHttpTarget(NsqdTarget):
    """The HTTP API of an nsqd."""

    name = "nsqd-http"
    modules = ("nsqd/api/*.py", "http/*.py", "broker/*.py")
    ends_with_client = False
    tokens = (
        *HttpReaderTarget.tokens[:12],
        b"/pub?topic=t",
        b"/mpub?topic=t&binary=true",
        b"&channel=c",
        b"&defer=10",
        b"/topic/create?topic=t",
        b"/channel/create?topic=t&channel=c",
        b"/stats?format=json",
        b"&include_clients=false",
        b"/topic/pause?topic=t",
        b"/channel/peek?topic=t&channel=c&count=3",
        b"/journal/read?topic=journaled&offset=0",
        b"topic=journaled",
        b"/channel/seek?topic=journaled&channel=c&to=0",
        b"/channel/policy?topic=t&channel=c",
        b"/config/log_level",
        b"%23ephemeral",
        b"GET /info HTTP/1.1\r\nHost: x\r\n\r\n",
    )

    def seeds(self) -> Iterable[bytes]:
        host = b" HTTP/1.1\r\nHost: x\r\n"
        for path in (b"/topic/create?topic=t", b"/channel/create?topic=t&channel=c", b"/topic/empty?topic=t"):
            yield b"POST " + path + host + b"\r\n"
        yield b"POST /pub?topic=t" + host + b"Content-Length: 4\r\n\r\nbody"
        yield b"POST /pub?topic=journaled&defer=5" + host + b"Content-Length: 4\r\n\r\nbody"
        yield b"POST /mpub?topic=t" + host + b"Content-Length: 8\r\n\r\none\ntwo\n"
        body = command.mpub("t", [b"one", b"two"])[len(b"MPUB t\n") + 4 :]
        yield b"POST /mpub?topic=t&binary=true" + host + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        policy = b'{"max_attempts":3,"dead_letter_topic":"dead"}'
        yield (
            b"POST /channel/create?topic=t&channel=c" + host + b"\r\n"
            b"POST /channel/policy?topic=t&channel=c" + host + b"Content-Length: %d\r\n\r\n%b" % (len(policy), policy)
        )
        for path in (b"/stats?format=json&topic=t", b"/stats", b"/info", b"/metrics", b"/config/log_level", b"/ping"):
            yield b"GET " + path + host + b"\r\n"
        for path in (b"/channel/peek?topic=t&channel=c&count=2", b"/journal?topic=journaled", b"/topic/peek?topic=t"):
            yield b"POST /channel/create?topic=t&channel=c" + host + b"\r\nGET " + path + host + b"\r\n"
        yield b"PUT /config/nsqlookupd_tcp_addresses" + host + b'Content-Length: 8\r\n\r\n["h:41"]'
        yield b"PUT /config/log_level" + host + b"Content-Length: 4\r\n\r\ninfo"

    async def start(self) -> Address:
        await super().start()
        address = self._nsqd.http_address
        assert isinstance(address, tuple)
        return address

    async def prepare(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        return data


class LookupdTarget(DaemonTarget):
    """A whole nsqlookupd. The bystander is an nsqd that says that it is alive."""

    name = "lookupd"
    modules: ClassVar[tuple[str, ...]] = ("lookupd/*.py", "wire/lookup.py", "wire/parameter.py")
    tokens: ClassVar[tuple[bytes, ...]] = (
        b"  V1",
        b"IDENTIFY\n",
        b"PING\n",
        b"REGISTER t\n",
        b"REGISTER t c\n",
        b"UNREGISTER t c\n",
        b"UNREGISTER t\n",
        b"#ephemeral",
        b" ",
        b"\r\n",
        b'"tcp_port":',
        b"\0\0\0\x02{}",
    )
    _identity: ClassVar[dict[str, object]] = {
        "broadcast_address": "nsqd.example",
        "hostname": "h",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }

    def seeds(self) -> Iterable[bytes]:
        identify = self._identify(self._identity)
        yield b"  V1" + identify + b"REGISTER t c\nREGISTER u\nPING\nUNREGISTER t c\nUNREGISTER u\n"
        yield b"  V1PING\n" + identify + b"REGISTER t#ephemeral c#ephemeral\n" * 3
        yield b"  V1" + self._identify(self._identity | {"topology_zone": "z", "topology_region": "r"}) + b"PING\n"

    def _identify(self, identity: dict[str, object]) -> bytes:
        body = json.dumps(identity).encode()
        return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body

    async def start(self) -> Address:
        options = LookupdOptions(tcp_address=ANY_PORT, http_address=ANY_PORT)
        self._lookupd = Nsqlookupd(options, clock=ManualClock())
        await self._lookupd.start()
        self._bystander = LineClient(self._lookupd.tcp_address, b"  V1")
        return self._lookupd.tcp_address

    async def stop(self) -> None:
        self._bystander.close()
        await self._lookupd.stop()

    async def bystand(self) -> None:
        await self._bystander.ask(b"PING\n", b"\0\0\0\x02OK")


class LookupdHttpTarget(LookupdTarget):
    """The HTTP API of an nsqlookupd."""

    name = "lookupd-http"
    modules = ("lookupd/*.py", "http/*.py")
    ends_with_client = False
    tokens = (
        *HttpReaderTarget.tokens[:12],
        b"/lookup?topic=t",
        b"/topics",
        b"/channels?topic=t",
        b"/nodes",
        b"/topic/create?topic=t",
        b"/topic/tombstone?topic=t&node=h:1",
        b"/channel/delete?topic=t&channel=c",
        b"/debug",
        b"%23ephemeral",
    )

    def seeds(self) -> Iterable[bytes]:
        host = b" HTTP/1.1\r\nHost: x\r\n\r\n"
        changes = (b"/topic/create?topic=t", b"/channel/create?topic=t&channel=c", b"/topic/tombstone?topic=t&node=h:1")
        yield b"".join(b"POST " + path + host for path in changes)
        yield b"POST /topic/create?topic=t%23ephemeral" + host + b"POST /topic/delete?topic=t%23ephemeral" + host
        reads = (b"/lookup?topic=t", b"/topics", b"/channels?topic=t", b"/nodes", b"/debug", b"/info", b"/metrics")
        yield b"POST /topic/create?topic=t" + host + b"".join(b"GET " + path + host for path in reads)
        yield b"POST /channel/delete?topic=t&channel=c" + host

    async def start(self) -> Address:
        await super().start()
        return self._lookupd.http_address

    async def bystand(self) -> None:
        await super().bystand()
        status, body = await http_get(self._lookupd.http_address, "/ping")
        if (status, body) != (200, b"OK"):
            raise BystanderError(f"/ping: {status} {body!r}")


TARGETS: tuple[type[Target], ...] = (NsqdTarget, TracedNsqdTarget, NsqdHttpTarget, LookupdTarget, LookupdHttpTarget)
