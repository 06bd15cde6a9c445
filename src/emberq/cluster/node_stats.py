"""One nsqd's answer to /stats?format=json: topic by topic, and all of it in columns.

`StatsReader` reads the few topics that a page shows in full, with their clients. `FigureReader` reads everything that
an nsqd has, in columns. A thousand topics with two channels on each of 80 nodes are a quarter of a million rows of
figures; an object for each would take most of the time of a look at such a cluster, and most of the memory. So such an
answer is turned into columns, by calls that each treat a whole column:

    keys             depth  backend_depth  in_flight_count  …  message_count  …     (topic, channel), "" for the topic
    ("orders", "")     0          0               0                  912            the topics come first
    ("users", "")      3          0               0                   17
    ("orders", "mail") 20         5               2                  900            then all channels

Rows that say more, percentiles or deliveries by distance, have it in dictionaries beside the columns: most have not.
Names seldom change, so an answer with the same names as the one before shares its keys. That saves memory, and says at
a glance that two answers can be compared row by row.

What an older nsqd leaves out, or gets wrong, is treated as everywhere (see `upstream`): figure by figure, for the
answers that need it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from operator import add, contains, eq, itemgetter, sub
from typing import Any, TypeAlias

from emberq.cluster.stats import (
    UNTRACKED,
    UNTRACKED_DOCUMENT,
    ChannelFigures,
    ClientFigures,
    ClientFilter,
    DeadLetterPolicy,
    Latency,
    TopicFigures,
    latency_of,
)
from emberq.cluster.topology import ClusterNode
from emberq.cluster.upstream import Document, Integers, MalformedDocumentError, flag, integer, objects, text

TOPIC_FIGURES = ("depth", "backend_depth", "message_count")
CHANNEL_FIGURES = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
)
_OF_TOPIC = Integers(*TOPIC_FIGURES)
_OF_CHANNEL = Integers(*CHANNEL_FIGURES)
LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_OF_LOCALITY = Integers(*LOCALITIES)
NOWHERE = (0, 0, 0)
"""Of rows without deliveries by distance."""


# Topic by topic


class StatsReader:
    """Reads the topics in the answers of one nsqd."""

    def __init__(self, producer: ClusterNode, sieve: ClientFilter | None = None) -> None:
        """With a `sieve` the clients go there, and channels have none."""
        self._producer = producer
        self._sieve = sieve
        self._node = producer.node  # computed once: an answer may have thousands of entries

    def topics(self, answer: Document) -> list[TopicFigures]:
        """All topics in the answer."""
        return [self._topic(entry) for entry in objects(answer, "topics")]

    def _topic(self, entry: Document) -> TopicFigures:
        name = text(entry, "topic_name")
        depth, backend_depth, message_count = _OF_TOPIC.of(entry)
        zone_local, region_local, elsewhere = localities_in(entry)
        return TopicFigures(
            node=self._node,
            hostname=self._producer.hostname,
            topic_name=name,
            depth=depth,
            backend_depth=backend_depth,
            message_count=message_count,
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            paused=flag(entry, "paused"),
            latency=latency_in(entry),
            channels=tuple([self._channel(name, channel) for channel in objects(entry, "channels")]),
        )

    def _channel(self, topic: str, entry: Document) -> ChannelFigures:
        clients = tuple([self._client(client) for client in objects(entry, "clients")])
        if self._sieve is not None:
            self._sieve.take(clients)
        depth, backend_depth, in_flight, deferred, requeue, timeout, message_count = _OF_CHANNEL.of(entry)
        zone_local, region_local, elsewhere = localities_in(entry)
        return ChannelFigures(
            node=self._node,
            hostname=self._producer.hostname,
            topic_name=topic,
            channel_name=text(entry, "channel_name"),
            depth=depth,
            backend_depth=backend_depth,
            in_flight_count=in_flight,
            deferred_count=deferred,
            requeue_count=requeue,
            timeout_count=timeout,
            message_count=message_count,
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            client_count=integer(entry, "client_count") or len(clients),  # before 1.2 nsqd only lists them
            paused=flag(entry, "paused"),
            latency=latency_in(entry),
            clients=clients if self._sieve is None else (),
            policy=_policy(entry),
            dead_letter_count=integer(entry, "dead_letter_count"),
            redriven_count=integer(entry, "redriven_count"),
        )

    def _client(self, entry: Document) -> ClientFigures:
        return ClientFigures(
            node=self._node,
            remote_address=text(entry, "remote_address"),
            version=text(entry, "version"),
            client_id=text(entry, "client_id") or text(entry, "name"),  # `name` is what it was before 1.0
            hostname=text(entry, "hostname"),
            user_agent=text(entry, "user_agent"),
            connect_ts=integer(entry, "connect_ts"),
            in_flight_count=integer(entry, "in_flight_count"),
            ready_count=integer(entry, "ready_count"),
            finish_count=integer(entry, "finish_count"),
            requeue_count=integer(entry, "requeue_count"),
            message_count=integer(entry, "message_count"),
            sample_rate=integer(entry, "sample_rate"),
            deflate=flag(entry, "deflate"),
            snappy=flag(entry, "snappy"),
            authed=flag(entry, "authed"),
            auth_identity=text(entry, "auth_identity"),
            auth_identity_url=text(entry, "auth_identity_url"),
            tls=flag(entry, "tls"),
            tls_cipher_suite=text(entry, "tls_cipher_suite"),
            tls_version=text(entry, "tls_version"),
            tls_negotiated_protocol=text(entry, "tls_negotiated_protocol"),
            tls_negotiated_protocol_is_mutual=flag(entry, "tls_negotiated_protocol_is_mutual"),
            topology_region=text(entry, "topology_region"),
            topology_zone=text(entry, "topology_zone"),
            node_topology_region=self._producer.topology_region,
            node_topology_zone=self._producer.topology_zone,
        )


def _policy(entry: Document) -> DeadLetterPolicy | None:
    """What a channel does with messages that no consumer can finish; only emberq's nsqd has policies."""
    said = entry.get("policy")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise MalformedDocumentError("policy in the answer is not of the expected type")
    return DeadLetterPolicy(integer(said, "max_attempts"), text(said, "dead_letter_topic"))


def localities_in(entry: Document) -> tuple[int, ...]:
    """Deliveries by how far the client was; nsqd leaves out what is 0, so nearly always there are none."""
    return NOWHERE if entry.keys().isdisjoint(LOCALITIES) else _OF_LOCALITY.of(entry)


def latency_in(entry: Document) -> Latency:
    """The percentiles of an entry; `UNTRACKED` itself if it has none."""
    said = entry.get("e2e_processing_latency")
    if said is not None and not isinstance(said, dict):
        raise MalformedDocumentError("e2e_processing_latency in the answer is not of the expected type")
    return latency_of(said)


# In columns

FIGURES = (*CHANNEL_FIGURES, "client_count")
"""Of some a topic has none."""

Key = tuple[str, str]
"""Topic and channel; for the topic itself the channel is empty."""
Column: TypeAlias = "array[int]"

_MAX_FIGURE = 1 << 63
_INTEGER = frozenset({int})
_BOOLEAN = frozenset({bool})
_TEXT = frozenset({str})


class NodeFigures:
    """What one nsqd said. Immutable."""

    def __init__(
        self,
        producer: ClusterNode,
        *,
        keys: list[Key],
        topic_count: int,
        columns: dict[str, Column],
        paused: bytes,
        latencies: dict[Key, Latency],
        localities: dict[Key, tuple[int, ...]],
        memory: Document | None,
    ) -> None:
        self.producer = producer
        self.node = producer.node
        self.keys = keys
        self.topic_count = topic_count
        """The first keys are topics."""
        self.columns = columns
        """By the names in `FIGURES`, each as long as `keys`."""
        self.paused = paused
        """A byte for each key, 0 or 1."""
        self.latencies = latencies
        """Of those that are tracked."""
        self.memory = memory
        """As the nsqd says it; None if it does not."""
        self._localities = localities
        self.settled = _settled(columns)
        """Of each topic and channel, the messages that it took in and holds no more."""

    def position(self, key: Key) -> int | None:
        """Where in the columns something is; None if it is not on this node."""
        try:
            return self.keys.index(key)
        except ValueError:
            return None

    def topic(self, name: str, channels: Iterable[str]) -> TopicFigures | None:
        """A topic with those of these channels that it has here; None if it is not on this node."""
        position = self.position((name, ""))
        if position is None:
            return None
        key, column = (name, ""), self.columns
        zone_local, region_local, elsewhere = self._localities.get(key, NOWHERE)
        return TopicFigures(
            node=self.node,
            hostname=self.producer.hostname,
            topic_name=name,
            depth=column["depth"][position],
            backend_depth=column["backend_depth"][position],
            message_count=column["message_count"][position],
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            paused=bool(self.paused[position]),
            latency=self.latencies.get(key, UNTRACKED),
            channels=tuple(filter(None, (self._channel(name, channel) for channel in channels))),
        )

    def _channel(self, topic: str, name: str) -> ChannelFigures | None:
        key, column = (topic, name), self.columns
        position = self.position(key)
        if position is None:
            return None
        zone_local, region_local, elsewhere = self._localities.get(key, NOWHERE)
        return ChannelFigures(
            node=self.node,
            hostname=self.producer.hostname,
            topic_name=topic,
            channel_name=name,
            depth=column["depth"][position],
            backend_depth=column["backend_depth"][position],
            in_flight_count=column["in_flight_count"][position],
            deferred_count=column["deferred_count"][position],
            requeue_count=column["requeue_count"][position],
            timeout_count=column["timeout_count"][position],
            message_count=column["message_count"][position],
            client_count=column["client_count"][position],
            zone_local_msg_count=zone_local,
            region_local_msg_count=region_local,
            global_msg_count=elsewhere,
            paused=bool(self.paused[position]),
            latency=self.latencies.get(key, UNTRACKED),
        )


class FigureReader:
    """Reads the answers of one nsqd into columns."""

    def __init__(self, producer: ClusterNode, before: NodeFigures | None = None) -> None:
        """`before` is what the same nsqd said the last time."""
        self._producer = producer
        self._before = before

    def figures(self, answer: Document) -> NodeFigures:
        """Everything in the answer; MalformedDocumentError."""
        topics = objects(answer, "topics")
        channels_of = [objects(topic, "channels") for topic in topics]
        channels = list(chain.from_iterable(channels_of))
        names = _names(topics, "topic_name")
        topic_of_each = chain.from_iterable(map(repeat, names, map(len, channels_of)))
        entries = topics + channels
        keys = self._shared(
            [*zip(names, repeat("")), *zip(topic_of_each, _names(channels, "channel_name"), strict=True)]
        )
        return NodeFigures(
            self._producer,
            keys=keys,
            topic_count=len(topics),
            columns=_columns(topics, channels),
            paused=bytes(_read_all(entries, itemgetter("paused"), _is_paused, kinds=_BOOLEAN)),
            latencies=_latencies(keys, entries),
            localities=_localities(keys, entries),
            memory=_memory(answer),
        )

    def _shared(self, keys: list[Key]) -> list[Key]:
        """The keys of the answer before, if they are the same."""
        return self._before.keys if self._before is not None and self._before.keys == keys else keys


def _settled(columns: dict[str, Column]) -> Column:
    held = map(add, columns["in_flight_count"], columns["deferred_count"])
    return array("q", map(sub, columns["message_count"], map(add, columns["depth"], held)))


def _names(entries: list[Document], key: str) -> list[str]:
    return _read_all(entries, itemgetter(key), lambda entry: text(entry, key), kinds=_TEXT)


def _columns(topics: list[Document], channels: list[Document]) -> dict[str, Column]:
    of_topics = dict(zip(TOPIC_FIGURES, _table(topics, TOPIC_FIGURES), strict=True))
    of_channels = _table(channels, FIGURES)
    none = array("q", bytes(8 * len(topics)))
    return {name: of_topics.get(name, none) + of_channel for name, of_channel in zip(FIGURES, of_channels, strict=True)}


def _table(entries: list[Document], names: Sequence[str]) -> list[Column]:
    """A column for each name."""
    if not entries:
        return [array("q") for _ in names]
    rows = _read_all(entries, itemgetter(*names), lambda entry: _exact(entry, names), kinds=_INTEGER, is_row=True)
    try:
        return [array("q", column) for column in zip(*rows, strict=True)]
    except OverflowError:
        raise MalformedDocumentError("a figure in the answer is larger than any count can be") from None


def _read_all(
    entries: list[Document],
    read: Callable[[Document], Any],
    read_exactly: Callable[[Document], Any],
    *,
    kinds: frozenset[type],
    is_row: bool = False,
) -> list[Any]:
    """What `read` finds in each entry; if that is missing or of another kind anywhere, what `read_exactly` does."""
    try:
        found = list(map(read, entries))
    except KeyError:
        return list(map(read_exactly, entries))
    if kinds.issuperset(map(type, chain.from_iterable(found) if is_row else found)):
        return found
    return list(map(read_exactly, entries))


def _exact(entry: Document, names: Sequence[str]) -> list[int]:
    """Figure by figure. Before 1.2, nsqd does not count clients but only lists them."""
    return [integer(entry, name) or (len(objects(entry, "clients")) if name == "client_count" else 0) for name in names]


def _is_paused(entry: Document) -> bool:
    return flag(entry, "paused")


def _latencies(keys: list[Key], entries: list[Document]) -> dict[Key, Latency]:
    """Of those that are tracked, which most often is none."""
    said = map(dict.get, entries, repeat("e2e_processing_latency"))
    if all(map(eq, said, repeat(UNTRACKED_DOCUMENT))):
        return {}
    return {
        key: latency
        for key, entry in zip(keys, entries, strict=True)
        if (latency := latency_in(entry)) is not UNTRACKED
    }


def _localities(keys: list[Key], entries: list[Document]) -> dict[Key, tuple[int, ...]]:
    """Hardly any nsqd has them, so it is first checked whether there are any at all."""
    if not any(any(map(contains, entries, repeat(name))) for name in LOCALITIES):
        return {}
    return {key: localities_in(entry) for key, entry in zip(keys, entries, strict=True)}


def _memory(answer: Document) -> Document | None:
    """All numbers that the nsqd tells of its memory, under its own names."""
    said = answer.get("memory")
    if not isinstance(said, dict):
        return None
    return {name: value for name, value in said.items() if _is_figure(value)}


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_FIGURE  # which no NaN is
