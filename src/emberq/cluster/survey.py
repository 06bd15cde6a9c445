"""One look at the whole cluster, with what happened since the look before.

**Gathering** (`ClusterReader`). First the nsqds concerned are found (see `topology`), then all of them are asked for
/stats at once. Warnings of both steps come with the result. Only what is needed is asked for: clients make most of an
answer, so they are left out unless they are to be shown. What may take long is computed in the background.

**Adding up** (`Tally`). The figures of the nodes (`node_stats`) are added up for every topic and channel, one node at a
time: a few milliseconds each, however many there are. The sums are all that lists and histories need. What a page shows
of one topic, node by node, is put together when the page asks for it.

**Rates** (`Growth`). nsqd only counts. A rate is the difference of two counts by the time between them, and it is taken
node by node before it is added up. An nsqd that has joined, left or restarted in between, whose counts began anew, then
does not make a leap in the sum; it is not in it until the next look.

    came            messages published to a topic, or that came to a channel
    left            messages that a topic handed on, or that a channel is done with: finished, thrown away, or given up
    requeued        deliveries that failed: the consumer gave the message back, or let it time out
    dead_lettered   messages that a channel gave up on; they have left, too

**Flow.** What is published once is finished once by each channel, so the messages that come to a topic and those that
leave its channels are not of one unit. A flow counts copies, one for each channel, and so does depth. `came` less
`left` is what depth (with what is in flight and deferred) grows by.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import add, sub
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.node_stats import UNTOLD, Column, Key, NodeFigures, StatsReader
from emberq.cluster.stats import (
    CHANNEL_FIGURES,
    UNTRACKED,
    ChannelFigures,
    ClientFigures,
    ClientFilter,
    Latency,
    TopicFigures,
    combined,
    total_channel,
    total_topic,
)
from emberq.cluster.topology import ClusterNode, Topology
from emberq.cluster.upstream import ChannelNotFoundError, DaemonKind, Document, Findings, UpstreamError, Upstreams

T = TypeVar("T")

# Rates


class Rates(NamedTuple):
    """Messages per second."""

    came: float
    left: float
    requeued: float = 0.0
    dead_lettered: float = 0.0

    @property
    def finished(self) -> float:
        """What left without being given up."""
        return max(self.left - self.dead_lettered, 0.0)


def flow_of(topic: Rates | None, channels: Iterable[Rates | None]) -> Rates | None:
    """The flow through a topic and its channels; None if it is not known of the topic."""
    if topic is None:
        return None
    parts = [each for each in channels if each is not None]
    came, left, requeued, dead_lettered = map(sum, zip(*parts, strict=True)) if parts else (0.0,) * 4
    return _flow(came, left, topic.came - topic.left, requeued=requeued, dead_lettered=dead_lettered)


def _flow(came: float, left: float, own: float, *, requeued: float, dead_lettered: float) -> Rates:
    """`own` is what the topic itself keeps for later or, if it is below 0, hands on or throws away."""
    entered = came + own
    return Rates(max(entered, 0.0), left + max(-entered, 0.0), requeued, dead_lettered)


class Growth(NamedTuple):
    """How the counts of one nsqd have grown between two looks, in columns beside its figures."""

    came: Column
    left: Column
    requeued: Column
    dead_lettered: Column
    is_known: bytes
    """A byte for each key; 0 for what was not there at both looks, or began anew. It has grown by 0."""


def growth(now: NodeFigures, before: NodeFigures | None) -> Growth:
    """How `now` differs from what the same nsqd said before."""
    if before is None:
        return _unknown(len(now.keys))
    if now.keys is before.keys:  # nearly always, and then whole columns can be compared
        came = array("q", map(sub, now.columns["message_count"], before.columns["message_count"]))
        if not came or min(came) >= 0:
            # Counts of one channel are not read in one instant, so the difference may be a message too few.
            return Growth(
                came=came,
                left=_grown(now.settled, before.settled),
                requeued=_grown(now.returned, before.returned),
                dead_lettered=_grown(now.dead_letters, before.dead_letters),
                is_known=b"\1" * len(came),
            )
    return _growth_row_by_row(now, before)


def _unknown(count: int) -> Growth:
    nothing = array("q", bytes(8 * count))
    return Growth(came=nothing, left=nothing, requeued=nothing, dead_lettered=nothing, is_known=bytes(count))


def _grown(now: Column, before: Column) -> Column:
    grown = array("q", map(sub, now, before))
    return array("q", map(max, grown, repeat(0))) if grown and min(grown) < 0 else grown


def _growth_row_by_row(now: NodeFigures, before: NodeFigures) -> Growth:
    then = dict(zip(before.keys, _counts(before), strict=True))
    grown: list[Column] = [array("q") for _ in range(4)]
    is_known = bytearray()
    for key, counts in zip(now.keys, _counts(now), strict=True):
        counts_then = then.get(key)
        has_grown = counts_then is not None and counts[0] >= counts_then[0]  # else it is new, or began anew
        for column, count, count_then in zip(grown, counts, counts_then or counts, strict=True):
            column.append(max(count - count_then, 0) if has_grown else 0)
        is_known.append(has_grown)
    came, left, requeued, dead_lettered = grown
    return Growth(came, left, requeued, dead_lettered, bytes(is_known))


def _counts(figures: NodeFigures) -> Iterator[tuple[int, ...]]:
    """Of each key, what grows: in the order of `Growth`."""
    return zip(figures.columns["message_count"], figures.settled, figures.returned, figures.dead_letters, strict=True)


# Sums

NOTHING: Mapping[str, NodeFigures] = MappingProxyType({})


class Tally:
    """What has been added up so far: a row for each topic and channel, a column for each figure."""

    def __init__(self, before: Mapping[str, NodeFigures] = NOTHING) -> None:
        """`before` is what the nodes said at the look before."""
        self._before = before
        self.nodes: dict[str, NodeFigures] = {}
        self.growth: dict[str, Growth] = {}
        """Of each node, since the look before."""
        self._rows: dict[Key, int] = {}
        """Where each key is in the columns."""
        self._columns: list[list[int]] = [[] for _ in range(len(CHANNEL_FIGURES) + 1 + len(Growth._fields))]
        """As `sums` tells them."""
        self._node_counts: list[int] = []
        self._oldest_ms: list[int] = []
        self._latencies: dict[Key, list[Latency]] = defaultdict(list)

    def add(self, figures: NodeFigures) -> None:
        """Add one node."""
        node = figures.node
        grown = growth(figures, self._before.get(node))
        self.nodes[node], self.growth[node] = figures, grown
        rows = self._rows_of(figures.keys)
        columns = (*(figures.columns[name] for name in CHANNEL_FIGURES), figures.paused, *grown)
        for sums, column in zip(self._columns, columns, strict=True):
            if any(column):  # of many figures a node has none at all
                _change(sums, rows, add, column)
        _change(self._node_counts, rows, add, repeat(1, len(rows)))
        _change(self._oldest_ms, rows, max, _ages_ms(figures))
        for key, latency in figures.latencies.items():
            self._latencies[key].append(latency)

    def _rows_of(self, keys: Sequence[Key]) -> Sequence[int]:
        """Where these keys are in the columns, a range if it is the beginning; new ones come to the end."""
        known = self._rows
        rows = [known.setdefault(key, len(known)) for key in keys]
        new_count = len(known) - len(self._node_counts)
        for column in (*self._columns, self._node_counts):
            column.extend(repeat(0, new_count))
        self._oldest_ms.extend(repeat(UNTOLD, new_count))
        beginning = range(len(rows))
        return beginning if rows == list(beginning) else rows

    def sums(self) -> Iterator[tuple[Key, list[int], int, Latency, int | None]]:
        """By topic and channel, sorted: the sums of `CHANNEL_FIGURES`, of nodes where it is paused, and of what
        `Growth` has; of how many nodes; their percentiles; the age of the oldest message.
        """
        for key in sorted(self._rows):
            row = self._rows[key]
            latencies = self._latencies.get(key)
            latency = UNTRACKED if latencies is None else combined(latencies, topic=key[0], channel=key[1])
            oldest_ms = self._oldest_ms[row]
            yield (
                key,
                [column[row] for column in self._columns],
                self._node_counts[row],
                latency,
                oldest_ms if UNTOLD < oldest_ms < _UNKNOWN_AGE else None,
            )


def _change(totals: list[int], rows: Sequence[int], change: Callable[[int, int], int], column: Iterable[int]) -> None:
    """Put what `change` makes of them and of the column in the place of these rows."""
    if isinstance(rows, range):  # as on all nodes of a cluster where every topic is on every node
        totals[: len(rows)] = map(change, totals, column)
    else:
        for row, value in zip(rows, column, strict=True):
            totals[row] = change(totals[row], value)


_UNKNOWN_AGE = 1 << 63
"""Above every age, so that one node which does not tell makes the age of all unknown."""


def _ages_ms(figures: NodeFigures) -> Iterable[int]:
    """Of each key, the age of the oldest message, UNTOLD if none waits, _UNKNOWN_AGE if one does and is not told."""
    if UNTOLD not in figures.oldest_ms:
        return figures.oldest_ms
    waiting = zip(figures.oldest_ms, figures.columns["depth"], strict=True)
    return [_UNKNOWN_AGE if age_ms == UNTOLD and depth else age_ms for age_ms, depth in waiting]


class Total(NamedTuple):
    """A topic or a channel over all nodes that have it. Of some figures a topic has none."""

    depth: int = 0
    """Of a topic, the messages that no channel has taken yet."""
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    node_count: int = 0
    paused: bool = False
    """On any node."""
    latency: Latency = UNTRACKED
    rates: Rates | None = None
    """None for what was not there at both of two times, on any node."""
    oldest_ms: int | None = None
    """How long ago the oldest of the next messages was published; None if none waits, or a node does not tell it."""


class Work(NamedTuple):
    """What one node has to do."""

    depth: int = 0
    """Of topics and channels."""
    message_count: int = 0
    client_count: int = 0
    topic_count: int = 0
    rates: Rates | None = None
    """Messages that came to its topics, and that its channels are done with."""
    flow: Rates | None = None
    """The same, with each message counted once for each channel."""


IDLE = Work()
"""Of a node that did not answer."""


class Survey:
    """What one look has seen. Immutable."""

    def __init__(
        self, producers: Sequence[ClusterNode], tally: Tally, *, taken_ns: int, before: Survey | None = None
    ) -> None:
        """`tally` is used up; it must know the figures of `before`. `taken_ns` is the monotonic clock's."""
        self.producers = tuple(producers)
        """All nsqds that should be there, by host name."""
        self.nodes = {each.node: tally.nodes[each.node] for each in producers if each.node in tally.nodes}
        """Those that answered."""
        self._taken_ns = taken_ns
        self.elapsed_s = (taken_ns - before._taken_ns) / NS_PER_SECOND if before is not None else 0.0
        """Since the look before; 0 if there was none."""
        self._growth = tally.growth
        self.totals = {
            key: self._total(sums, count, latency, oldest_ms) for key, sums, count, latency, oldest_ms in tally.sums()
        }
        """By topic and channel, sorted: each topic comes right before its channels."""
        self.channels = self._channels()
        """The names of each topic's channels; topics and channels by name."""
        self.work = {node: self._work(figures) for node, figures in self.nodes.items()}
        """What each node has to do."""

    def _total(self, sums: list[int], node_count: int, latency: Latency, oldest_ms: int | None) -> Total:
        *figures, paused, came, left, requeued, dead_lettered, known = sums
        return Total(
            **dict(zip(CHANNEL_FIGURES, figures, strict=True)),
            node_count=node_count,
            paused=paused > 0,
            latency=latency,
            rates=self._rates((came, left, requeued, dead_lettered), known),
            oldest_ms=oldest_ms,
        )

    def _work(self, figures: NodeFigures) -> Work:
        count, columns, grown = figures.topic_count, figures.columns, self._growth[figures.node]
        published, handed_on = sum(grown.came[:count]), sum(grown.left[:count])
        came, left, requeued, dead_lettered = (sum(column[count:]) for column in grown[:4])
        flow = self._rates((came, left, requeued, dead_lettered), any(grown.is_known))
        return Work(
            depth=sum(columns["depth"]),
            message_count=sum(columns["message_count"][:count]),
            client_count=sum(columns["client_count"]),
            topic_count=count,
            rates=None if flow is None else flow._replace(came=published / self.elapsed_s),
            flow=None
            if flow is None
            else _flow(
                flow.came,
                flow.left,
                (published - handed_on) / self.elapsed_s,
                requeued=flow.requeued,
                dead_lettered=flow.dead_lettered,
            ),
        )

    def _rates(self, grown: Iterable[int], is_known: int) -> Rates | None:
        if not is_known or self.elapsed_s <= 0:
            return None
        return Rates(*(count / self.elapsed_s for count in grown))

    def _channels(self) -> dict[str, list[str]]:
        channels: dict[str, list[str]] = {}
        for topic, channel in self.totals:
            if channel:
                channels[topic].append(channel)
            else:
                channels[topic] = []
        return channels

    # One thing of many.

    def topic(self, name: str) -> TopicFigures | None:
        """A topic, node by node; None if no node has it."""
        if name not in self.channels:
            return None
        parts = (figures.topic(name, self.channels[name]) for figures in self.nodes.values())
        return total_topic(name, [part for part in parts if part is not None])

    def rates_by_node(self, topic: str, channel: str = "") -> dict[str, Rates | None]:
        """On each node that has it, of a topic or a channel; None where it is not known."""
        found: dict[str, Rates | None] = {}
        if (topic, channel) not in self.totals:
            return found
        for node, figures in self.nodes.items():
            position = figures.position((topic, channel))
            if position is not None:
                *grown, is_known = (column[position] for column in self._growth[node])
                found[node] = self._rates(grown, is_known)
        return found

    def rates_by_topic(self, node: str) -> dict[str, Rates | None]:
        """On one node, of each topic that it has; None where it is not known."""
        figures, grown = self.nodes.get(node), self._growth.get(node)
        if figures is None or grown is None:
            return {}
        table = zip(figures.keys[: figures.topic_count], *grown, strict=False)
        return {topic: self._rates(counts, is_known) for (topic, _), *counts, is_known in table}

    def total_rates(self) -> Rates | None:
        """Messages that came to topics, and that channels are done with; None if that is not known of any node."""
        known = [work.rates for work in self.work.values() if work.rates is not None]
        return Rates(*map(sum, zip(*known, strict=True))) if known else None

    def total_flow(self) -> Rates | None:
        """The flow through all topics; None if it is not known of any node."""
        known = [work.flow for work in self.work.values() if work.flow is not None]
        return Rates(*map(sum, zip(*known, strict=True))) if known else None

    def topic_flow(self, name: str) -> Rates | None:
        """The flow through a topic; None if it is not known."""
        topic = self.totals.get((name, ""))
        if topic is None:
            return None
        return flow_of(topic.rates, (self.totals[name, channel].rates for channel in self.channels[name]))

    def topic_totals(self) -> Iterator[tuple[str, Total, list[tuple[str, Total]]]]:
        """Each topic with its channels, by name."""
        for topic, names in self.channels.items():
            yield topic, self.totals[topic, ""], [(name, self.totals[topic, name]) for name in names]


# Gathering


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """All that one nsqd has."""

    node: str
    topics: tuple[TopicFigures, ...]
    """By name, with channels and clients."""

    @property
    def total_messages(self) -> int:
        """Messages published to it since it was started."""
        return sum(topic.message_count for topic in self.topics)

    @property
    def clients(self) -> Iterator[ClientFigures]:
        """Consumers connected to it."""
        return (client for topic in self.topics for channel in topic.channels for client in channel.clients)

    @property
    def total_clients(self) -> int:
        """How many consumers are connected to it."""
        return sum(channel.client_count for topic in self.topics for channel in topic.channels)


class FoundClient(NamedTuple):
    """A consumer, and where it consumes."""

    topic: str
    channel: str
    client: ClientFigures


class ChannelCounter(NamedTuple):
    """How many messages a channel was given, on one node or on all."""

    node: str
    topic_name: str
    channel_name: str
    message_count: int

    @property
    def key(self) -> str:
        """What nsqadmin lists it under."""
        return f"{self.topic_name}:{self.channel_name}:{self.node}"


def counters_of(nodes: Iterable[NodeFigures]) -> Iterator[ChannelCounter]:
    """The message count of every channel on each of the nodes."""
    for figures in nodes:
        for (topic, channel), count in zip(figures.keys, figures.columns["message_count"], strict=True):
            if channel:
                yield ChannelCounter(node=figures.node, topic_name=topic, channel_name=channel, message_count=count)


def _found_in(topics: Iterable[TopicFigures], search: str, limit: int) -> tuple[list[FoundClient], int]:
    found, count = [], 0
    for topic in topics:
        for channel in topic.channels:
            sieve = ClientFilter(search=search, limit=limit)
            sieve.take(channel.clients)
            found += [FoundClient(topic.topic_name, channel.channel_name, client) for client in sieve.kept]
            count += sieve.match_count
    return found[:limit], count


class ClusterReader:
    """Looks at the cluster. Remembers nothing: every answer is asked for anew."""

    def __init__(self, upstreams: Upstreams, topology: Topology) -> None:
        self._upstreams = upstreams
        self._topology = topology

    async def topic(self, topic: str) -> Findings[TopicFigures]:
        """A topic over the nsqds that have it."""
        producers = await self._topology.topic_producers(topic)
        parts = await self.of_producers(producers.value, topic=topic)
        total = await self._upstreams.background.run(lambda: total_topic(topic, parts.value))
        return Findings(total, producers.warnings + parts.warnings)

    async def channel(
        self, topic: str, channel: str, sieve: ClientFilter | None = None, *, silent: Collection[str] = ()
    ) -> Findings[ChannelFigures]:
        """A channel over the nsqds that have the topic, with its clients; ChannelNotFoundError if none has the channel.

        Its clients go through the sieve, if there is one. Nodes that are known to be silent are asked only if there is
        no other: to wait for each of them would take its whole time limit.
        """
        producers = await self._topology.topic_producers(topic)
        heard = [producer for producer in producers.value if producer.node not in silent]
        stats = await self.of_producers(
            heard or producers.value, topic=topic, channel=channel, include_clients=True, sieve=sieve
        )
        parts = [part for of_topic in stats.value for part in of_topic.channels if part.channel_name == channel]
        if not parts:
            raise ChannelNotFoundError(f"no nsqd has channel {channel} of topic {topic}")
        total = await self._upstreams.background.run(lambda: total_channel(parts))
        return Findings(total, producers.warnings + stats.warnings)

    async def node(self, node: str) -> Findings[NodeStats]:
        """Everything on the nsqd that the cluster calls `node`; NodeNotFoundError."""
        producer = await self._topology.node(node)
        stats = await self.of_producers([producer.value], include_clients=True)
        topics = tuple(sorted(stats.value, key=lambda topic: topic.topic_name))
        return Findings(NodeStats(node=node, topics=topics), producer.warnings)

    async def consumers(self, search: str, *, limit: int) -> Findings[tuple[list[FoundClient], int]]:
        """The first of all consumers that have every word of `search` in what they are called, and how many have."""
        producers = await self._topology.producers()

        def reader(producer: ClusterNode) -> Callable[[Document], tuple[list[FoundClient], int]]:
            return lambda answer: _found_in(StatsReader(producer).topics(answer), search, limit)

        parts = await self._ask_each(producers.value, reader, include_clients=True)
        found = sorted((each for part, _ in parts.value for each in part), key=lambda each: each.client.client_id)
        return Findings((found[:limit], sum(count for _, count in parts.value)), producers.warnings + parts.warnings)

    async def settings(self) -> Findings[dict[str, Document]]:
        """The settings of every nsqd that tells them, by node; only emberq's do, the others are warnings."""
        producers = await self._topology.producers()

        async def ask(producer: ClusterNode) -> tuple[str, Document]:
            try:
                return producer.node, await self._upstreams.get(producer.http_address, "/config", dict)
            except UpstreamError as failure:
                if failure.refusal == "NOT_FOUND":
                    raise UpstreamError(f"{producer.node} does not tell its settings: it is not emberq's") from failure
                raise

        found = await self._upstreams.ask_each(DaemonKind.NSQD, producers.value, ask)
        return Findings(dict(found.value), producers.warnings + found.warnings)

    async def counters(self) -> Findings[tuple[ChannelCounter, ...]]:
        """The message count of every channel on every nsqd."""
        producers = await self._topology.producers()
        stats = await self._ask_each(producers.value, lambda producer: StatsReader(producer).figures)
        return Findings(tuple(counters_of(stats.value)), producers.warnings + stats.warnings)

    async def survey(self, clock: Clock, before: Survey | None = None) -> Findings[Survey]:
        """Every topic and channel over all nsqds, and what happened since `before`.

        A cluster without a single nsqd is empty, and nothing is wrong with it.
        """
        producers = await self._topology.identities()
        if not producers.value:
            return Findings(Survey((), Tally(), taken_ns=clock.monotonic_ns()), producers.warnings)
        then = before.nodes if before is not None else NOTHING
        tally = Tally(then)
        known = {key: key for key in before.totals} if before is not None else {}

        async def ask(producer: ClusterNode) -> None:
            read = StatsReader(producer, before=then.get(producer.node), known=known).figures
            query = {"format": "json", "include_clients": "false"}
            figures = await self._upstreams.get(producer.http_address, "/stats", read, **query)
            await self._upstreams.background.run(lambda: tally.add(figures))

        # Made up nsqds that do not answer could take all the time. So those that have answered come first, and the rest
        # in another order each time.
        began_ns = clock.monotonic_ns()
        order = sorted(producers.value, key=lambda each: (each.node not in then, hash((each.node, began_ns))))
        found = await self._upstreams.ask_each(DaemonKind.NSQD, order, ask)
        taken_ns = clock.monotonic_ns()
        survey = await self._upstreams.background.run(
            lambda: Survey(producers.value, tally, taken_ns=taken_ns, before=before)
        )
        return Findings(survey, producers.warnings + tuple(sorted(found.warnings)))

    async def of_producers(
        self,
        producers: Sequence[ClusterNode],
        *,
        topic: str = "",
        channel: str = "",
        include_clients: bool = False,
        sieve: ClientFilter | None = None,
    ) -> Findings[list[TopicFigures]]:
        """The topics of each of these nsqds, node by node; all topics unless one is named."""
        query = {name: value for name, value in (("topic", topic), ("channel", channel)) if value}
        found = await self._ask_each(
            producers,
            lambda producer: StatsReader(producer, sieve=sieve).topics,
            include_clients=include_clients,
            **query,
        )
        return Findings(list(chain.from_iterable(found.value)), found.warnings)

    async def _ask_each(
        self,
        producers: Sequence[ClusterNode],
        reader: Callable[[ClusterNode], Callable[[Document], T]],
        *,
        include_clients: bool = False,
        **query: str,
    ) -> Findings[list[T]]:
        """What `reader(producer)` makes of the /stats of each of these nsqds."""
        query |= {} if include_clients else {"include_clients": "false"}

        async def ask(producer: ClusterNode) -> T:
            return await self._upstreams.get(
                producer.http_address, "/stats", reader(producer), format="json", **query, include_mem="false"
            )

        return await self._upstreams.ask_each(DaemonKind.NSQD, producers, ask)
