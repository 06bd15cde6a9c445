"""Two real nsqds, a real nsqlookupd and a real nsqadmin, and what a test does to them behind the pages' back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from emberq.base.clock import NS_PER_MS
from emberq.embedded import EmbeddedThread
from tests.browser.admin_process import AdminProcess
from tests.support.http_client import Answer, HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import Client
from tests.support.waiting import wait_until

JOURNALED = "journaled"
"""Topics whose names begin so are kept as journals."""
HEARTBEAT_MS = 3_600_000
"""Longer than all tests take: consumers here answer no heartbeats, and nsqd cuts off who is silent for two."""


class Cluster:
    """The daemons, and HTTP to each nsqd."""

    def __init__(self, nsq: EmbeddedThread, admin: AdminProcess) -> None:
        self._nsq = nsq
        self._clients: list[Client] = []
        self.admin = admin
        self.nodes = nsq.nsqd_http_addresses
        self.tcp_addresses = nsq.nsqd_tcp_addresses
        self.lookupd = nsq.lookupd_http_addresses[0]

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def post(self, node: int, target: str, body: bytes = b"") -> Answer:
        """Ask one nsqd to do something; it must not refuse."""
        answer = self._http(node).post(target, body)
        assert answer.status == 200, answer
        return answer

    def publish(self, topic: str, *bodies: bytes, node: int = 0) -> None:
        for body in bodies:
            self.post(node, f"/pub?topic={quote(topic)}", body)

    def create(self, topic: str, *channels: str, nodes: tuple[int, ...] = (0, 1)) -> None:
        """A topic with channels, on both nsqds; returns when nsqlookupd knows all of it."""
        for node in nodes:
            self.post(node, f"/topic/create?topic={quote(topic)}")
            for channel in channels:
                self.post(node, f"/channel/create?topic={quote(topic)}&channel={quote(channel)}")
        wait_until(lambda: len(self.producers(topic)) == len(nodes) and set(channels) <= self._known_channels(topic))

    def producers(self, topic: str) -> list[dict[str, Any]]:
        """The nsqds that nsqlookupd would send a consumer to."""
        found: list[dict[str, Any]] = self._looked_up(topic).get("producers", [])
        return found

    def _known_channels(self, topic: str) -> set[str]:
        return set(self._looked_up(topic).get("channels", ()))

    def _looked_up(self, topic: str) -> dict[str, Any]:
        """What nsqlookupd says of a topic; nothing if it knows none of that name."""
        answer = _client(self._nsq.lookupd_http_addresses[0]).get(f"/lookup?topic={quote(topic)}")
        found: dict[str, Any] = answer.json() if answer.status == 200 else {}
        return found

    def topic(self, name: str, *, node: int = 0) -> dict[str, Any] | None:
        """What an nsqd says of a topic; None if it has none of that name."""
        answer = self._http(node).get(f"/stats?format=json&topic={quote(name)}").json()
        return next(iter(answer["topics"] or []), None)

    def channel(self, topic: str, name: str, *, node: int = 0) -> dict[str, Any] | None:
        """What an nsqd says of a channel."""
        found = self.topic(topic, node=node)
        return next((each for each in found["channels"] if each["channel_name"] == name), None) if found else None

    def depth(self, topic: str, channel: str) -> int:
        """Messages that wait in a channel on both nsqds."""
        found = (self.channel(topic, channel, node=node) for node in (0, 1))
        return sum(each["depth"] for each in found if each is not None)

    def consumer(self, topic: str, channel: str, *, node: int = 0, rdy: int = 0, **identity: Any) -> Client:
        """A connection that subscribed, until the cluster goes."""
        host, _, port = self.tcp_addresses[node].partition(":")
        client = Client((host, int(port)))
        self._clients.append(client)
        client.identify(**{"heartbeat_interval": HEARTBEAT_MS} | identity)
        client.sub(topic, channel)
        if rdy:
            client.rdy(rdy)
        return client

    @contextmanager
    def with_admin(self, folder: Path, *flags: str) -> Iterator[Cluster]:
        """The same nsqds as another nsqadmin sees them, which is started with these flags."""
        with running_admin(self._nsq, folder, *flags) as admin:
            yield Cluster(self._nsq, admin)

    def ask(self, address: str, target: str, body: bytes = b"") -> None:
        """Ask an nsqd at this address to do something; it must not refuse."""
        assert _client(address).post(target, body).status == 200

    @contextmanager
    def with_nsqd(self, folder: Path) -> Iterator[tuple[NsqdProcess, str]]:
        """One more nsqd of the cluster, as a process of its own; and its HTTP address."""
        flags = (
            "--http-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--lookupd-tcp-address={self._nsq.lookupd_tcp_addresses[0]}",
        )
        data_path = folder / "data"
        data_path.mkdir()
        with NsqdProcess(*flags, data_path=data_path, log_path=folder / "nsqd.log") as nsqd:
            wait_until(lambda: self._http_port(nsqd) != 0)
            yield nsqd, f"127.0.0.1:{self._http_port(nsqd)}"

    def _http_port(self, nsqd: NsqdProcess) -> int:
        """Where nsqlookupd says the nsqd is; 0 while it does not know it."""
        listed = _client(self._nsq.lookupd_http_addresses[0]).get("/nodes").json()["producers"]
        return next((each["http_port"] for each in listed if each["tcp_port"] == nsqd.tcp_port), 0)

    def _http(self, node: int) -> HttpClient:
        return _client(self.nodes[node])


def dead_letter(topic: str, channel: str, body: str) -> bytes:
    """A message as an nsqd puts it among the dead letters."""
    origin = {"topic": topic, "channel": channel, "id": "0" * 16, "attempts": 5, "timestamp_ns": 1}
    return json.dumps({"emberq_dead_letter": 1, **origin, "reason": "max_attempts", "body": body}).encode()


@contextmanager
def running_cluster(folder: Path, *flags: str, **nsqd_options: Any) -> Iterator[Cluster]:
    """All of it; the flags are nsqadmin's."""
    limits = {"max_heartbeat_interval_ns": HEARTBEAT_MS * NS_PER_MS}
    options = {"nsqd_count": 2, "journal_topic": (f"^{JOURNALED}",)} | limits | nsqd_options
    with ExitStack() as running:
        nsq = running.enter_context(EmbeddedThread(**options))
        admin = running.enter_context(running_admin(nsq, folder, *flags))
        cluster = Cluster(nsq, admin)
        running.callback(cluster.close)
        yield cluster


def running_admin(nsq: EmbeddedThread, folder: Path, *flags: str) -> AdminProcess:
    """An nsqadmin that asks the nsqlookupd of these nsqds."""
    return AdminProcess(
        f"--lookupd-http-address={nsq.lookupd_http_addresses[0]}", *flags, log_path=folder / "nsqadmin.log"
    )


def _client(address: str) -> HttpClient:
    host, _, port = address.partition(":")
    return HttpClient((host, int(port)))
