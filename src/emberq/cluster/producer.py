"""An nsqd, as the nsqlookupds that know it describe it, or as it describes itself.

It has two addresses. By `node`, its broadcast address and HTTP port, the whole cluster calls it: it is shown, and a
tombstone is set by it. At `http_address` we reach it. They are the same, except when the user gave us the address of
an nsqd: then we go on using that one, for it is known to work from here (through a tunnel, out of a container).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from emberq.base.address import TcpAddress
from emberq.cluster.document import Document, flags, integer, objects, text, texts
from emberq.cluster.version import precedence

UNKNOWN_REMOTE_ADDRESS = "N/A"


class ProducerTopic(NamedTuple):
    """A topic on a node."""

    topic: str
    tombstoned: bool = False
    """nsqlookupd keeps the node from consumers of this topic, so that it can be deleted there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """An nsqd of the cluster."""

    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str
    remote_address: str = ""
    """Where its connection to nsqlookupd comes from; empty if we did not ask an nsqlookupd."""
    remote_addresses: tuple[str, ...] | None = None
    """`<nsqlookupd>/<remote address>` for each nsqlookupd that knows it; None if we did not ask any."""
    topology_zone: str = ""
    topology_region: str = ""
    topics: tuple[ProducerTopic, ...] = ()
    """By name."""
    out_of_date: bool = False
    """Another nsqd of the cluster has a newer version."""
    reached_at: str = ""
    """The address that the user gave for it; empty if it was discovered."""

    @property
    def node(self) -> str:
        """What the cluster calls it, for HTTP."""
        return str(TcpAddress(self.broadcast_address, self.http_port))

    @property
    def tcp_address(self) -> str:
        """What the cluster calls it, for producers and consumers."""
        return str(TcpAddress(self.broadcast_address, self.tcp_port))

    @property
    def http_address(self) -> str:
        """Where we ask it."""
        return self.reached_at or self.node


def producers_of_lookup(document: Document) -> list[Producer]:
    """Those in an answer of nsqlookupd's /lookup."""
    return [_identity(described) for described in objects(document, "producers")]


def producers_of_nodes(document: Document, *, lookupd: str, with_topics: bool = True) -> list[Producer]:
    """Those in an answer of /nodes by the nsqlookupd at `lookupd`; their topics are most of the answer."""
    return [_registered(described, lookupd, with_topics) for described in objects(document, "producers")]


def producer_of_info(document: Document, *, address: str, topics: Iterable[str] = ()) -> Producer:
    """The nsqd that answered /info at `address`."""
    own_topics = tuple(ProducerTopic(topic) for topic in sorted(topics))
    return replace(_identity(document), topics=own_topics, reached_at=address)


def _identity(document: Document) -> Producer:
    return Producer(
        broadcast_address=text(document, "broadcast_address"),
        hostname=text(document, "hostname"),
        tcp_port=integer(document, "tcp_port"),
        http_port=integer(document, "http_port"),
        version=text(document, "version"),
        remote_address=text(document, "remote_address"),
        topology_zone=text(document, "topology_zone"),
        topology_region=text(document, "topology_region"),
    )


def _registered(document: Document, lookupd: str, with_topics: bool) -> Producer:
    identity = _identity(document)
    return replace(
        identity,
        remote_addresses=(f"{lookupd}/{identity.remote_address or UNKNOWN_REMOTE_ADDRESS}",),
        topics=_registered_topics(document) if with_topics else (),
    )


def _registered_topics(document: Document) -> tuple[ProducerTopic, ...]:
    names, tombstones = texts(document, "topics"), flags(document, "tombstones")
    tombstones += [False] * (len(names) - len(tombstones))  # an old nsqlookupd has none
    return tuple(sorted(map(ProducerTopic, names, tombstones)))


def united(producers: Iterable[Producer]) -> list[Producer]:
    """Each nsqd once, though several nsqlookupds know it: with all who know it, and all topics anyone knows of it."""
    by_tcp_address: dict[str, Producer] = {}
    for producer in producers:
        known = by_tcp_address.get(producer.tcp_address)
        by_tcp_address[producer.tcp_address] = producer if known is None else _united(known, producer)
    return list(by_tcp_address.values())


def _united(first: Producer, second: Producer) -> Producer:
    tombstoned: dict[str, bool] = {}
    for each in (*first.topics, *second.topics):
        tombstoned[each.topic] = tombstoned.get(each.topic, False) or each.tombstoned
    return replace(
        first,
        remote_addresses=(*(first.remote_addresses or ()), *(second.remote_addresses or ())),
        topics=tuple(ProducerTopic(topic, tombstoned[topic]) for topic in sorted(tombstoned)),
    )


def by_hostname(producers: Iterable[Producer]) -> tuple[Producer, ...]:
    """In the order in which nodes are shown, those behind the newest version marked."""
    listed = sorted(producers, key=lambda each: (each.hostname, each.node))
    newest = max((precedence(each.version) for each in listed), default=None)
    return tuple(replace(each, out_of_date=precedence(each.version) != newest) for each in listed)
