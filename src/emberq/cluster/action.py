"""Changing a cluster, and peeking into its channels.

    create     every nsqlookupd; for a channel then every nsqd that has the topic
    delete     every nsqlookupd, then every nsqd that has it
    pause, unpause, empty                    every nsqd that has it, or one of them
    tombstone  every nsqlookupd, then the topic is deleted on that one nsqd
    drain      one nsqd: it takes nothing new, and stops when consumers have emptied it; or it goes on as before

The order matters. nsqlookupd comes first when something is deleted, so that consumers do not find it again through it
while the nsqds delete theirs; for the same reason a topic's nsqds are found out before nsqlookupd forgets them.

The calls are made one after the other, and each that fails is a warning: what can be done is done. An action fails as a
whole (UpstreamsFailedError) only when the nsqds concerned cannot be found out: before it has changed anything or, when
it creates, after the nsqlookupds were told.

**Peeking** shows the next messages of a channel, which stay where they are. Only emberq's nsqd can do it. One of Go's
answers that it does not know the path, and the user is told so.

    ClusterError
    ├── DrainUnknownError     the nsqd cannot be drained
    ├── NothingToPeekError    no nsqd that answered has the topic and the channel
    └── PeekUnknownError      none of the nsqds that have them can be peeked into
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from emberq.cluster.topology import ClusterNode, Topology
from emberq.cluster.upstream import (
    ClusterError,
    DaemonKind,
    Document,
    Findings,
    MalformedDocumentError,
    UpstreamError,
    Upstreams,
    UpstreamsFailedError,
    as_document,
    flag,
    integer,
    objects,
    text,
)
from emberq.wire.parameter import MAX_PEEK_COUNT, parse_body

Done = Findings[None]

_UNKNOWN_PATH = "NOT_FOUND"
"""What an nsqd answers that does not have what is asked for."""


class Verb(enum.StrEnum):
    """What can be done to a topic or a channel that stays."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    EMPTY = "empty"


class DrainUnknownError(ClusterError):
    """The nsqd cannot be drained; only emberq's can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainState:
    """Whether a node is being drained, and what it still holds."""

    is_draining: bool
    since_s: int = 0
    """When it began, in seconds since the Unix epoch."""
    topic_count: int = 0
    """Topics that hold something."""
    message_count: int = 0
    waits: tuple[tuple[str, int, str], ...] = ()
    """The first of these topics: name, messages, and what would make them less."""

    @classmethod
    def read(cls, answer: Document) -> DrainState:
        """What an nsqd says; MalformedDocumentError."""
        figures = ("depth", "in_flight_count", "deferred_count")
        return cls(
            is_draining=flag(answer, "draining"),
            since_s=integer(answer, "since"),
            topic_count=integer(answer, "topic_count"),
            message_count=integer(answer, "message_count"),
            waits=tuple(
                (text(each, "topic_name"), sum(integer(each, name) for name in figures), text(each, "waits_for"))
                for each in objects(answer, "topics")
            ),
        )


class Actions:
    """Carries out actions. The names must be valid: nsqlookupd takes `*` for everything."""

    def __init__(self, upstreams: Upstreams, topology: Topology) -> None:
        self._upstreams = upstreams
        self._topology = topology

    async def create(self, topic: str, channel: str = "") -> Done:
        """Let the nsqlookupds know the topic, so that consumers may look for it; without any, nothing is done.

        A channel is made known too, and created on the nsqds that have the topic.
        """
        warnings = await self._post_each(self._lookupds, "/topic/create", topic=topic)
        if channel:
            warnings += await self._post_each(self._lookupds, "/channel/create", topic=topic, channel=channel)
            producers = await self._topology.registered_producers(topic)
            warnings += producers.warnings
            warnings += await self._post_each(_nsqds(producers), "/channel/create", topic=topic, channel=channel)
        return Findings(None, warnings)

    async def delete(self, topic: str, channel: str = "") -> Done:
        """Delete a topic with its channels, or a channel; and their messages."""
        path, names = _path_and_names("delete", topic, channel)
        producers = await self._topology.topic_producers(topic)
        warnings = producers.warnings + await self._post_each(self._lookupds, path, **names)
        return Findings(None, warnings + await self._post_each(_nsqds(producers), path, **names))

    async def act(self, verb: Verb, topic: str, channel: str = "", *, node: str = "") -> Done:
        """Pause, unpause or empty a topic or a channel, on every nsqd that has it or on one.

        NodeNotFoundError unless that one is of the cluster; UpstreamsFailedError if it does not do it.
        """
        path, names = _path_and_names(verb, topic, channel)
        if node:
            nsqd = await self._topology.node(node)
            failures = await self._post_each([nsqd.value.http_address], path, **names)
            if failures:
                raise UpstreamsFailedError(DaemonKind.NSQD, failures)
            return Findings(None, nsqd.warnings)
        producers = await self._topology.topic_producers(topic)
        return Findings(None, producers.warnings + await self._post_each(_nsqds(producers), path, **names))

    async def tombstone(self, topic: str, *, node: str) -> Done:
        """Take a topic away from one nsqd: hide it there for a while, so that it stays away, and delete it.

        NodeNotFoundError unless the nsqd is one of the cluster: no other address is talked to.
        """
        nsqd = await self._topology.node(node)
        warnings = nsqd.warnings + await self._post_each(self._lookupds, "/topic/tombstone", topic=topic, node=node)
        return Findings(None, warnings + await self._post_each([nsqd.value.http_address], "/topic/delete", topic=topic))

    async def drain(self, node: str, *, is_cancelled: bool = False) -> Findings[DrainState]:
        """Have one nsqd take nothing new and stop when it is empty, or go on as before; how far it is then.

        NodeNotFoundError unless it is of the cluster; DrainUnknownError; UpstreamsFailedError if it does not do it.
        """
        nsqd = await self._topology.node(node)
        address = nsqd.value.http_address
        with _drain_failures(node):
            answer = await (
                self._upstreams.delete(address, "/drain") if is_cancelled else self._upstreams.post(address, "/drain")
            )
        return Findings(DrainState.read(as_document(json.loads(answer))), nsqd.warnings)

    async def drain_state(self, node: str) -> Findings[DrainState]:
        """How far the drain of an nsqd is; fails as `drain` does."""
        nsqd = await self._topology.node(node)
        with _drain_failures(node):
            return Findings(
                await self._upstreams.get(nsqd.value.http_address, "/drain", DrainState.read), nsqd.warnings
            )

    @property
    def _lookupds(self) -> tuple[str, ...]:
        return self._topology.addresses.lookupds

    async def _post_each(self, addresses: Iterable[str], path: str, **query: str) -> tuple[str, ...]:
        """One after the other; what failed, as warnings."""
        warnings = []
        for address in addresses:
            try:
                await self._upstreams.post(address, path, **query)
            except UpstreamError as failure:
                warnings.append(str(failure))
        return tuple(warnings)


@contextmanager
def _drain_failures(node: str) -> Iterator[None]:
    try:
        yield
    except UpstreamError as failure:
        if failure.refusal == _UNKNOWN_PATH:
            raise DrainUnknownError(f"{node} cannot be drained: only emberq's nsqd can") from failure
        raise UpstreamsFailedError(DaemonKind.NSQD, [str(failure)]) from failure


def _path_and_names(verb: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{verb}", {"topic": topic, "channel": channel}
    return f"/topic/{verb}", {"topic": topic}


def _nsqds(producers: Findings[tuple[ClusterNode, ...]]) -> list[str]:
    return [producer.http_address for producer in producers.value]


# Peeking

_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class NothingToPeekError(ClusterError):
    """No nsqd that answered has the topic and the channel."""


class PeekUnknownError(ClusterError):
    """None of the nsqds that have them can be peeked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """A message that waits in a channel."""

    nsqd: str
    """The HTTP address of the nsqd that has it."""
    id: str
    timestamp_ns: int
    attempts: int
    """Deliveries so far."""
    body: bytes


@dataclass(frozen=True, slots=True)
class _Refused:
    """The answer of an nsqd that has nothing to show."""

    address: str
    refusal: str


async def peek(
    upstreams: Upstreams, nsqds: Sequence[str], *, topic: str, channel: str, count: int
) -> Findings[list[PeekedMessage]]:
    """The oldest messages, at most `count`, that wait in the channel on the nsqds at these HTTP addresses.

    Each nsqd shows at most MAX_PEEK_COUNT of them.

    UpstreamsFailedError if none of them answers; NothingToPeekError, PeekUnknownError.
    """

    async def ask(address: str) -> list[PeekedMessage] | _Refused:
        try:
            return await upstreams.get(
                address,
                "/channel/peek",
                lambda answer: [_message(entry, address) for entry in objects(answer, "messages")],
                topic=topic,
                channel=channel,
                count=str(min(count, MAX_PEEK_COUNT)),
            )
        except UpstreamError as failure:
            if failure.refusal in (*_ABSENT, _UNKNOWN_PATH):
                return _Refused(address, failure.refusal)
            raise

    found = await upstreams.ask_each(DaemonKind.NSQD, nsqds, ask)
    refused = [answer for answer in found.value if isinstance(answer, _Refused)]
    incapable = [answer.address for answer in refused if answer.refusal == _UNKNOWN_PATH]
    shown = [answer for answer in found.value if not isinstance(answer, _Refused)]
    if not shown and incapable:
        raise PeekUnknownError(f"{', '.join(incapable)} has no peek: only emberq's nsqd can show waiting messages")
    if not shown:
        raise NothingToPeekError(f"no nsqd has a channel {channel} of a topic {topic}")
    messages = sorted((message for part in shown for message in part), key=lambda each: each.timestamp_ns)
    warnings = tuple(f"{address} has no peek, its messages are not shown" for address in incapable)
    return Findings(messages[:count], found.warnings + warnings)


def _message(entry: Document, nsqd: str) -> PeekedMessage:
    body = parse_body(entry)
    if body is None:
        raise MalformedDocumentError("a message in the answer has no body, or one that is not base64")
    return PeekedMessage(
        nsqd=nsqd,
        id=text(entry, "id"),
        timestamp_ns=integer(entry, "timestamp"),
        attempts=integer(entry, "attempts"),
        body=body,
    )
