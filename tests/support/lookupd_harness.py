"""nsqlookupd inside the test's process, with its time in the test's hand, and a client that shares no code with it.

`Nsqd` speaks the V1 protocol as an nsqd would, on a blocking socket:

    client -> server   | COMMAND params... LF |   or   | IDENTIFY LF | int32 size | JSON |
    server -> client   | int32 size | data |
"""

from __future__ import annotations

import json
import struct
from typing import Any

from emberq.base.clock import ManualClock
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions
from tests.support.http_client import Answer, HttpClient
from tests.support.raw_connection import Address, RawConnection
from tests.support.server_thread import DaemonThread
from tests.support.waiting import wait_until

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


class Nsqd(RawConnection):
    """An nsqd's connection to nsqlookupd."""

    def __init__(self, address: Address, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> None:
        super().__init__(address, receive_buffer_bytes=receive_buffer_bytes)
        self.send(magic)

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


class LookupdHarness(DaemonThread[Nsqlookupd]):
    """A running nsqlookupd."""

    def __init__(self, **options: Any) -> None:
        listen = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
        self.options = LookupdOptions(**(listen | options))
        self.clock = ManualClock()
        super().__init__("nsqlookupd", clock=self.clock)

    def _make(self) -> Nsqlookupd:
        return Nsqlookupd(self.options, clock=self.clock)

    def connect(self, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> Nsqd:
        """A new connection, closed with the harness at the latest."""
        return self._kept(Nsqd(self.daemon.tcp_address, magic=magic, receive_buffer_bytes=receive_buffer_bytes))

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
