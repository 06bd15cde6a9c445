"""What changes the cluster: POST and DELETE below /api/topics, DELETE /api/nodes/<node>; and what is shown of it.

    POST   /api/topics               {"topic": "t", "channel": "c"}      create; the channel may be missing
    POST   /api/topics/<t>[/<c>]     {"action": "pause"}                 or unpause, empty
    POST   /api/topics/<t>/<c>       {"action": "seek" or "redrive", …}  see `message`
                                     {"action": "set_policy", "max_attempts": 5, "dead_letter_topic": "orders.dead"}
                                     {"action": "clear_policy"}
    DELETE /api/topics/<t>[/<c>]
    DELETE /api/nodes/<node>         {"topic": "t"}                      tombstone
    POST   /api/nodes/<node>         {"action": "drain"}                 or cancel_drain
    DELETE /api/absent/<node>                                            show an nsqd that is gone no more
    POST   /api/marks                {"text": "deploy 12", "topic": "t", "channel": "c", "time": 1715931000}
                                     a mark in the charts; all but the text may be missing
    POST   /api/actions              {"action": "pause", "targets": [{"topic": "t", "channel": "c", "node": "h:p"}]}

Each is answered with {"message": ""}, or a WARNING of what some daemon had against it.

**Many at once, or on one node** (/api/actions): pause, unpause or empty up to a hundred topics and channels, in their
order. A target without `channel` is the topic itself; one without `node` is meant on every nsqd. One that cannot be
done does not keep the others from it:

    {"done": 1, "failed": [{"topic": "t", "channel": "c", "node": "", "message": "…"}], "message": ""}

If none can be done, the first failure is the answer. Each target is an action of its own in the audit log.

All but the last three is as in the reference, and stricter in one thing: names that no topic can have are refused
everywhere. The reference passes them on, and nsqlookupd takes `*` for every topic there is.

**A policy** says how often a channel delivers a message, and to which topic it goes then. It holds on every nsqd that
has the channel; its answers are those of `message`. What holds now is in the channel's document, on each
node and, where they agree, for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.user import Permission
from emberq.admin.api.message import MessageApi
from emberq.admin.api.request import Body, check_channel, check_topic
from emberq.admin.audit import AuditedAction, Recorder
from emberq.admin.document import drain_document
from emberq.admin.history_store import HistoryMark
from emberq.admin.live import Gatherer
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.action import Verb
from emberq.cluster.cluster import Cluster
from emberq.cluster.upstream import ClusterError, NodeNotFoundError, warning_text
from emberq.http.message import HttpError, Request, Response, json
from emberq.wire.frame import MAX_ATTEMPTS
from emberq.wire.parameter import is_valid_name

SET, CLEAR = "set_policy", "clear_policy"


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


PERMISSIONS = {
    "pause": Permission.PAUSE,
    "unpause": Permission.PAUSE,
    "empty": Permission.EMPTY,
    "seek": Permission.SEEK,
    "redrive": Permission.REDRIVE,
    SET: Permission.POLICY,
    CLEAR: Permission.POLICY,
}
"""By the action that a body asks for."""
_MOVES = ("seek", "redrive")
_DRAINS = {"drain": False, "cancel_drain": True}
"""Whether the action takes a drain back."""
MAX_TARGETS = 100
"""Of one request, which has to be answered before the browser loses its patience; more takes several."""
MAX_MARK_NS = 4_102_444_800 * NS_PER_SECOND
"""The year 2100."""
MAX_TARGETS_BYTES = 256 * 1024
"""As many names as there are targets, each as long as can be."""


class ChangingApi:
    """Carries out what the gate has let in."""

    def __init__(
        self,
        cluster: Cluster,
        gatherer: Gatherer,
        messages: MessageApi,
        gate: Gate,
        recorder: Recorder,
        *,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._actions = cluster.actions
        self._reader = cluster.observer
        self._gatherer = gatherer
        self._messages = messages
        self._gate = gate
        self._recorder = recorder

    async def create(self, request: Request, visitor: Visitor) -> Response:
        body = Body(request)
        topic, channel = check_topic(body.text("topic")), body.text("channel")
        deeds = [AuditedAction(action="create_topic", topic=topic)]
        if channel:
            deeds.append(AuditedAction(action="create_channel", topic=topic, channel=check_channel(channel)))
        done = await self._recorder.carry_out(self._actions.create(topic, channel), deeds, request, visitor)
        return json({"message": done.message})

    async def delete(self, request: Request, visitor: Visitor) -> Response:
        """Delete a topic or a channel."""
        topic, channel = _named(request)
        held = await self._held(topic, channel, with_channels=True)
        deed = AuditedAction(action=f"delete_{_kind(channel)}", topic=topic, channel=channel, count=held)
        done = await self._recorder.carry_out(self._actions.delete(topic, channel), [deed], request, visitor)
        return json({"message": done.message})

    async def act(self, request: Request, visitor: Visitor) -> Response:
        """Pause, unpause or empty a topic or a channel; move a channel in its journal, redrive it, set its policy."""
        body = Body(request)
        topic, channel = _named(request)
        action = body.text("action")
        kind = _kind(channel)
        if action not in PERMISSIONS or (not channel and action not in set(Verb)):
            raise HttpError(400, "INVALID_ACTION")
        name = f"{action.removesuffix('_policy')}_channel_policy" if action in (SET, CLEAR) else f"{action}_{kind}"
        deed = AuditedAction(action=name, topic=topic, channel=channel)
        await self._check(request, visitor, deed, PERMISSIONS[action])
        if action in (SET, CLEAR):
            policy = _policy_in(body) if action == SET else {}
            deed = replace(deed, detail=_told(policy))
            work = self._messages.change_policy(deed, policy)
            done = await self._recorder.carry_out(work, [deed], request, visitor)
        elif action in _MOVES:
            return await self._messages.move(action, body, deed, request, visitor)
        else:
            if action == Verb.EMPTY:
                deed = replace(deed, count=await self._held(topic, channel))
            work = self._actions.act(Verb(action), topic, channel)
            done = await self._recorder.carry_out(work, [deed], request, visitor, notify_of_failure=True)
        return json({"message": done.message})

    async def act_on_many(self, request: Request, visitor: Visitor) -> Response:
        """Pause, unpause or empty several topics and channels, or parts of them."""
        body = Body(request)
        action = body.text("action")
        if action not in set(Verb):
            raise HttpError(400, "INVALID_ACTION")
        targets = [_target(entry) for entry in body.objects("targets")]
        if not 1 <= len(targets) <= MAX_TARGETS:
            raise HttpError(400, "INVALID_TARGETS")
        await self._check(request, visitor, AuditedAction(action=f"{action}_many"), PERMISSIONS[action])
        warnings: list[str] = []
        failed: list[dict[str, str]] = []
        failures: list[ClusterError] = []
        for topic, channel, node in targets:
            held = await self._held(topic, channel, node=node) if action == Verb.EMPTY else None
            deed = AuditedAction(
                action=f"{action}_{_kind(channel)}", topic=topic, channel=channel, node=node, count=held
            )
            work = self._actions.act(Verb(action), topic, channel, node=node)
            try:
                done = await self._recorder.carry_out(work, [deed], request, visitor, notify_of_failure=True)
            except ClusterError as failure:
                failures.append(failure)
                failed.append({"topic": topic, "channel": channel, "node": node, "message": str(failure)})
            else:
                warnings += done.warnings
        if len(failures) == len(targets):
            raise failures[0]
        return json({"done": len(targets) - len(failed), "failed": failed, "message": warning_text(tuple(warnings))})

    async def tombstone(self, request: Request, visitor: Visitor) -> Response:
        """Take a topic away from one nsqd."""
        try:
            topic = Body(request).text("topic")
        except HttpError as wrong:
            raise HttpError(400, "INVALID_BODY") from wrong
        node = request.params["node"]
        deed = AuditedAction(action="tombstone_topic_producer", topic=check_topic(topic), node=node)
        work = self._actions.tombstone(topic, node=node)
        done = await self._recorder.carry_out(work, [deed], request, visitor)
        return json({"message": done.message})

    async def drain(self, request: Request, visitor: Visitor) -> Response:
        """Have an nsqd take nothing new and stop when it is empty; or go on as before."""
        action, node = Body(request).text("action"), request.params["node"]
        if action not in _DRAINS:
            raise HttpError(400, "INVALID_ACTION")
        deed = AuditedAction(action=f"{action}_node", node=node)
        if _DRAINS[action]:
            self._gatherer.absences.hold_back(node)
        else:
            self._gatherer.absences.let_go(node, self._clock.wall_ns())
        work = self._actions.drain(node, is_cancelled=_DRAINS[action])
        done = await self._recorder.carry_out(work, [deed], request, visitor)
        return json(drain_document(done.value) | {"message": done.message})

    async def dismiss(self, request: Request, visitor: Visitor) -> Response:
        """Take an nsqd that is gone off the pages."""
        node = request.params["node"]
        deed = AuditedAction(action="dismiss_node", node=node)
        await self._recorder.carry_out(self._dismissed(node), [deed], request, visitor)
        return json({"message": ""})

    async def mark(self, request: Request, visitor: Visitor) -> Response:
        """Leave a mark in the charts of a channel, a topic, or the cluster."""
        body = Body(request)
        text = " ".join(body.text("text").split())
        if not text:
            raise HttpError(400, "INVALID_TEXT")
        topic, channel = body.text("topic"), body.text("channel")
        if topic or channel:
            check_topic(topic)
        if channel:
            check_channel(channel)
        time_s = body.integer("time")
        time_ns = self._clock.wall_ns() if time_s is None else time_s * NS_PER_SECOND
        if not 0 <= time_ns <= MAX_MARK_NS:
            raise HttpError(400, "INVALID_TIME")
        deed = AuditedAction(action="mark", topic=topic, channel=channel, detail=text)
        mark = HistoryMark(time_ns, "note", text, topic=topic, channel=channel)
        await self._recorder.carry_out(self._marked(mark), [deed], request, visitor)
        return json({"message": ""})

    async def _marked(self, mark: HistoryMark) -> None:
        self._gatherer.marks.add(mark)

    async def _dismissed(self, node: str) -> None:
        if not self._gatherer.dismiss(node):
            raise NodeNotFoundError(f"no nsqd called {node} is gone")

    async def _held(self, topic: str, channel: str, *, node: str = "", with_channels: bool = False) -> int | None:
        """Messages that are about to be dropped, for the audit log; None if that cannot be found out soon."""
        look = self._gatherer.last_look
        if look is not None and look.silent:
            return None  # the action has to wait for that node once already
        try:
            found = (await self._reader.topic(topic)).value
        except ClusterError:
            return None
        parts = [part for part in found.nodes or () if node in ("", part.node)]
        channels = [each for part in parts for each in part.channels if channel in ("", each.channel_name)]
        held = sum(each.depth + each.in_flight_count + each.deferred_count for each in channels)
        if channel:
            return held
        return sum(part.depth for part in parts) + (held if with_channels else 0)

    async def _check(self, request: Request, visitor: Visitor, deed: AuditedAction, permission: Permission) -> None:
        """HttpError unless the role reaches as far as the body asks."""
        try:
            self._gate.check_role(visitor, permission)
        except HttpError as refusal:
            await self._recorder.refuse(request, visitor, deed, refusal.message)
            raise


def _named(request: Request) -> tuple[str, str]:
    """The topic in the path of the request, and the channel, if there is one; HttpError for an impossible name."""
    topic, channel = check_topic(request.params["topic"]), request.params.get("channel")
    return topic, "" if channel is None else check_channel(channel)


def _target(entry: dict[str, Any]) -> tuple[str, str, str]:
    """Topic, channel and node that an action is meant for; HttpError."""
    topic, channel, node = (entry.get(name) or "" for name in ("topic", "channel", "node"))
    if not isinstance(topic, str) or not isinstance(channel, str) or not isinstance(node, str):
        raise HttpError(400, "INVALID_TARGETS")
    return check_topic(topic), check_channel(channel) if channel else "", node


def _kind(channel: str) -> str:
    return "channel" if channel else "topic"
