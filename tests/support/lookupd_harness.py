"""nsqlookupd inside the test's process, with its time in the test's hand, and a client that shares no code with it.

`LookupdHarness` runs the real daemon on an event loop in a thread of its own; clients reach it through real sockets.
Time stands still until `advance` moves it. `Nsqd` speaks the V1 protocol as an nsqd would, on a blocking socket:

    client -> server   | COMMAND params... LF |   or   | IDENTIFY LF | int32 size | JSON |
    server -> client   | int32 size | data |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import uvloop

from emberq.base.clock import ManualClock
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions
from tests.support.http_client import Answer, HttpClient
from tests.support.waiting import PATIENCE_S, wait_until

T = TypeVar("T")

MAGIC = b"  V1"

IDENTITY: dict[str, Any] = {
    "broadcast_address": "nsqd.example",
    "hostname": "host",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
"""What an nsqd says of itself."""
NODE = "nsqd.example:4151"
"""The name it is tombstoned by."""


class Nsqd:
    """A connection to nsqlookupd. Every read gives up after `PATIENCE_S`."""

    def __init__(self, address: tuple[str, int], *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(address)
        self.send(magic)

    @property
    def address(self) -> str:
        """Its own end of the connection, which nsqlookupd takes for its id."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def command(self, line: str, body: bytes | None = None) -> bytes:
        """Send a command and return its answer."""
        tail = b"" if body is None else struct.pack(">i", len(body)) + body
        self.send(line.encode() + b"\n" + tail)
        return self.read()

    def identify(self, **fields: Any) -> dict[str, Any]:
        """IDENTIFY as `IDENTITY` with these fields changed; returns the answer."""
        answer: dict[str, Any] = json.loads(self.command("IDENTIFY", json.dumps(IDENTITY | fields).encode()))
        return answer

    def register(self, *names: str) -> None:
        """Register a topic, or a topic and a channel, and await OK."""
        assert self.command(" ".join(("REGISTER", *names))) == b"OK"

    def unregister(self, *names: str) -> None:
        """Unregister a topic, or a channel of a topic, and await OK."""
        assert self.command(" ".join(("UNREGISTER", *names))) == b"OK"

    def ping(self) -> None:
        """Say that it is alive, and await OK."""
        assert self.command("PING") == b"OK"

    def read(self) -> bytes:
        """The data of the next answer."""
        (size,) = struct.unpack(">i", self.read_exactly(4))
        return self.read_exactly(size)

    def read_exactly(self, size: int) -> bytes:
        """The next `size` bytes."""
        data = bytearray()
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise EOFError(f"connection closed after {len(data)} of {size} bytes")
            data += received
        return bytes(data)

    def expect_eof(self) -> None:
        """nsqlookupd closed, and said nothing more."""
        with contextlib.suppress(ConnectionResetError):
            assert self.socket.recv(1) == b""

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish: what nsqlookupd writes from now on cannot be delivered."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Close in order. Closing twice is harmless."""
        self.socket.close()


class LookupdHarness:
    """A running nsqlookupd; a context manager. Owns the daemon, its loop, its thread and the clients it connected."""

    def __init__(self, **options: Any) -> None:
        listen = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        self.options = LookupdOptions(**(listen | options))
        self.clock = ManualClock()
        self._daemon: Nsqlookupd | None = None
        self._clients: list[Nsqd] = []
        self._unhandled: list[str] = []  # what the daemon let escape into the event loop
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._note_unhandled)
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsqlookupd", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            daemon = Nsqlookupd(self.options, clock=self.clock)
            self._await(daemon.start())
            self._daemon = daemon
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        try:
            self.stop()
            for client in self._clients:
                client.close()
        finally:
            self._end_thread()
        assert not self._unhandled, self._unhandled

    def stop(self) -> None:
        """Shut the daemon down, if it runs."""
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            self._await(daemon.stop())

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the daemon's thread and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

    @property
    def daemon(self) -> Nsqlookupd:
        """The running daemon."""
        assert self._daemon is not None, "nsqlookupd is not running"
        return self._daemon

    def advance(self, *, ms: int) -> None:
        """Move the clock, ringing every alarm that has come due."""

        def move() -> None:
            self.clock.advance(ms=ms)
            self.daemon.run_timers()

        self.call(move)

    def connect(self, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> Nsqd:
        """A new connection, closed with the harness at the latest."""
        client = Nsqd(self.daemon.tcp_address, magic=magic, receive_buffer_bytes=receive_buffer_bytes)
        self._clients.append(client)
        return client

    def nsqd(self, *topics: str, **identity: Any) -> Nsqd:
        """A new connection that identified itself and registered these topics."""
        client = self.connect()
        client.identify(**identity)
        for topic in topics:
            client.register(topic)
        return client

    def leave(self, client: Nsqd) -> None:
        """Close a client's connection, and wait until nsqlookupd has noticed."""
        address = client.address
        client.close()
        wait_until(lambda: all(node["remote_address"] != address for node in self.nodes()))

    # What anybody may ask and do.

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.daemon.http_address)

    def get(self, target: str) -> Answer:
        return self.http.get(target)

    def post(self, target: str) -> Answer:
        return self.http.post(target)

    def topics(self) -> list[str]:
        """The names in /topics, sorted."""
        return sorted(self.get("/topics").json()["topics"])

    def channels(self, topic: str) -> list[str]:
        """The names in /channels, sorted."""
        return sorted(self.get(f"/channels?topic={topic.replace('#', '%23')}").json()["channels"])

    def lookup(self, topic: str) -> dict[str, Any]:
        """The answer of /lookup, which must not be an error."""
        answer = self.get(f"/lookup?topic={topic.replace('#', '%23')}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        return found

    def producer_count(self, topic: str) -> int:
        """How many producers /lookup shows."""
        return len(self.lookup(topic)["producers"])

    def nodes(self) -> list[dict[str, Any]]:
        """The producers in /nodes."""
        nodes: list[dict[str, Any]] = self.get("/nodes").json()["producers"]
        return nodes
