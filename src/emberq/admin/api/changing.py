"""What changes the cluster: POST and DELETE below /api/topics, DELETE /api/nodes/<node>.

As in the reference, and stricter in one thing: names that no topic can have are refused everywhere. The reference
passes them on, and nsqlookupd takes `*` for every topic there is.

    POST   /api/topics               {"topic": "t", "channel": "c"}      create; the channel may be missing
    POST   /api/topics/<t>[/<c>]     {"action": "pause"}                 or unpause, empty; of a channel also seek and
                                                                         redrive (see `message`), set_policy and
                                                                         clear_policy (see `policy`)
    DELETE /api/topics/<t>[/<c>]
    DELETE /api/nodes/<node>         {"topic": "t"}                      tombstone

Each is answered with {"message": ""}, or a WARNING of what some daemon had against it.
"""

from __future__ import annotations

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.role import Permission
from emberq.admin.api import policy
from emberq.admin.api.body import Body, check_channel, check_topic
from emberq.admin.api.message import MessageApi
from emberq.admin.audit import Deed
from emberq.admin.record import Recorder
from emberq.admin.upstream import Cluster
from emberq.cluster.action import Verb
from emberq.http.message import HttpError, Request, Response, json

PERMISSIONS = {
    "pause": Permission.PAUSE,
    "unpause": Permission.PAUSE,
    "empty": Permission.EMPTY,
    "seek": Permission.SEEK,
    "redrive": Permission.REDRIVE,
    policy.SET: Permission.POLICY,
    policy.CLEAR: Permission.POLICY,
}
"""By the action that a body asks for."""
_MOVES = ("seek", "redrive")


class ChangingApi:
    """Carries out what the gate has let in."""

    def __init__(self, cluster: Cluster, messages: MessageApi, gate: Gate, recorder: Recorder) -> None:
        self._actions = cluster.actions
        self._messages = messages
        self._policies = policy.PolicyApi(cluster, recorder)
        self._gate = gate
        self._recorder = recorder

    async def create(self, request: Request, visitor: Visitor) -> Response:
        body = Body(request)
        topic, channel = check_topic(body.text("topic")), body.text("channel")
        deeds = [Deed(action="create_topic", topic=topic)]
        if channel:
            deeds.append(Deed(action="create_channel", topic=topic, channel=check_channel(channel)))
            work = self._actions.create_channel(topic, channel)
        else:
            work = self._actions.create_topic(topic)
        done = await self._recorder.carry_out(work, deeds, request, visitor)
        return json({"message": done.message})

    async def delete_topic(self, request: Request, visitor: Visitor) -> Response:
        topic = check_topic(request.params["topic"])
        deed = Deed(action="delete_topic", topic=topic)
        done = await self._recorder.carry_out(self._actions.delete_topic(topic), [deed], request, visitor)
        return json({"message": done.message})

    async def delete_channel(self, request: Request, visitor: Visitor) -> Response:
        topic, channel = check_topic(request.params["topic"]), check_channel(request.params["channel"])
        deed = Deed(action="delete_channel", topic=topic, channel=channel)
        done = await self._recorder.carry_out(self._actions.delete_channel(topic, channel), [deed], request, visitor)
        return json({"message": done.message})

    async def act_on_topic(self, request: Request, visitor: Visitor) -> Response:
        """Pause, unpause or empty a topic."""
        topic, verb = check_topic(request.params["topic"]), _verb(Body(request).text("action"))
        deed = Deed(action=f"{verb}_topic", topic=topic)
        await self._check(request, visitor, deed, PERMISSIONS[verb])
        work = self._actions.act_on_topic(verb, topic)
        done = await self._recorder.carry_out(work, [deed], request, visitor, notify_of_failure=True)
        return json({"message": done.message})

    async def act_on_channel(self, request: Request, visitor: Visitor) -> Response:
        """Pause, unpause or empty a channel, move it in its journal, redrive what died in it, or say when it does."""
        body = Body(request)
        topic, channel = check_topic(request.params["topic"]), check_channel(request.params["channel"])
        action = body.text("action")
        if action in (policy.SET, policy.CLEAR):
            deed = policy.deed_of(action, topic=topic, channel=channel)
            await self._check(request, visitor, deed, PERMISSIONS[action])
            return await self._policies.change(body, request, visitor, topic=topic, channel=channel)
        deed = Deed(action=f"{action}_channel", topic=topic, channel=channel)
        if action in _MOVES:
            await self._check(request, visitor, deed, PERMISSIONS[action])
            return await self._messages.move(action, body, deed, request, visitor)
        verb = _verb(action)
        await self._check(request, visitor, deed, PERMISSIONS[verb])
        work = self._actions.act_on_channel(verb, topic, channel)
        done = await self._recorder.carry_out(work, [deed], request, visitor, notify_of_failure=True)
        return json({"message": done.message})

    async def tombstone(self, request: Request, visitor: Visitor) -> Response:
        """Take a topic away from one nsqd."""
        try:
            topic = Body(request).text("topic")
        except HttpError as wrong:
            raise HttpError(400, "INVALID_BODY") from wrong
        node = request.params["node"]
        deed = Deed(action="tombstone_topic_producer", topic=check_topic(topic), node=node)
        work = self._actions.tombstone(topic, node=node)
        done = await self._recorder.carry_out(work, [deed], request, visitor)
        return json({"message": done.message})

    async def _check(self, request: Request, visitor: Visitor, deed: Deed, permission: Permission) -> None:
        """HttpError unless the role reaches as far as the body asks."""
        try:
            self._gate.check_role(visitor, permission)
        except HttpError as refusal:
            await self._recorder.refuse(request, visitor, deed, refusal.message)
            raise


def _verb(action: str) -> Verb:
    if action not in set(Verb):
        raise HttpError(400, "INVALID_ACTION")
    return Verb(action)
