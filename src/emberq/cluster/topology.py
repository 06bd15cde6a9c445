"""Which nsqds are in the cluster, which topics they have, and which of them are out of date.

The user names either nsqlookupds, which know, or the nsqds themselves. Every question is answered in both cases:

    question               by nsqlookupds                          by nsqds
    topics                 /topics, united                         /stats, the names united
    inactive topics        /lookup of each topic: no producer      none: nsqd knows only what it has
    producers of a topic   /lookup?topic=, united                  /stats?topic= lists it; then /info
    all producers          /nodes, united                          /info and /stats

**Addresses.** A `ClusterNode` is an nsqd as the nsqlookupds that know it describe it, or as it describes itself. It has
two addresses. By `node`, its broadcast address and HTTP port, the whole cluster calls it: it is shown, and a tombstone
is set by it. At `http_address` it is reached. They are the same, except when the user gave the address of an nsqd: then
that one stays in use, for it is known to work from here (through a tunnel, out of a container).

**Bounds.** Any client may register with an nsqlookupd whatever it likes. Of very many topics or nsqds some are shown,
with a warning, and the inactive among very many topics are not all looked for.

**Versions** are compared by the precedence of semantic versions.

    1.3.0-rc.1 < 1.3.0-rc.2 < 1.3.0 < 1.3.1;   what cannot be read counts as 0.0.0

A version of emberq, `1.3.0-emberq`, names the NSQ it is compatible with and its maker: it is 1.3.0, not something that
came before it. Beside the reference's nsqd of that version, neither is out of date.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from emberq.base.address import TcpAddress, split_scheme
from emberq.cluster.upstream import (
    DaemonKind,
    Document,
    Findings,
    NodeNotFoundError,
    Upstreams,
    UpstreamsFailedError,
    flags,
    integer,
    objects,
    text,
    texts,
)

T = TypeVar("T")

# Versions

_MAKER = "-emberq"
MAX_DIGITS = 18
"""Of a number in a version. A hostile daemon may send more than Python converts."""
_NUMBER = rf"(\d{{1,{MAX_DIGITS}}})"
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII)

Precedence = tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]
"""Numbers; whether it is a release; the parts of what stands behind the dash, where numbers come before words."""

_UNREADABLE: Precedence = ((0, 0, 0), True, ())


def precedence(version: str) -> Precedence:
    """Something that is smaller the older `version` is."""
    read = _VERSION.fullmatch(version.removesuffix(_MAKER))
    if read is None:
        return _UNREADABLE
    major, minor, patch, before = read.groups()
    parts = () if before is None else tuple(_part(part) for part in before.split("."))
    return (int(major), int(minor), int(patch)), before is None, parts


def _part(part: str) -> tuple[bool, int, str]:
    return (False, int(part), "") if part.isdigit() and len(part) <= MAX_DIGITS else (True, 0, part)


# Nodes

UNKNOWN_REMOTE_ADDRESS = "N/A"


class ProducerTopic(NamedTuple):
    """A topic on a node."""

    topic: str
    tombstoned: bool = False
    """nsqlookupd keeps the node from consumers of this topic, so that it can be deleted there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """An nsqd of the cluster."""

    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str
    remote_address: str = ""
    """Where its connection to nsqlookupd comes from; empty if no nsqlookupd was asked."""
    remote_addresses: tuple[str, ...] | None = None
    """`<nsqlookupd>/<remote address>` for each nsqlookupd that knows it; None if none was asked."""
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
        """Where it is asked."""
        return self.reached_at or self.node


def producers_of_lookup(document: Document) -> list[ClusterNode]:
    """Those in an answer of nsqlookupd's /lookup."""
    return [_identity(described) for described in objects(document, "producers")[:MAX_NODES]]


def producers_of_nodes(document: Document, *, lookupd: str, with_topics: bool = True) -> list[ClusterNode]:
    """Those in an answer of /nodes by the nsqlookupd at `lookupd`; their topics are most of the answer."""
    listed = objects(document, "producers")[: MAX_NODES + 1]
    return [_registered(described, lookupd, with_topics) for described in listed]


def producer_of_info(document: Document, *, address: str, topics: Iterable[str] = ()) -> ClusterNode:
    """The nsqd that answered /info at `address`."""
    own_topics = tuple(ProducerTopic(topic) for topic in sorted(topics))
    return replace(_identity(document), topics=own_topics, reached_at=address)


def _identity(document: Document) -> ClusterNode:
    return ClusterNode(
        broadcast_address=text(document, "broadcast_address"),
        hostname=text(document, "hostname"),
        tcp_port=integer(document, "tcp_port"),
        http_port=integer(document, "http_port"),
        version=text(document, "version"),
        remote_address=text(document, "remote_address"),
        topology_zone=text(document, "topology_zone"),
        topology_region=text(document, "topology_region"),
    )


def _registered(document: Document, lookupd: str, with_topics: bool) -> ClusterNode:
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


def united(producers: Iterable[ClusterNode]) -> list[ClusterNode]:
    """Each nsqd once, though several nsqlookupds know it: with all that know it, and all topics any of them knows."""
    by_tcp_address: dict[str, ClusterNode] = {}
    for producer in producers:
        known = by_tcp_address.get(producer.tcp_address)
        by_tcp_address[producer.tcp_address] = producer if known is None else _united(known, producer)
    return list(by_tcp_address.values())


def _united(first: ClusterNode, second: ClusterNode) -> ClusterNode:
    tombstoned: dict[str, bool] = {}
    for each in (*first.topics, *second.topics):
        tombstoned[each.topic] = tombstoned.get(each.topic, False) or each.tombstoned
    return replace(
        first,
        remote_addresses=(*(first.remote_addresses or ()), *(second.remote_addresses or ())),
        topics=tuple(ProducerTopic(topic, tombstoned[topic]) for topic in sorted(tombstoned)),
    )


def by_hostname(producers: Iterable[ClusterNode]) -> tuple[ClusterNode, ...]:
    """In the order in which nodes are shown, those behind the newest version marked."""
    listed = sorted(producers, key=lambda each: (each.hostname, each.node))
    newest = max((precedence(each.version) for each in listed), default=None)
    return tuple(replace(each, out_of_date=precedence(each.version) != newest) for each in listed)


# Asking who is there

MAX_TOPICS = 100_000
"""As many as are shown. Their names take some megabytes, and some hundredths of a second to sort."""
MAX_NODES = 1_000
"""As many as are asked; it takes some seconds when each of them is slow."""
MAX_LOOKED_UP = 1_000
"""Topics that are looked up to find the inactive ones; it takes a second or two."""
_MANY_NAMES = 2_000
"""More are sorted in the background."""
TOPICS_AT_ONCE = 32
"""Topics that are looked up together, so that a thousand of them do not wait for connections at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddresses:
    """The HTTP addresses, `host:port` or `https://host:port`, that the user gave: of one kind or the other.

    nsqlookupds win.
    """

    lookupds: tuple[str, ...] = ()
    nsqds: tuple[str, ...] = ()

    @property
    def is_encrypted(self) -> bool:
        """Whether all of them are asked by HTTPS. Then nsqds are shown no secret in clear, whatever they say."""
        named = self.lookupds or self.nsqds
        return bool(named) and all(split_scheme(address)[0] == "https" for address in named)


@dataclass(frozen=True, slots=True)
class _Lookup:
    producers: list[ClusterNode]
    channels: list[str]


class Topology:
    """Answers questions about nsqds and topics. Keeps nothing: every answer is asked for anew."""

    def __init__(self, upstreams: Upstreams, addresses: ClusterAddresses) -> None:
        self._upstreams = upstreams
        self.addresses = addresses

    async def topics(self) -> Findings[tuple[str, ...]]:
        """The names of all topics, sorted."""
        if self.addresses.lookupds:
            return await self.registered_topics()
        return await self._united(
            await self._upstreams.ask_each(DaemonKind.NSQD, self.addresses.nsqds, self._topics_of_nsqd)
        )

    async def registered_topics(self) -> Findings[tuple[str, ...]]:
        """The names of all topics that the nsqlookupds know, sorted; without any nsqlookupd there are none."""
        if not self.addresses.lookupds:
            return Findings(())
        lookupds = self.addresses.lookupds
        return await self._united(await self._upstreams.ask_each(DaemonKind.LOOKUPD, lookupds, self._topics_of_lookupd))

    async def _united(self, found: Findings[list[list[str]]]) -> Findings[tuple[str, ...]]:
        if sum(map(len, found.value)) < _MANY_NAMES:
            return _united_names(found)
        return await self._upstreams.background.run(lambda: _united_names(found))

    async def inactive_topics(self) -> Findings[dict[str, tuple[str, ...]]]:
        """The topics that no nsqd has at present, each with its channels; sorted."""
        if not self.addresses.lookupds:
            return Findings({})
        topics = await self.topics()
        inactive: dict[str, tuple[str, ...]] = {}
        warnings = list(topics.warnings)
        active = await self._active_topics()
        suspects = [topic for topic in topics.value if topic not in active]
        if len(suspects) > MAX_LOOKED_UP:
            warnings.append(f"{len(suspects)} topics may be inactive, of which {MAX_LOOKED_UP} were looked up")
            del suspects[MAX_LOOKED_UP:]
        for start in range(0, len(suspects), TOPICS_AT_ONCE):
            names = suspects[start : start + TOPICS_AT_ONCE]
            for name, found in zip(names, await asyncio.gather(*map(self._lookup_or_warn, names)), strict=True):
                warnings += found.warnings
                if found.value is not None and not found.value.producers:
                    inactive[name] = tuple(sorted(found.value.channels))
        return Findings(inactive, tuple(dict.fromkeys(warnings)))  # a dead nsqlookupd fails for every topic alike

    async def _active_topics(self) -> set[str]:
        """The topics that some nsqd has, by what the nsqlookupds say of their nodes; an unknown one may be active."""
        try:
            found = await self._registered(with_topics=True)
        except UpstreamsFailedError:
            return set()
        return {each.topic for node in found.value for each in node.topics if not each.tombstoned}

    async def topic_producers(self, topic: str) -> Findings[tuple[ClusterNode, ...]]:
        """The nsqds that have the topic."""
        if self.addresses.lookupds:
            return await self.registered_producers(topic)
        asked = await self._upstreams.ask_each(
            DaemonKind.NSQD, self.addresses.nsqds, lambda address: self._nsqd_if_it_has(topic, address)
        )
        return Findings(tuple(each for each in asked.value if each is not None), asked.warnings)

    async def registered_producers(self, topic: str) -> Findings[tuple[ClusterNode, ...]]:
        """The nsqds that the nsqlookupds know to have the topic; without any nsqlookupd, UpstreamsFailedError."""
        found = await self._lookup(topic)
        return Findings(tuple(found.value.producers), found.warnings)

    async def producers(self) -> Findings[tuple[ClusterNode, ...]]:
        """All nsqds with their topics, by host name."""
        if not self.addresses.lookupds:
            return await self._given(self._nsqd_with_topics)
        return await self._registered(with_topics=True)

    async def identities(self) -> Findings[tuple[ClusterNode, ...]]:
        """All nsqds by host name, without their topics: that takes half the queries, or most of the reading away."""
        if not self.addresses.lookupds:
            return await self._given(self._nsqd)
        return await self._registered(with_topics=False)

    async def node(self, node: str) -> Findings[ClusterNode]:
        """The nsqd that the cluster calls `node`, without its topics; NodeNotFoundError."""
        found = await self.identities()
        for producer in found.value:
            if producer.node == node:
                return Findings(producer, found.warnings)
        raise NodeNotFoundError(f"no nsqd of the cluster is called {node}")

    async def _registered(self, *, with_topics: bool) -> Findings[tuple[ClusterNode, ...]]:
        """The nsqds that the nsqlookupds know."""
        found = await self._upstreams.ask_each(
            DaemonKind.LOOKUPD, self.addresses.lookupds, lambda address: self._nodes(address, with_topics)
        )
        everyone = [producer for answer in found.value for producer in answer]
        united_ = await self._upstreams.background.run(lambda: by_hostname(united(everyone)))
        return _shortened(Findings(united_, found.warnings), MAX_NODES, "nsqds")

    async def _given(self, ask: Callable[[str], Awaitable[ClusterNode]]) -> Findings[tuple[ClusterNode, ...]]:
        """The nsqds that the user named."""
        found = await self._upstreams.ask_each(DaemonKind.NSQD, self.addresses.nsqds, ask)
        return Findings(by_hostname(found.value), found.warnings)

    async def _lookup(self, topic: str) -> Findings[_Lookup]:
        """What all nsqlookupds together know of a topic, each nsqd and each channel once."""
        found = await self._upstreams.ask_each(
            DaemonKind.LOOKUPD,
            self.addresses.lookupds,
            lambda address: self._upstreams.get(address, "/lookup", _read_lookup, topic=topic),
        )
        producers: dict[str, ClusterNode] = {}
        channels: dict[str, None] = {}
        for answer in found.value:
            channels.update(dict.fromkeys(answer.channels))
            for producer in answer.producers:
                producers.setdefault(producer.node, producer)
        return Findings(_Lookup(list(producers.values()), list(channels)), found.warnings)

    async def _lookup_or_warn(self, topic: str) -> Findings[_Lookup | None]:
        """`_lookup`, or a warning: a topic that was deleted since it was listed must not spoil the other answers."""
        try:
            found = await self._lookup(topic)
        except UpstreamsFailedError as failure:
            return Findings(None, failure.failures)
        return Findings(found.value, found.warnings)

    # What is asked of one daemon.

    async def _topics_of_lookupd(self, address: str) -> list[str]:
        return await self._upstreams.get(address, "/topics", lambda answer: texts(answer, "topics")[: MAX_TOPICS + 1])

    async def _nodes(self, address: str, with_topics: bool) -> list[ClusterNode]:
        return await self._upstreams.get(
            address, "/nodes", lambda answer: producers_of_nodes(answer, lookupd=address, with_topics=with_topics)
        )

    async def _topics_of_nsqd(self, address: str, **query: str) -> list[str]:
        return await self._upstreams.get(
            address, "/stats", _read_topic_names, format="json", **query, include_clients="false"
        )

    async def _nsqd(self, address: str, topics: Iterable[str] = ()) -> ClusterNode:
        return await self._upstreams.get(
            address, "/info", lambda answer: producer_of_info(answer, address=address, topics=topics)
        )

    async def _nsqd_with_topics(self, address: str) -> ClusterNode:
        return await self._nsqd(address, await self._topics_of_nsqd(address))

    async def _nsqd_if_it_has(self, topic: str, address: str) -> ClusterNode | None:
        names = await self._topics_of_nsqd(address, topic=topic)
        return await self._nsqd(address, names) if topic in names else None


def _united_names(found: Findings[list[list[str]]]) -> Findings[tuple[str, ...]]:
    names = {name for answer in found.value for name in answer}
    return _shortened(Findings(tuple(sorted(names)), found.warnings), MAX_TOPICS, "topics")


def _shortened(found: Findings[tuple[T, ...]], limit: int, what: str) -> Findings[tuple[T, ...]]:
    """The first of them, and a warning if there are more."""
    if len(found.value) <= limit:
        return found
    return Findings(found.value[:limit], (*found.warnings, f"there are more than {limit} {what}: not all are shown"))


def _read_lookup(answer: Document) -> _Lookup:
    return _Lookup(producers_of_lookup(answer), texts(answer, "channels"))


def _read_topic_names(answer: Document) -> list[str]:
    return [text(topic, "topic_name") for topic in objects(answer, "topics")]
