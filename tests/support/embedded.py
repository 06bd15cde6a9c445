"""The nsqds of the fixture `nsq`, seen from outside: what brings them to a state, and what asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote

from emberq.embedded import EmbeddedThread
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client
from tests.support.raw_connection import Address
from tests.support.waiting import wait_until


def address_of(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def http_of(address: str) -> HttpClient:
    return HttpClient(address_of(address))


def post(address: str, target: str, body: bytes = b"") -> None:
    """What must succeed."""
    answer = http_of(address).post(target, body)
    assert answer.status == 200, answer


def create(nsq: EmbeddedThread, topic: str, *channels: str, node: int = 0) -> None:
    """Make a topic with channels on one nsqd, and wait until nsqlookupd knows them."""
    nsqd = nsq.nsqd_http_addresses[node]
    post(nsqd, f"/topic/create?topic={quote(topic)}")
    for channel in channels:
        post(nsqd, f"/channel/create?topic={quote(topic)}&channel={quote(channel)}")
    for lookupd in nsq.lookupd_http_addresses:
        wait_until(lambda lookupd=lookupd: _is_registered(lookupd, topic, channels, nsqd))  # type: ignore[misc]


def _is_registered(lookupd: str, topic: str, channels: tuple[str, ...], nsqd: str) -> bool:
    answer = http_of(lookupd).get(f"/lookup?topic={quote(topic)}")
    if answer.status != 200:
        return False
    found = answer.json()
    nodes = {f"{producer['broadcast_address']}:{producer['http_port']}" for producer in found["producers"]}
    return nsqd in nodes and set(channels) <= set(found["channels"])


def publish(nsq: EmbeddedThread, topic: str, *bodies: bytes, node: int = 0) -> None:
    for body in bodies:
        post(nsq.nsqd_http_addresses[node], f"/pub?topic={quote(topic)}", body)


class ChannelCounts(NamedTuple):
    """Where the messages of a channel are."""

    waiting: int
    in_flight: int
    deferred: int
    requeued: int
    """So many times, over all messages."""

    @property
    def unfinished(self) -> int:
        return self.waiting + self.in_flight + self.deferred


class Broker:
    """One nsqd of the fixture `nsq`, seen from outside."""

    def __init__(self, nsq: EmbeddedThread, *, number: int = 0) -> None:
        self.tcp_address = nsq.nsqd_tcp_addresses[number]
        self._http = HttpClient(address_of(nsq.nsqd_http_addresses[number]))

    def create_channel(self, topic: str, channel: str) -> None:
        self._http.post(f"/topic/create?topic={topic}")
        self._http.post(f"/channel/create?topic={topic}&channel={channel}")

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        with closing(Client(address_of(self.tcp_address))) as client:
            client.mpub(topic, bodies)

    def queue(self, topic: str, channel: str, bodies: Sequence[bytes]) -> None:
        """Publish for a channel that is there to count them."""
        self.create_channel(topic, channel)
        self.publish(topic, bodies)

    def take(self, topic: str, count: int, *, channel: str = "check") -> list[bytes]:
        """The bodies of so many messages of a topic, waiting for them if need be."""
        with closing(Client(address_of(self.tcp_address))) as client:
            client.sub(topic, channel)
            client.rdy(count)
            messages = client.read_messages(count)
            for message in messages:
                client.fin(message)
            client.frames_until_now()
            return [message.body for message in messages]

    def counts(self, topic: str, channel: str) -> ChannelCounts:
        """Zeros if there is no such channel."""
        found = self._channel(topic, channel)
        return ChannelCounts(
            found.get("depth", 0),
            found.get("in_flight_count", 0),
            found.get("deferred_count", 0),
            found.get("requeue_count", 0),
        )

    def take_all(self, topic: str) -> list[bytes]:
        """The bodies of all that was published to a topic, of which nobody has taken anything yet."""
        return self.take(topic, self.message_count(topic))

    def user_agents(self, topic: str, channel: str) -> list[str]:
        return [client["user_agent"] for client in self._channel(topic, channel).get("clients", [])]

    def message_count(self, topic: str) -> int:
        """How many were ever published to a topic."""
        return sum(found["message_count"] for found in self._topics(topic))

    def unfinished(self, topic: str) -> int:
        """Messages of the topic that nsqd still has."""
        (found,) = self._topics(topic)
        return int(found["depth"] + sum(each["depth"] + each["in_flight_count"] for each in found["channels"]))

    def _topics(self, topic: str) -> list[dict[str, Any]]:
        topics: list[dict[str, Any]] | None = self._http.get(f"/stats?format=json&topic={quote(topic)}").json()[
            "topics"
        ]
        return topics or []  # NSQ's way to say that there is none is null

    def _channel(self, topic: str, channel: str) -> dict[str, Any]:
        channels = [found for each in self._topics(topic) for found in each["channels"] or []]
        return next((found for found in channels if found["channel_name"] == channel), {})
