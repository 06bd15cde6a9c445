"""Having the nsqds of a topic do something that only emberq's can.

Each is asked in turn. What only some of them refuse is a warning, for the others have done it. Otherwise:

    NotSupported         none of them knows how: they are not emberq's, or keep no journal
    ChannelNotFound      none of them has the channel
    HttpError 400        they found fault with what was asked; the message is what the first one said
    UpstreamsFailed      anything else: none could be reached, or each failed in its own way
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import loads
from typing import Any

from emberq.admin.api.failure import NotSupported, TopicNotFound
from emberq.admin.upstream import Cluster
from emberq.cluster.producer import Producer
from emberq.cluster.upstream import ChannelNotFound, Findings, Kind, UpstreamError, UpstreamsFailed
from emberq.http.message import HttpError

NO_SUCH_PATH = "NOT_FOUND"
"""What an nsqd says to what it does not know."""
_NOT_JOURNALED = ("TOPIC_NOT_JOURNALED", "CHANNEL_NOT_JOURNALED")
_NO_CHANNEL = "CHANNEL_NOT_FOUND"
_FAULTS = ("INVALID_", "MISSING_", "OFFSET_", "DEAD_LETTER_")
"""How refusals begin that tell of the request, not of the nsqd."""

Answers = list[dict[str, Any]]


class TopicNsqds:
    """Finds and asks them. Shared by those parts of the API that need it."""

    def __init__(self, cluster: Cluster) -> None:
        self._upstreams = cluster.upstreams
        self._topology = cluster.topology

    async def having(self, topic: str) -> list[Producer]:
        """The nsqds that have the topic; TopicNotFound if none has."""
        producers = list((await self._topology.topic_producers(topic)).value)
        if not producers:
            raise TopicNotFound(f"no nsqd has topic {topic}")
        return producers

    async def post_each(
        self, producers: Sequence[Producer], path: str, query: dict[str, str], body: bytes = b""
    ) -> Findings[Answers]:
        """What each nsqd answers, with its `node`, and why the others did not do it."""
        return await self.post_while(producers, path, lambda _answers: query, body)

    async def post_while(
        self,
        producers: Sequence[Producer],
        path: str,
        next_query: Callable[[Answers], dict[str, str] | None],
        body: bytes = b"",
    ) -> Findings[Answers]:
        """The same with a query that depends on what the nsqds before have answered; None: that will do."""
        answers: Answers = []
        failures: list[tuple[Producer, UpstreamError]] = []
        for producer in producers:
            query = next_query(answers)
            if query is None:
                break
            try:
                answer = await self._upstreams.post(producer.http_address, path, body, **query)
                answers.append({"node": producer.node, **_object(answer)})
            except UpstreamError as failure:
                failures.append((producer, failure))
        if failures and not answers:
            raise _nobody_did_it(failures)
        return Findings(answers, tuple(_reason(producer, failure) for producer, failure in failures))


def reason_of_incapable(producer: Producer, failure: UpstreamError) -> str | None:
    """Why an nsqd cannot do what was asked, if that is what it said."""
    if failure.refusal == NO_SUCH_PATH:
        return f"{producer.node} cannot do this: only emberq's nsqd can"
    if failure.refusal in _NOT_JOURNALED:
        return f"{producer.node} keeps no journal of it ({failure.refusal})"
    return None


def _reason(producer: Producer, failure: UpstreamError) -> str:
    return reason_of_incapable(producer, failure) or str(failure)


def _nobody_did_it(failures: Sequence[tuple[Producer, UpstreamError]]) -> Exception:
    reasons = [_reason(producer, failure) for producer, failure in failures]
    if all(reason_of_incapable(producer, failure) is not None for producer, failure in failures):
        return NotSupported("; ".join(reasons))
    refusals = [failure.refusal for _, failure in failures if failure.refusal]
    if refusals and set(refusals) == {_NO_CHANNEL}:
        return ChannelNotFound(reasons[0])
    if refusals and all(refusal.startswith(_FAULTS) for refusal in refusals):
        return HttpError(400, refusals[0])
    return UpstreamsFailed(Kind.NSQD, reasons)


def _object(answer: bytes) -> dict[str, Any]:
    try:
        value = loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
