"""The policy of a channel: how often a message is delivered, and to which topic it goes then.

    POST /api/topics/<t>/<c>    {"action": "set_policy", "max_attempts": 5, "dead_letter_topic": "orders.dead"}
                                {"action": "clear_policy"}

It holds on every nsqd that has the channel; its answers are those of `topic_nsqds`. What holds now is in the channel's
document, on each node and, where they agree, for all.
"""

from __future__ import annotations

from emberq.admin.access.gate import Visitor
from emberq.admin.api.body import Body
from emberq.admin.api.topic_nsqds import TopicNsqds
from emberq.admin.audit import Deed
from emberq.admin.record import Recorder
from emberq.admin.upstream import Cluster
from emberq.cluster.upstream import Findings
from emberq.http.message import HttpError, Request, Response, encode_json, json
from emberq.wire.message import MAX_ATTEMPTS
from emberq.wire.name import is_valid_name

SET, CLEAR = "set_policy", "clear_policy"


class PolicyApi:
    """Has the nsqds change their policies."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._nsqds = TopicNsqds(cluster)
        self._recorder = recorder

    async def change(self, body: Body, request: Request, visitor: Visitor, *, topic: str, channel: str) -> Response:
        """Set or clear it, as the body says."""
        policy = _policy_in(body) if body.text("action") == SET else {}
        deed = deed_of(body.text("action"), topic=topic, channel=channel, detail=_told(policy))
        work = self._change(deed, encode_json(policy))
        done = await self._recorder.carry_out(work, [deed], request, visitor)
        return json({"message": done.message})

    async def _change(self, deed: Deed, policy: bytes) -> Findings[None]:
        producers = await self._nsqds.having(deed.topic)
        query = {"topic": deed.topic, "channel": deed.channel}
        done = await self._nsqds.post_each(producers, "/channel/policy", query, policy)
        return Findings(None, done.warnings)


def deed_of(action: str, *, topic: str, channel: str, detail: str = "") -> Deed:
    """What the audit log and notifications call it."""
    name = "set_channel_policy" if action == SET else "clear_channel_policy"
    return Deed(action=name, topic=topic, channel=channel, detail=detail)


def _policy_in(body: Body) -> dict[str, int | str]:
    max_attempts = body.integer("max_attempts")
    if max_attempts is None or not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise HttpError(400, "INVALID_MAX_ATTEMPTS")
    topic = body.text("dead_letter_topic")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_DEAD_LETTER_TOPIC")
    return {"max_attempts": max_attempts, "dead_letter_topic": topic}


def _told(policy: dict[str, int | str]) -> str:
    return f"{policy['max_attempts']} attempts, then {policy['dead_letter_topic']}" if policy else ""
