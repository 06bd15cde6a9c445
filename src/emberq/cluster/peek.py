"""Looking at the next messages of a channel, which stay where they are.

Only emberq's nsqd can do it. One of Go's answers that it does not know the path; then the user is told so, for nothing
is wrong with it.

    ClusterError
    └── PeekFailed
        ├── NothingToPeek    no nsqd that answered has the topic and the channel
        └── PeekUnknown      none of the nsqds that have them can be peeked into
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass

from emberq.cluster.document import Document, MalformedDocument, integer, objects, text
from emberq.cluster.upstream import ClusterError, Findings, Kind, UpstreamError, Upstreams

MAX_COUNT = 100
"""As many as an nsqd shows."""

_ABSENT = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
_UNKNOWN_PATH = "NOT_FOUND"


class PeekFailed(ClusterError):
    """There is nothing to show."""


class NothingToPeek(PeekFailed):
    """No nsqd that answered has the topic and the channel."""


class PeekUnknown(PeekFailed):
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
    """An nsqd that did answer, and has nothing for us."""

    refusal: str


async def peek(
    upstreams: Upstreams, nsqds: Sequence[str], *, topic: str, channel: str, count: int
) -> Findings[list[PeekedMessage]]:
    """The oldest messages, at most `count`, that wait in the channel on the nsqds at these HTTP addresses.

    UpstreamsFailed if none of them answers; PeekFailed.
    """

    async def ask(address: str) -> list[PeekedMessage] | _Refused:
        try:
            return await upstreams.get(
                address,
                "/channel/peek",
                lambda answer: [_message(entry, address) for entry in objects(answer, "messages")],
                topic=topic,
                channel=channel,
                count=str(count),
            )
        except UpstreamError as failure:
            if failure.refusal in (*_ABSENT, _UNKNOWN_PATH):
                return _Refused(failure.refusal)
            raise

    found = await upstreams.ask_each(Kind.NSQD, nsqds, ask)
    incapable = [each.target for each in found.value if each.value == _Refused(_UNKNOWN_PATH)]
    shown = [each.value for each in found.value if not isinstance(each.value, _Refused)]
    if not shown and incapable:
        raise PeekUnknown(f"{', '.join(incapable)} has no peek: only emberq's nsqd can show waiting messages")
    if not shown:
        raise NothingToPeek(f"no nsqd has a channel {channel} of a topic {topic}")
    messages = sorted((message for part in shown for message in part), key=lambda each: each.timestamp_ns)
    warnings = tuple(f"{address} has no peek, its messages are not shown" for address in incapable)
    return Findings(messages[:count], found.warnings + warnings)


def _message(entry: Document, nsqd: str) -> PeekedMessage:
    return PeekedMessage(
        nsqd=nsqd,
        id=text(entry, "id"),
        timestamp_ns=integer(entry, "timestamp"),
        attempts=integer(entry, "attempts"),
        body=_body(entry),
    )


def _body(entry: Document) -> bytes:
    encoded = text(entry, "body_base64")
    if not encoded:
        return text(entry, "body").encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as wrong:
        raise MalformedDocument("body_base64 in the answer is not base64") from wrong
