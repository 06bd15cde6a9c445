"""One nsqd's answer to /stats?format=json, in columns.

A thousand topics with two channels on each of 80 nodes are a quarter of a million rows of figures; an object for each
would take most of the time of a look at such a cluster, and most of the memory. So an answer is turned into columns, by
calls that each treat a whole column:

    keys             depth  backend_depth  in_flight_count  …  message_count  …     (topic, channel), "" for the topic
    ("orders", "")     0          0               0                  912            the topics come first
    ("users", "")      3          0               0                   17
    ("orders", "mail") 20         5               2                  900            then all channels

Rows that say more, percentiles or deliveries by distance, have it in dictionaries beside the columns: most have not.
Names seldom change, so an answer with the same names as the one before shares its keys: that says at a glance that the
two can be compared row by row. And a key that several nsqds have is kept once for all of them.

A page shows a few topics in full. These are made of the columns (`NodeFigures.topics`), with the clients and policies
of their channels, which are read for such a page alone.

What an older nsqd leaves out, or gets wrong, is treated as everywhere (see `upstream`): figure by figure, for the
answers that need it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from operator import add, contains, eq, itemgetter, sub
from typing import Any, TypeAlias, get_type_hints

from emberq.cluster.stats import (
    CHANNEL_FIGURES,
    LOCALITIES,
    TOPIC_FIGURES,
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
from emberq.cluster.upstream import Document, MalformedDocumentError, flag, integer, objects, text

Key = tuple[str, str]
"""Topic and channel; for the topic itself the channel is empty."""
Column: TypeAlias = "array[int]"

MAX_ROWS = 100_000
"""Topics and channels of one nsqd. A larger answer is made up, or holds up all others."""
MAX_HEALTH_LENGTH = 300
"""What is wrong is told in a line."""
_MAX_FIGURE = 1 << 63
_MAX_COUNT = 1 << 58
"""Sums and differences of a few such counts fit 64 bits."""
UNTOLD = -1
_INTEGER = frozenset({int})
_BOOLEAN = frozenset({bool})
_TEXT = frozenset({str})


@dataclass(frozen=True, kw_only=True)
class NodeFigures:
    """What one nsqd said."""

    producer: ClusterNode
    keys: list[Key]
    topic_count: int
    """The first keys are topics."""
    columns: dict[str, Column]
    """By the names in `CHANNEL_FIGURES`, each as long as `keys`. Of some a topic has none."""
    paused: bytes
    """A byte for each key, 0 or 1."""
    latencies: dict[Key, Latency]
    """Of those that are tracked."""
    localities: dict[Key, dict[str, int]]
    """Deliveries by how far the client was, where there are any."""
    details: dict[Key, Document]
    """What else is known of channels that a page shows: the last fields of `ChannelFigures`."""
    dead_letters: Column
    """Of each key, the messages that were given up; only emberq's nsqd counts them."""
    policies: dict[Key, DeadLetterPolicy]
    """Of the channels that have one."""
    oldest_ms: Column
    """Of each key, how long ago the message was published that is next in line, or UNTOLD; only emberq's nsqd tells."""
    memory: Document | None
    """As the nsqd says it; None if it does not."""
    health: str = ""
    """`OK`, or `NOK - ` and what is wrong; empty if the nsqd does not say it."""
    is_draining: bool = False
    """Whether it takes nothing new, and stops when it is empty; only emberq's nsqd can."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong, as far as the nsqd knows."""
        return self.health in ("", "OK")

    @cached_property
    def node(self) -> str:
        """What the cluster calls it."""
        return self.producer.node

    @cached_property
    def settled(self) -> Column:
        """Of each topic and channel, the messages that it took in and holds no more."""
        columns = self.columns
        held = map(add, columns["in_flight_count"], columns["deferred_count"])
        try:
            return array("q", map(sub, columns["message_count"], map(add, columns["depth"], held)))
        except OverflowError:  # figures that cannot be true
            return array("q", bytes(8 * len(self.keys)))

    @cached_property
    def returned(self) -> Column:
        """Of each channel, how often a message was given back by a consumer, or timed out."""
        return array("q", map(add, self.columns["requeue_count"], self.columns["timeout_count"]))

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
        found = (self.position((name, channel)) for channel in channels)
        return self._topic(position, [each for each in found if each is not None])

    def topics(self) -> list[TopicFigures]:
        """All topics with all their channels."""
        channels: dict[str, list[int]] = defaultdict(list)
        for position in range(self.topic_count, len(self.keys)):
            channels[self.keys[position][0]].append(position)
        return [self._topic(position, channels[self.keys[position][0]]) for position in range(self.topic_count)]

    def _topic(self, position: int, channels: Iterable[int]) -> TopicFigures:
        of_channels = tuple(map(self._channel, channels))
        return TopicFigures(**self._row(position, TOPIC_FIGURES), channels=of_channels)

    def _channel(self, position: int) -> ChannelFigures:
        key = self.keys[position]
        details = self.details.get(key, {})
        return ChannelFigures(channel_name=key[1], **self._row(position, CHANNEL_FIGURES), **details)

    def _row(self, position: int, figures: Iterable[str]) -> Document:
        """The fields that topics and channels have in common, and these figures."""
        key = self.keys[position]
        return {
            "node": self.node,
            "hostname": self.producer.hostname,
            "topic_name": key[0],
            **{name: self.columns[name][position] for name in figures},
            **self.localities.get(key, {}),
            "paused": bool(self.paused[position]),
            "latency": self.latencies.get(key, UNTRACKED),
        }


class StatsReader:
    """Reads the answers of one nsqd."""

    def __init__(
        self,
        producer: ClusterNode,
        *,
        before: NodeFigures | None = None,
        known: dict[Key, Key] | None = None,
        sieve: ClientFilter | None = None,
    ) -> None:
        """`before` is what the same nsqd said the last time, `known` the keys of all nsqds so far, which becomes more.
        With a `sieve` the clients go there, not to channels."""
        self._producer = producer
        self._node = producer.node  # computed once: an answer may have thousands of clients
        self._before = before
        self._known = {} if known is None else known
        self._sieve = sieve

    def topics(self, answer: Document) -> list[TopicFigures]:
        """All topics in the answer, with all that it says of them; MalformedDocumentError."""
        return self.figures(answer, with_details=True).topics()

    def figures(self, answer: Document, *, with_details: bool = False) -> NodeFigures:
        """The figures in the answer; MalformedDocumentError."""
        topics = objects(answer, "topics")
        channels_of = _channels_of(topics)
        channels = list(chain.from_iterable(channels_of))
        names = _names(topics, "topic_name")
        topic_of_each = chain.from_iterable(map(repeat, names, map(len, channels_of)))
        entries = topics + channels
        if len(entries) > MAX_ROWS:
            raise MalformedDocumentError(f"the answer has more than {MAX_ROWS} topics and channels")
        keys = self._shared(
            [*zip(names, repeat("")), *zip(topic_of_each, _names(channels, "channel_name"), strict=True)]
        )
        of_channels = zip(keys[len(topics) :], channels, strict=True)
        return NodeFigures(
            producer=self._producer,
            keys=keys,
            topic_count=len(topics),
            columns=_columns(topics, channels),
            paused=bytes(_read_all(entries, itemgetter("paused"), _is_paused, kinds=_BOOLEAN)),
            latencies=_latencies(keys, entries),
            localities=_localities(keys, entries),
            details={key: self._details(entry) for key, entry in of_channels} if with_details else {},
            dead_letters=_dead_letters(entries),
            policies=_policies(keys, entries),
            oldest_ms=_oldest(entries),
            memory=_memory(answer),
            health=text(answer, "health")[:MAX_HEALTH_LENGTH],
            is_draining=flag(answer, "draining"),
        )

    def _shared(self, keys: list[Key]) -> list[Key]:
        """The keys of the answer before, if they are the same; else each as it is known already."""
        if self._before is not None and self._before.keys == keys:
            return self._before.keys
        return [self._known.setdefault(key, key) for key in keys]

    def _details(self, entry: Document) -> Document:
        clients = tuple([self._client(client) for client in objects(entry, "clients")])
        if self._sieve is not None:
            self._sieve.take(clients)
        return {
            "clients": clients if self._sieve is None else (),
            "policy": _policy(entry),
            "dead_letter_count": integer(entry, "dead_letter_count"),
            "redriven_count": integer(entry, "redriven_count"),
        }

    def _client(self, entry: Document) -> ClientFigures:
        said = {name: read(entry, name) for name, read in _OF_CLIENT}
        said["client_id"] = said["client_id"] or text(entry, "name")  # which is what it was before 1.0
        said["node"] = self._node
        said["node_topology_region"] = self._producer.topology_region
        said["node_topology_zone"] = self._producer.topology_zone
        return ClientFigures(**said)


_READERS: dict[type, Callable[[Document, str], Any]] = {str: text, int: integer, bool: flag}
_OF_CLIENT = [
    (name, _READERS[kind]) for name, kind in get_type_hints(ClientFigures).items() if not name.startswith("node")
]
"""How each field is read that the nsqd says of a client, not of itself."""


def _policy(entry: Document) -> DeadLetterPolicy | None:
    """What a channel does with messages that no consumer can finish; only emberq's nsqd has policies."""
    said = entry.get("policy")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise MalformedDocumentError("policy in the answer is not of the expected type")
    return DeadLetterPolicy(integer(said, "max_attempts"), text(said, "dead_letter_topic"))


def _channels_of(topics: list[Document]) -> list[list[Document]]:
    """The channels of each topic."""
    lists: list[Any] = list(map(dict.get, topics, repeat("channels")))
    if {list}.issuperset(map(type, lists)) and {dict}.issuperset(map(type, chain.from_iterable(lists))):
        return lists
    return [objects(topic, "channels") for topic in topics]


def _names(entries: list[Document], key: str) -> list[str]:
    return _read_all(entries, itemgetter(key), lambda entry: text(entry, key), kinds=_TEXT)


def _columns(topics: list[Document], channels: list[Document]) -> dict[str, Column]:
    of_topics = dict(zip(TOPIC_FIGURES, _table(topics, TOPIC_FIGURES), strict=True))
    of_channels = dict(zip(CHANNEL_FIGURES, _table(channels, CHANNEL_FIGURES), strict=True))
    none = array("q", bytes(8 * len(topics)))
    return {name: of_topics.get(name, none) + column for name, column in of_channels.items()}


def _table(entries: list[Document], names: Sequence[str]) -> list[Column]:
    """A column for each name."""
    if not entries:
        return [array("q") for _ in names]
    rows = _read_all(entries, itemgetter(*names), lambda entry: _exact(entry, names), kinds=_INTEGER, is_row=True)
    columns = list(zip(*rows, strict=True))
    if any(min(column) < -_MAX_COUNT or max(column) > _MAX_COUNT for column in columns):
        raise MalformedDocumentError("a figure in the answer is larger than any count can be")
    return [array("q", column) for column in columns]


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
        if (latency := latency_of(entry.get("e2e_processing_latency"))) is not UNTRACKED
    }


def _localities(keys: list[Key], entries: list[Document]) -> dict[Key, dict[str, int]]:
    """Hardly any nsqd has them, so it is first checked whether there are any at all."""
    if not any(any(map(contains, entries, repeat(name))) for name in LOCALITIES):
        return {}
    return {key: {name: integer(entry, name) for name in LOCALITIES} for key, entry in zip(keys, entries, strict=True)}


def _dead_letters(entries: list[Document]) -> Column:
    """nsqd leaves out what is 0, so it is first checked whether there are any at all."""
    if not any(map(contains, entries, repeat("dead_letter_count"))):
        return array("q", bytes(8 * len(entries)))
    counts = [integer(entry, "dead_letter_count") for entry in entries]
    if min(counts) < 0 or max(counts) > _MAX_COUNT:
        raise MalformedDocumentError("a figure in the answer is larger than any count can be")
    return array("q", counts)


def _policies(keys: list[Key], entries: list[Document]) -> dict[Key, DeadLetterPolicy]:
    """Most nsqds have none, so it is first checked whether there are any at all."""
    if not any(map(contains, entries, repeat("policy"))):
        return {}
    said = [(key, _policy(entry)) for key, entry in zip(keys, entries, strict=True) if "policy" in entry]
    return {key: policy for key, policy in said if policy is not None}


def _oldest(entries: list[Document]) -> Column:
    ages_ms = map(dict.get, entries, repeat("oldest_age_ms"))
    return array("q", [age if type(age) is int and 0 <= age <= _MAX_COUNT else UNTOLD for age in ages_ms])


def _memory(answer: Document) -> Document | None:
    """All numbers that the nsqd tells of its memory, under its own names."""
    said = answer.get("memory")
    if not isinstance(said, dict):
        return None
    return {name: value for name, value in said.items() if _is_figure(value)}


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MAX_FIGURE  # which no NaN is
