"""Figures of topics, channels and clients, on one nsqd or over several.

The same classes serve for both. Over several nsqds `node` is `*`, and `nodes` holds the figures of each. They are named
tuples and not frozen dataclasses because there may be tens of thousands of clients, and a named tuple is made in less
than half the time. All topics of all nodes are too many even so: see `node_stats`.

**Sums.** Depths and counts are added up; a thing is paused if it is so anywhere; a policy is the one that all have.
Inside a topic, a channel that only one nsqd has stays as that nsqd's.

**Latency** is how long messages took from publishing to their FIN. An nsqd reports, over the recent past, how many
messages it counted and the value of each percentile it was told to track. Percentiles cannot be added up. So for
several nsqds each quantile keeps the largest and the smallest of their values, and the average weighted by their
counts. (The reference takes for the smallest value that of whichever nsqd comes last. Here it is the smallest.)

**Clients.** 600 consumers of a channel, each connected to 80 nodes, are 48,000 clients, a list too long to read. Those
that are not to be shown are dropped answer by answer (`ClientFilter`). That keeps memory small; to drop all at once
would hold up all threads.

**Pace.** nsqd counts what a client finished and gave back, and what it holds. How fast it works follows from two looks
(`ClientWatch`): the time for a message is what it held, on the mean, by how many it answered per second (Little's law).
What was delivered to it, and neither was answered nor is held, has timed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.upstream import Document, MalformedDocumentError, integer, number, objects

# Latency

EVERY_NODE = "*"


class LatencyPercentile(NamedTuple):
    """One quantile; the values are nanoseconds."""

    quantile: float
    average: float
    min: float
    max: float
    message_count: int
    """Messages behind it."""
    value: float | None = None
    """What the nsqd said; None for several together."""


class Latency(NamedTuple):
    """The percentiles of a topic or a channel."""

    message_count: int
    """Messages that were counted."""
    percentiles: tuple[LatencyPercentile, ...] | None
    """From the largest to the smallest quantile, as nsqd tracks them; None if it tracks none."""
    topic: str = ""
    """Named only for several nsqds together, like the channel and the host."""
    channel: str = ""
    host: str = ""


UNTRACKED = Latency(message_count=0, percentiles=None)
UNTRACKED_DOCUMENT: Document = {"count": 0, "percentiles": None}
"""What an nsqd says that tracks none."""


def latency_of(document: Any) -> Latency:
    """What an nsqd says under `e2e_processing_latency`; an old one says nothing."""
    if document is None or document == UNTRACKED_DOCUMENT:  # nearly always, and cheaper than to read it
        return UNTRACKED
    if not isinstance(document, dict):
        raise MalformedDocumentError("e2e_processing_latency in the answer is not of the expected type")
    count = integer(document, "count")
    entries = objects(document, "percentiles")
    if not entries:
        return Latency(message_count=count, percentiles=None)
    return Latency(message_count=count, percentiles=tuple(_percentile(entry, count) for entry in entries))


def _percentile(entry: Document, count: int) -> LatencyPercentile:
    value = number(entry, "value")
    return LatencyPercentile(
        quantile=number(entry, "quantile"), average=value, min=value, max=value, message_count=count, value=value
    )


def combined(latencies: Iterable[Latency], *, topic: str, channel: str = "") -> Latency:
    """The percentiles of several nsqds together."""
    count = 0
    by_quantile: dict[float, list[LatencyPercentile]] = {}
    for latency in latencies:
        count += latency.message_count
        for percentile in latency.percentiles or ():
            by_quantile.setdefault(percentile.quantile, []).append(percentile)
    percentiles = tuple(_combined(by_quantile[quantile]) for quantile in sorted(by_quantile, reverse=True))
    return Latency(message_count=count, percentiles=percentiles or None, topic=topic, channel=channel, host=EVERY_NODE)


def _combined(parts: list[LatencyPercentile]) -> LatencyPercentile:
    count = sum(part.message_count for part in parts)
    weighted = sum(part.average * part.message_count for part in parts)
    return LatencyPercentile(
        quantile=parts[0].quantile,
        average=weighted / count if count else 0.0,
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        message_count=count,
    )


# Clients, channels, topics


class ClientFigures(NamedTuple):
    """A consumer of a channel. The fields have the order in which the reference's nsqadmin words them."""

    node: str
    """The nsqd it is connected to."""
    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    connect_ts: int
    """When it connected, in seconds since the Unix epoch."""
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    sample_rate: int
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    node_topology_region: str
    node_topology_zone: str
    topology_region: str
    topology_zone: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool

    def connected_ns(self, now_ns: int) -> int:
        """How long it has been connected at `now_ns`, by the wall clock; in whole seconds."""
        return max(now_ns // NS_PER_SECOND - self.connect_ts, 0) * NS_PER_SECOND

    @property
    def unanswered(self) -> int:
        """Deliveries that were neither answered nor are held: they timed out."""
        return max(self.message_count - self.finish_count - self.requeue_count - self.in_flight_count, 0)

    @property
    def distance(self) -> int:
        """0 in the node's zone, 1 in its region, 2 elsewhere."""
        if self.topology_region != self.node_topology_region:
            return 2
        return 0 if self.topology_zone == self.node_topology_zone else 1


class DeadLetterPolicy(NamedTuple):
    """When a channel gives up on a message, and where that goes."""

    max_attempts: int
    dead_letter_topic: str


class ChannelFigures(NamedTuple):
    """A channel."""

    node: str
    hostname: str
    topic_name: str
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    """Messages that came from the topic, since the nsqd was started."""
    client_count: int
    paused: bool
    """On any node."""
    latency: Latency
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    clients: tuple[ClientFigures, ...] = ()
    """Empty if they were not asked for."""
    nodes: tuple[ChannelFigures, ...] | None = None
    policy: DeadLetterPolicy | None = None
    """Over several nodes, what all of them have; None if there is none, or they differ."""
    dead_letter_count: int = 0
    """Messages that it gave up on."""
    redriven_count: int = 0
    """Dead letters that were sent back from it."""

    @property
    def memory_depth(self) -> int:
        """Messages that are not on disk."""
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        """Deliveries that were counted by how far the client was."""
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count


class TopicFigures(NamedTuple):
    """A topic."""

    node: str
    hostname: str
    topic_name: str
    depth: int
    """Messages that no channel has taken yet."""
    backend_depth: int
    message_count: int
    paused: bool
    """On any node."""
    latency: Latency
    channels: tuple[ChannelFigures, ...]
    """By name."""
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    nodes: tuple[TopicFigures, ...] | None = None

    @property
    def memory_depth(self) -> int:
        """Messages that are not on disk."""
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        """Deliveries that were counted by how far the client was."""
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count


# Sums over nodes

TOPIC_FIGURES = ("depth", "backend_depth", "message_count")
CHANNEL_FIGURES = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
"""nsqd leaves out what is 0, so nearly always there are none."""
_DEAD_LETTER_COUNTS = ("dead_letter_count", "redriven_count")


def total_topic(name: str, parts: Sequence[TopicFigures]) -> TopicFigures:
    """A topic over the nodes that have it, which may be none."""
    by_channel: dict[str, list[ChannelFigures]] = {}
    for part in parts:
        for channel in part.channels:
            by_channel.setdefault(channel.channel_name, []).append(channel)
    return TopicFigures(
        **_total(parts, (*TOPIC_FIGURES, *LOCALITIES), topic=name),
        channels=tuple(_channel_of_topic(by_channel[channel]) for channel in sorted(by_channel)),
    )


def _channel_of_topic(parts: Sequence[ChannelFigures]) -> ChannelFigures:
    return parts[0] if len(parts) == 1 else total_channel(parts)


def total_channel(parts: Sequence[ChannelFigures]) -> ChannelFigures:
    """A channel over the nodes that have it, of which there must be one."""
    topic, name = parts[0].topic_name, parts[0].channel_name
    clients = (client for part in parts for client in part.clients)
    return ChannelFigures(
        channel_name=name,
        **_total(parts, (*CHANNEL_FIGURES, *LOCALITIES, *_DEAD_LETTER_COUNTS), topic=topic, channel=name),
        clients=tuple(sorted(clients, key=nearness)),
        policy=parts[0].policy if len({part.policy for part in parts}) == 1 else None,
    )


def _total(
    parts: Sequence[TopicFigures] | Sequence[ChannelFigures], added: Iterable[str], *, topic: str, channel: str = ""
) -> Document:
    """The fields that topics and channels have in common, and the sums of those that are `added` up."""
    return {
        "node": EVERY_NODE,
        "hostname": "",
        "topic_name": topic,
        **{name: sum(map(attrgetter(name), parts)) for name in added},
        "paused": any(part.paused for part in parts),
        "latency": combined((part.latency for part in parts), topic=topic, channel=channel),
        "nodes": tuple(sorted(parts, key=attrgetter("hostname", "node"))),
    }


nearness = attrgetter("node", "distance", "topology_region", "topology_zone")
"""By node, and within a node the nearest first."""


# The clients that are shown


class ClientFilter:
    """Keeps the first `limit` of the clients that have every word of `search` in what they are called."""

    def __init__(self, *, search: str = "", limit: int) -> None:
        self._words = search.lower().split()
        self._limit = limit
        self.kept: list[ClientFigures] = []
        """By node, and within a node the nearest first."""
        self.match_count = 0
        """Of all that were taken."""

    def take(self, clients: Sequence[ClientFigures]) -> None:
        """Look through the clients of one node. Which are kept does not depend on the order of the nodes."""
        matching = [client for client in clients if self._matches(client)] if self._words else clients
        self.match_count += len(matching)
        self.kept = sorted([*self.kept, *matching], key=_place)[: self._limit]

    def _matches(self, client: ClientFigures) -> bool:
        called = (client.client_id, client.hostname, client.remote_address, client.user_agent, client.node)
        text = "\n".join(called).lower()
        return all(word in text for word in self._words)


_place = attrgetter("node", "distance", "topology_region", "topology_zone", "client_id", "remote_address")


# How fast they work

WATCH_NS = 30 * NS_PER_SECOND
"""Looks of so much time count: a single pair sees bursts, and nothing at all of slow work."""
_MAX_LOOKS = 40
_ClientKey = tuple[str, str]


class ClientPace(NamedTuple):
    """How a consumer gets on. None: not known yet."""

    finish_rate: float | None
    """Messages per second."""
    requeue_rate: float | None
    message_ns: int | None
    """How long it holds a message, on the mean; None if it answered none."""
    timeout_count: int
    """Deliveries that it did not answer in time, since it connected."""
    last_finish_ns: int | None
    """When it was last seen to have finished some, by the wall clock."""


class ClientWatch:
    """Remembers the last looks at some clients. Owned by what shows them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, dict[_ClientKey, ClientFigures]]] = deque(maxlen=_MAX_LOOKS)
        """With the time of the monotonic clock."""
        self._finishes: dict[_ClientKey, int] = {}
        """When each was last seen to have finished some."""

    def add(self, clients: Iterable[ClientFigures], *, now_ns: int, wall_ns: int) -> None:
        """The newest look; those that are too old are forgotten."""
        newest = {(client.node, client.remote_address): client for client in clients}
        before = self._looks[-1][1] if self._looks else {}
        self._finishes = {key: moment_ns for key, moment_ns in self._finishes.items() if key in newest}
        for key, client in newest.items():
            known = before.get(key)
            if known is not None and client.finish_count > known.finish_count:
                self._finishes[key] = wall_ns
        self._looks.append((now_ns, newest))
        while len(self._looks) > 2 and now_ns - self._looks[0][0] > WATCH_NS:
            self._looks.popleft()

    def paces(self) -> dict[_ClientKey, ClientPace]:
        """Of all clients of the newest look."""
        return {key: self._pace(key, client) for key, client in self._looks[-1][1].items()} if self._looks else {}

    def _pace(self, key: _ClientKey, client: ClientFigures) -> ClientPace:
        seen = [(moment_ns, look[key]) for moment_ns, look in self._looks if key in look]
        seen = [each for each in seen if each[1].connect_ts == client.connect_ts]  # the address may have had another
        elapsed_s = (seen[-1][0] - seen[0][0]) / NS_PER_SECOND
        first = seen[0][1]
        finished = _grown_by(first.finish_count, client.finish_count)
        requeued = _grown_by(first.requeue_count, client.requeue_count)
        answered = finished + requeued + _grown_by(first.unanswered, client.unanswered)
        held = sum(each.in_flight_count for _, each in seen) / len(seen)
        return ClientPace(
            finish_rate=finished / elapsed_s if elapsed_s > 0 else None,
            requeue_rate=requeued / elapsed_s if elapsed_s > 0 else None,
            message_ns=round(held * elapsed_s / answered * NS_PER_SECOND) if elapsed_s > 0 and answered else None,
            timeout_count=client.unanswered,
            last_finish_ns=self._finishes.get(key),
        )


def _grown_by(before: int, now: int) -> int:
    return max(now - before, 0)
