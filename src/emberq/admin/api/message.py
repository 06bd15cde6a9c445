"""Messages and journals, on every nsqd of a topic: peek, publish, seek, redrive.

The reference's nsqadmin knows nothing of these, and only emberq's nsqds can do all of it.

    GET  /api/peek/<t>/<c>?count=10    the next messages of a channel, which stay there; with
                                       &text=…          those that hold the text, in small or capital letters
                                       &path=a.b[=v]    whose body is JSON that has this member, with this value
                                       &min_attempts=2  that were delivered so often
                                       &min_age=60      that were published so many seconds ago
                                       &skip=10         without the first of them: the next page
    POST /api/publish/<t>              {"body": "…"} or {"body_base64": "…"}, "defer_ms", "node"
    GET  /api/journal/<t>              the journal of each nsqd: what is kept, for how long, how far each channel is
    GET  /api/seek/<t>/<c>?to=…&node=… what such a seek would do: {"nodes": [{"node", "offset", "again", "skipped",
                                       "waiting"}]}
    POST /api/topics/<t>/<c>           {"action": "seek", "to": "earliest|latest|<offset>|<RFC 3339>", "node"}
                                       {"action": "redrive", "to": "<topic>", "count": 1000}

    GET  /api/redrive/<t>/<c>?to=…&count=…
                                       what such a redrive would do, as far as the messages that are next in line tell:
                                       {"waiting", "examined", "moved", "left", "topics": {topic: count}}

A peek looks through the first hundred messages of each nsqd: `examined` says how many there were, `matched` how many of
them are meant. In a dead letter it is the message inside that has members.

An offset means something on one nsqd only, so with several of them a seek to one has to name its `node`.

A redrive answers how many messages were `moved`; how many were `left` where they are because they are no dead letters;
and how many are `waiting` in the channel now, those included (null if no nsqd says so).

The nsqds are asked in turn. What only some of them refuse is a WARNING, for the others have done it. If
all of them refuse:

    NotSupportedError       501   none of them knows how: they are not emberq's, or keep no journal
    ChannelNotFoundError    404   none of them has the channel
    HttpError               400   they found fault with the request; the message is what the first one said
    UpstreamsFailedError    502   anything else: none could be reached, or each failed in its own way
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from json import dumps, loads
from typing import Any, NamedTuple, TypeVar

from emberq.admin.access.gate import Visitor
from emberq.admin.api.request import Body, NotSupportedError, TopicNotFoundError, check_topic
from emberq.admin.audit import PEEK, AuditedAction, Recorder
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.action import PeekedMessage, peek
from emberq.cluster.cluster import Cluster
from emberq.cluster.topology import ClusterNode
from emberq.cluster.upstream import (
    ChannelNotFoundError,
    ClusterError,
    DaemonKind,
    Document,
    Findings,
    MalformedDocumentError,
    UpstreamError,
    UpstreamsFailedError,
    integer,
    objects,
    passable,
    text,
    warning_text,
)
from emberq.http.message import HttpError, Query, Request, Response, encode_json, json
from emberq.wire.dead_letter import decode_dead_letter, target_of
from emberq.wire.parameter import MAX_PEEK_COUNT, body_members

NO_SUCH_PATH = "NOT_FOUND"
"""What an nsqd answers to a path that it does not know."""
_NOT_JOURNALED = ("TOPIC_NOT_JOURNALED", "CHANNEL_NOT_JOURNALED")
_NO_CHANNEL = "CHANNEL_NOT_FOUND"
_FAULTS = ("INVALID_", "MISSING_", "OFFSET_", "DEAD_LETTER_")
"""How refusals begin for which the request is to blame, not the nsqd."""

Answers = list[dict[str, Any]]
T = TypeVar("T")


def reason_of_incapable(producer: ClusterNode, failure: UpstreamError) -> str | None:
    """Why an nsqd cannot do what was asked, if that is what it said."""
    if failure.refusal == NO_SUCH_PATH:
        return f"{producer.node} cannot do this: only emberq's nsqd can"
    if failure.refusal in _NOT_JOURNALED:
        return f"{producer.node} keeps no journal of it ({failure.refusal})"
    return None


def _reason(producer: ClusterNode, failure: UpstreamError) -> str:
    return reason_of_incapable(producer, failure) or str(failure)


def _failure_of_all(failures: Sequence[tuple[ClusterNode, UpstreamError]]) -> Exception:
    reasons = [_reason(producer, failure) for producer, failure in failures]
    if all(reason_of_incapable(producer, failure) is not None for producer, failure in failures):
        return NotSupportedError("; ".join(reasons))
    refusals = [failure.refusal for _, failure in failures if failure.refusal]
    if refusals and set(refusals) == {_NO_CHANNEL}:
        return ChannelNotFoundError(reasons[0])
    if refusals and all(refusal.startswith(_FAULTS) for refusal in refusals):
        return HttpError(400, refusals[0])
    return UpstreamsFailedError(DaemonKind.NSQD, reasons)


def _object(answer: bytes) -> dict[str, Any]:
    try:
        value = loads(answer)
        return passable(value) if isinstance(value, dict) else {}
    except (ValueError, RecursionError, MalformedDocumentError):
        return {}


# The handlers

DEFAULT_PEEK_COUNT = 10
DEFAULT_REDRIVE_COUNT = 1000
MAX_REDRIVE_COUNT = 10_000
"""In one request, which has to be answered before it times out; more takes several."""
MAX_PUBLISH_BYTES = 8 * 1024 * 1024
"""A message of nsqd's default limit, 1 MiB, as JSON at its most wasteful."""

_MAX_COUNT_DIGITS = 9
_OFFSET_DIGITS = frozenset("0123456789")


class MessageApi:
    """Asks the nsqds themselves."""

    def __init__(self, cluster: Cluster, recorder: Recorder, *, clock: Clock) -> None:
        self._clock = clock
        self._upstreams = cluster.upstreams
        self._topology = cluster.topology
        self._reader = cluster.observer
        self._recorder = recorder

    async def peek(self, request: Request, visitor: Visitor) -> Response:
        """The next messages of a channel over all nsqds, the oldest first; told in the audit log, as bodies may hold
        what not all may know."""
        deed = AuditedAction(action=PEEK, topic=request.params["topic"], channel=request.params["channel"])
        work = self._peek(deed.topic, deed.channel, request.query())
        shown = await self._recorder.carry_out(
            work, [deed], request, visitor, count_in=lambda shown: len(shown.value["messages"])
        )
        return json(shown.value | {"message": shown.message})

    async def _peek(self, topic: str, channel: str, query: Query) -> Findings[dict[str, Any]]:
        count, skipped = _peek_count(query), _number_in(query, "skip")
        wanted = MessageFilter.of(query, now_ns=self._clock.wall_ns())
        addresses = [each.http_address for each in await self._having(topic)]
        # To find some, or to turn pages, all that can be seen are looked through.
        depth = MAX_PEEK_COUNT * len(addresses) if any(query.get(name) for name in _SELECTING) else count
        found = await peek(self._upstreams, addresses, topic=topic, channel=channel, count=depth)
        matching = [message for message in found.value if wanted.admits(message)]
        shown = [_message_document(each) for each in matching[skipped : skipped + count]]
        counts = {"examined": len(found.value), "matched": len(matching)}
        return Findings({"messages": shown, **counts}, found.warnings)

    async def publish(self, request: Request, visitor: Visitor) -> Response:
        """Publish one message to one nsqd."""
        topic, body = check_topic(request.params["topic"]), Body(request)
        message, defer_ms = _message_in(body), body.integer("defer_ms") or 0
        nsqd = await self._nsqd(topic, body.text("node"))
        deed = AuditedAction(action="publish", topic=topic, node=nsqd.node, detail=f"{len(message)} bytes")
        work = self._publish(nsqd, topic, message, defer_ms)
        await self._recorder.carry_out(work, [deed], request, visitor)
        return json({"message": "", "node": nsqd.node})

    async def _publish(self, nsqd: ClusterNode, topic: str, message: bytes, defer_ms: int) -> None:
        defer = {"defer": str(defer_ms)} if defer_ms else {}
        try:
            await self._upstreams.post(nsqd.http_address, "/pub", message, topic=topic, **defer)
        except UpstreamError as failure:
            if failure.refusal:
                raise HttpError(400, failure.refusal) from failure
            raise UpstreamsFailedError(DaemonKind.NSQD, [str(failure)]) from failure

    async def _nsqd(self, topic: str, node: str) -> ClusterNode:
        """Where to publish to: as asked, or where the topic is, or anywhere."""
        if node:
            return (await self._topology.node(node)).value
        having = (await self._topology.topic_producers(topic)).value or (await self._topology.producers()).value
        if not having:
            raise UpstreamsFailedError(DaemonKind.NSQD, [])
        return having[0]

    async def journal(self, request: Request) -> Response:
        """The topic's journal on each nsqd that has one, which may be none of them."""
        topic = request.params["topic"]
        producers = await self._having(topic)

        async def ask(producer: ClusterNode) -> Document | str:
            try:
                found = await self._upstreams.get(producer.http_address, "/journal", passable, topic=topic)
            except UpstreamError as failure:
                reason = reason_of_incapable(producer, failure)
                if reason is None:
                    raise
                return reason
            return {"node": producer.node, **found}

        found = await self._upstreams.ask_each(DaemonKind.NSQD, producers, ask)
        journals = [answer for answer in found.value if isinstance(answer, dict)]
        reasons = tuple(answer for answer in found.value if isinstance(answer, str))
        # Most topics have no journal on any nsqd, which is no reason to warn.
        warnings = found.warnings + (reasons if journals else ())
        return json({"nodes": journals, "message": warning_text(warnings)})

    async def move(self, action: str, body: Body, deed: AuditedAction, request: Request, visitor: Visitor) -> Response:
        """Seek or redrive, as the body says."""
        if action == "seek":
            work = self._seek(deed, to=body.text("to"), node=body.text("node"))
            deed = replace(deed, node=body.text("node"), detail=f"to {body.text('to')}")
            done = await self._recorder.carry_out(work, [deed], request, visitor)
        else:
            to, count = body.text("to"), body.integer("count")
            work = self._redrive(deed, to=check_topic(to) if to else "", count=_redrive_count(count))
            done = await self._recorder.carry_out(
                work, [deed], request, visitor, count_in=lambda done: int(done.value["moved"])
            )
        return json(done.value | {"message": done.message})

    async def _seek(self, deed: AuditedAction, *, to: str, node: str) -> Findings[dict[str, Any]]:
        producers = await self._sought(deed.topic, to=to, node=node)
        query = {"topic": deed.topic, "channel": deed.channel, "to": to}
        moved = await self._post_while(producers, "/channel/seek", lambda _answers: query)
        return Findings({"nodes": moved.value}, moved.warnings)

    async def _sought(self, topic: str, *, to: str, node: str) -> list[ClusterNode]:
        """The nsqds on which a channel of the topic can be moved to this place; HttpError."""
        if not to:
            raise HttpError(400, "INVALID_POSITION")
        producers = await self._having(topic)
        if node:
            producers = [each for each in producers if each.node == node]
            if not producers:
                raise HttpError(404, "NODE_NOT_FOUND")
        if len(producers) > 1 and _OFFSET_DIGITS.issuperset(to):
            raise HttpError(400, "NODE_REQUIRED: an offset means something on one nsqd only")
        return producers

    async def foresee(self, request: Request) -> Response:
        """What a seek would do on each nsqd; nothing is moved."""
        topic, channel, query = request.params["topic"], request.params["channel"], request.query()
        to = query.get("to") or ""
        producers = await self._sought(topic, to=to, node=query.get("node") or "")

        async def ask(producer: ClusterNode) -> Document | None:
            get, address = self._upstreams.get, producer.http_address
            place = await get(address, "/topic/peek", _place_of, topic=topic, offset=to, count="1")
            foreseen = await get(address, "/journal", lambda journal: _foreseen(journal, channel, place), topic=topic)
            return None if foreseen is None else {"node": producer.node, **foreseen}

        found = await self._for_each(producers, ask)
        nodes = [foreseen for foreseen in found.value if foreseen is not None]
        if not nodes:
            raise ChannelNotFoundError(f"no journal of topic {topic} has channel {channel}")
        return json({"nodes": nodes, "message": found.message})

    async def change_policy(self, deed: AuditedAction, policy: dict[str, int | str]) -> Findings[None]:
        """Set the policy of a channel; an empty one clears it."""
        query = {"topic": deed.topic, "channel": deed.channel}
        producers = await self._having(deed.topic)
        done = await self._post_while(producers, "/channel/policy", lambda _answers: query, encode_json(policy))
        return Findings(None, done.warnings)

    async def _redrive(self, deed: AuditedAction, *, to: str, count: int) -> Findings[dict[str, Any]]:
        """From one nsqd after the other, until `count` messages have been moved."""
        names = {"topic": deed.topic, "channel": deed.channel} | ({"to": to} if to else {})

        def next_query(answers: Answers) -> dict[str, str] | None:
            left = count - _sum(answers, "moved")
            return names | {"count": str(left)} if left > 0 else None

        producers = await self._having(deed.topic)
        done = await self._post_while(producers, "/channel/redrive", next_query)
        counts: dict[str, Any] = {name: _sum(done.value, name) for name in ("moved", "left")}
        return Findings(counts | {"waiting": await self._waiting(deed.topic, deed.channel)}, done.warnings)

    async def foresee_redrive(self, request: Request) -> Response:
        """What a redrive would do with the messages that are next in line; nothing is moved."""
        topic, channel, query = request.params["topic"], request.params["channel"], request.query()
        to, given = query.get("to") or None, query.get("count")
        count = _redrive_count(_number(given) if given is not None else None)
        if to is not None:
            check_topic(to)
        producers = await self._having(topic)
        addresses = [each.http_address for each in producers]
        found = await peek(
            self._upstreams, addresses, topic=topic, channel=channel, count=MAX_PEEK_COUNT * len(addresses)
        )
        examined = sorted(found.value, key=lambda each: addresses.index(each.nsqd))  # as the nsqds are asked in turn
        topics: Counter[str] = Counter()
        left = seen = 0
        for message in examined:
            if topics.total() == count:
                break
            seen += 1
            target = target_of(message.body, to=to)
            if target is None:
                left += 1
            else:
                topics[target.topic] += 1
        counts = {"examined": seen, "moved": topics.total(), "left": left, "topics": dict(topics)}
        return json({"waiting": await self._waiting(topic, channel), **counts, "message": found.message})

    async def _waiting(self, topic: str, channel: str) -> int | None:
        """Messages in the channel now; None if that cannot be found out, for what was done is done."""
        try:
            return (await self._reader.channel(topic, channel)).value.depth
        except ClusterError:
            return None

    async def _having(self, topic: str) -> list[ClusterNode]:
        """The nsqds that have the topic; TopicNotFoundError if none has."""
        producers = list((await self._topology.topic_producers(topic)).value)
        if not producers:
            raise TopicNotFoundError(f"no nsqd has topic {topic}")
        return producers

    async def _post_while(
        self,
        producers: Sequence[ClusterNode],
        path: str,
        next_query: Callable[[Answers], dict[str, str] | None],
        body: bytes = b"",
    ) -> Findings[Answers]:
        """What each nsqd answers, with its `node`, and why the others did not do it.

        The query may depend on what the nsqds before have answered; None ends it.
        """
        answers: Answers = []

        async def post(producer: ClusterNode) -> None:
            query = next_query(answers)
            if query is not None:
                answer = await self._upstreams.post(producer.http_address, path, body, **query)
                answers.append({"node": producer.node, **_object(answer)})

        done = await self._for_each(producers, post)
        return Findings(answers, done.warnings)

    async def _for_each(
        self, producers: Sequence[ClusterNode], ask: Callable[[ClusterNode], Awaitable[T]]
    ) -> Findings[list[T]]:
        """What one nsqd after the other answers, and why the others did not; an error if none did."""
        answers: list[T] = []
        failures: list[tuple[ClusterNode, UpstreamError]] = []
        for producer in producers:
            try:
                answers.append(await ask(producer))
            except UpstreamError as failure:
                failures.append((producer, failure))
        if failures and not answers:
            raise _failure_of_all(failures)
        return Findings(answers, tuple(_reason(producer, failure) for producer, failure in failures))


_SELECTING = ("text", "path", "min_attempts", "min_age", "skip")
"""What a peek can be told besides a count."""


class MessageFilter(NamedTuple):
    """Which of the waiting messages are meant."""

    text: bytes
    path: tuple[str, ...]
    """Names of members, and places in lists, from the outside to the inside."""
    value: str | None
    """What is there; None if it may be anything."""
    min_attempts: int
    latest_ns: int
    """When they were published at the latest."""

    @classmethod
    def of(cls, query: Query, *, now_ns: int) -> MessageFilter:
        """What a query asks for; HttpError."""
        path, equals, value = (query.get("path") or "").partition("=")
        return cls(
            text=(query.get("text") or "").lower().encode(),
            path=tuple(path.removeprefix("$").strip(".").split(".")) if path else (),
            value=value if equals else None,
            min_attempts=_number_in(query, "min_attempts"),
            latest_ns=now_ns - _number_in(query, "min_age") * NS_PER_SECOND,
        )

    def admits(self, message: PeekedMessage) -> bool:
        is_meant = message.attempts >= self.min_attempts and message.timestamp_ns <= self.latest_ns
        return is_meant and self.text in message.body.lower() and (not self.path or self._has_member(message.body))

    def _has_member(self, body: bytes) -> bool:
        letter = decode_dead_letter(body)
        try:
            value = loads(body if letter is None else letter.body)
        except (ValueError, RecursionError):
            return False
        for name in self.path:
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                return False
        return self.value is None or self.value == (value if isinstance(value, str) else dumps(value))


def _number_in(query: Query, name: str) -> int:
    """A number that may be missing; HttpError for what is none."""
    given = query.get(name)
    if given and (not given.isascii() or not given.isdigit() or len(given) > _MAX_COUNT_DIGITS):
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return int(given or 0)


def _peek_count(query: Query) -> int:
    given = query.get("count")
    count = DEFAULT_PEEK_COUNT if given is None else _number(given)
    if not 1 <= count <= MAX_PEEK_COUNT:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return count


def _number(given: str) -> int:
    """A number in a query; 0 for what is none."""
    is_number = given.isascii() and given.isdigit() and len(given) <= _MAX_COUNT_DIGITS
    return int(given) if is_number else 0


def _redrive_count(given: int | None) -> int:
    count = DEFAULT_REDRIVE_COUNT if given is None else given
    if not 1 <= count <= MAX_REDRIVE_COUNT:
        raise HttpError(400, "INVALID_COUNT")
    return count


def _message_in(body: Body) -> bytes:
    encoded = body.text("body_base64")
    try:
        message = base64.b64decode(encoded, validate=True) if encoded else body.text("body").encode()
    except ValueError as wrong:  # not base64, or half a surrogate pair
        raise HttpError(400, "INVALID_MESSAGE") from wrong
    if not message:
        raise HttpError(400, "MSG_EMPTY")
    return message


def _message_document(message: PeekedMessage) -> dict[str, Any]:
    return {
        "nsqd": message.nsqd,
        "id": message.id,
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        **body_members(message.body),
    }


def _place_of(answer: Document) -> int:
    """The offset of the first message that /topic/peek shows, or behind the last one if it shows none."""
    messages = objects(answer, "messages")
    return integer(messages[0], "offset") if messages else integer(answer, "next_offset")


def _foreseen(journal: Document, channel: str, place: int) -> Document | None:
    """What it means for a channel to be moved to an offset; None if it has no place in the journal.

    Messages that were finished before others count on neither side: an nsqd does not say where they are.
    """
    cursor = next((each for each in objects(journal, "channels") if text(each, "channel_name") == channel), None)
    if cursor is None:
        return None
    lag = integer(cursor, "lag")
    waiting = integer(journal, "next_offset") - place
    for jump in objects(journal, "jumps"):  # offsets that no message has
        waiting -= max(integer(jump, "next_offset") - max(integer(jump, "first_offset"), place), 0)
    return {"offset": place, "again": max(waiting - lag, 0), "skipped": max(lag - waiting, 0), "waiting": waiting}


def _sum(answers: Answers, name: str) -> int:
    """What the nsqds have counted, together."""
    return sum(answer[name] for answer in answers if type(answer.get(name)) is int)
