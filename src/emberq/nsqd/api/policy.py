"""GET and POST /channel/policy, POST /channel/redrive: what happens to messages that no consumer finishes.

    POST /channel/policy?topic=orders&channel=billing     {"max_attempts": 5, "dead_letter_topic": "orders.dead"}

From then on a message that was delivered five times and not finished is not delivered again, but published to the topic
`orders.dead`, in an envelope that tells where it came from. `{}` or no body removes the policy. Both answer the policy
in force. /channel/create takes the same two values as parameters, for channels that have a policy from the start.

    POST /channel/redrive?topic=orders.dead&channel=c[&to=TOPIC][&count=N]

publishes what waits in a channel of a dead-letter topic to where it came from, or to TOPIC. It answers how many
messages were moved, and how many were left because they do not say where they came from.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from json import loads as parse_json
from typing import Any

from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.broker.dead_letter import Redrive
from emberq.broker.error import ClassicDeadLetterTopicError, PolicyCycleError
from emberq.http.message import HttpError, Query, Request, Response, json
from emberq.nsqd.api.argument import existing_channel, failing_as_internal_error, parse_integer
from emberq.nsqd.api.publish import settled, unavailable
from emberq.storage.data_folder import ChannelPolicy
from emberq.wire.frame import MAX_ATTEMPTS
from emberq.wire.parameter import is_ephemeral, is_valid_name

MAX_POLICY_BYTES = 4096

_KEYS = frozenset({"max_attempts", "dead_letter_topic"})


class PolicyApi:
    """Shows, sets and redrives. A policy is on disk when it is answered."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def get(self, request: Request) -> Response:
        return self._shown(existing_channel(self._broker, request.query()))

    def set(self, request: Request) -> Response:
        channel = existing_channel(self._broker, request.query())
        set_policy(self._broker, channel, _policy_in_body(request.body))
        return self._shown(channel)

    def _shown(self, channel: Channel) -> Response:
        policy = self._broker.policy(channel)
        return json({} if policy is None else asdict(policy))

    async def redrive(self, request: Request) -> Response:
        """Move messages in portions, each when the one before is stored."""
        query = request.query()
        channel = existing_channel(self._broker, query)
        redrive = Redrive(self._broker.publish_to, channel, to=_target(query, channel), max_count=_count(query))
        try:
            while not redrive.is_done:
                failure = await settled(redrive.next_portion())
                if failure is not None:
                    raise unavailable(failure, moved=redrive.moved_count)
                await asyncio.sleep(0)  # other clients get a turn
        finally:
            redrive.end()
        return json({"moved": redrive.moved_count, "left": redrive.left_count})


def set_policy(broker: Broker, channel: Channel, policy: ChannelPolicy | None) -> None:
    """Set a channel's policy, or HttpError."""
    if policy is not None:
        refuse_policy(broker, topic=channel.topic_name, channel=channel.name, policy=policy)
    with failing_as_internal_error():
        broker.set_policy(channel, policy)


def refuse_policy(broker: Broker, *, topic: str, channel: str, policy: ChannelPolicy) -> None:
    """HttpError if dead letters cannot go where the policy says. The channel need not exist yet."""
    try:
        broker.check_policy(topic=topic, channel=channel, policy=policy)
    except PolicyCycleError as cycle:
        raise HttpError(400, "DEAD_LETTER_CYCLE") from cycle
    except ClassicDeadLetterTopicError as wrong:
        raise HttpError(400, "DEAD_LETTER_TOPIC_NOT_JOURNALED") from wrong


def policy_in_query(query: Query) -> ChannelPolicy | None:
    """The policy that the parameters of /channel/create ask for; None if they ask for none."""
    max_attempts, topic = query.get("max_attempts"), query.get("dead_letter_topic")
    if max_attempts is None and topic is None:
        return None
    return _checked({"max_attempts": parse_integer(max_attempts or ""), "dead_letter_topic": topic})


def _policy_in_body(body: bytes) -> ChannelPolicy | None:
    """The policy that a body asks for. An unknown key is an error: it must not be taken for "no policy"."""
    try:
        fields = parse_json(body) if body.strip() else {}
    except (ValueError, RecursionError) as wrong:
        raise HttpError(400, "INVALID_POLICY") from wrong
    if not isinstance(fields, dict) or not fields.keys() <= _KEYS:
        raise HttpError(400, "INVALID_POLICY")
    return _checked(fields) if fields else None


def _checked(fields: dict[str, Any]) -> ChannelPolicy:
    max_attempts, topic = fields.get("max_attempts"), fields.get("dead_letter_topic")
    if type(max_attempts) is not int or not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise HttpError(400, "INVALID_MAX_ATTEMPTS")
    if (
        not isinstance(topic, str) or not is_valid_name(topic) or is_ephemeral(topic)
    ):  # an ephemeral topic may drop its messages
        raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC")
    return ChannelPolicy(max_attempts=max_attempts, dead_letter_topic=topic)


def _target(query: Query, channel: Channel) -> str | None:
    to = query.get("to")
    if to is not None and (not is_valid_name(to) or to == channel.topic_name):
        raise HttpError(400, "INVALID_ARG_TO")
    return to


def _count(query: Query) -> int | None:
    given = query.get("count")
    if given is None:
        return None
    count = parse_integer(given)
    if count is None or count < 1:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return count
