"""Changes the cluster: creates, deletes, pauses, empties, tombstones.

    create     every nsqlookupd; for a channel then every nsqd that has the topic
    delete     every nsqlookupd, then every nsqd that has it
    pause, unpause, empty                    every nsqd that has it
    tombstone  every nsqlookupd, then the topic is deleted on that one nsqd

The order matters. nsqlookupd comes first when something is deleted, so that consumers do not find it again through it
while the nsqds delete theirs; for the same reason a topic's nsqds are found out before nsqlookupd forgets them.

The calls are made one after the other, and each that fails is a warning: what can be done is done. Only when the
nsqds concerned cannot be found out does an action fail as a whole (UpstreamsFailed), before it has changed anything or,
when it creates, after the nsqlookupds were told.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from emberq.cluster.topology import Topology
from emberq.cluster.upstream import Findings, UpstreamError, Upstreams

Done = Findings[None]


class Verb(enum.StrEnum):
    """What can be done to a topic or a channel that stays."""

    PAUSE = "pause"
    UNPAUSE = "unpause"
    EMPTY = "empty"


class Actions:
    """Carries out actions. The names must be valid: nsqlookupd takes `*` for everything."""

    def __init__(self, upstreams: Upstreams, topology: Topology) -> None:
        self._upstreams = upstreams
        self._topology = topology

    async def create_topic(self, topic: str) -> Done:
        """Have the nsqlookupds know the topic, so that consumers may look for it. Without any, nothing is done."""
        return Findings(None, await self._post_each(self._lookupds, "/topic/create", topic=topic))

    async def create_channel(self, topic: str, channel: str) -> Done:
        """The same for a topic and a channel, which is created on the nsqds that have the topic, too."""
        warnings = await self._post_each(self._lookupds, "/topic/create", topic=topic)
        warnings += await self._post_each(self._lookupds, "/channel/create", topic=topic, channel=channel)
        producers = await self._topology.registered_producers(topic)
        nsqds = [producer.http_address for producer in producers.value]
        warnings += producers.warnings
        return Findings(None, warnings + await self._post_each(nsqds, "/channel/create", topic=topic, channel=channel))

    async def delete_topic(self, topic: str) -> Done:
        """Delete a topic with its channels and messages."""
        return await self._delete("/topic/delete", topic=topic)

    async def delete_channel(self, topic: str, channel: str) -> Done:
        """Delete a channel with its messages."""
        return await self._delete("/channel/delete", topic=topic, channel=channel)

    async def _delete(self, path: str, *, topic: str, **names: str) -> Done:
        producers = await self._topology.topic_producers(topic)
        nsqds = [producer.http_address for producer in producers.value]
        warnings = producers.warnings + await self._post_each(self._lookupds, path, topic=topic, **names)
        return Findings(None, warnings + await self._post_each(nsqds, path, topic=topic, **names))

    async def act_on_topic(self, verb: Verb, topic: str) -> Done:
        """Pause, unpause or empty a topic."""
        return await self._act(f"/topic/{verb}", topic=topic)

    async def act_on_channel(self, verb: Verb, topic: str, channel: str) -> Done:
        """Pause, unpause or empty a channel."""
        return await self._act(f"/channel/{verb}", topic=topic, channel=channel)

    async def _act(self, path: str, *, topic: str, **names: str) -> Done:
        producers = await self._topology.topic_producers(topic)
        nsqds = [producer.http_address for producer in producers.value]
        return Findings(None, producers.warnings + await self._post_each(nsqds, path, topic=topic, **names))

    async def tombstone(self, topic: str, *, node: str) -> Done:
        """Take a topic away from one nsqd: hide it there for a while, so that it stays away, and delete it."""
        warnings = await self._post_each(self._lookupds, "/topic/tombstone", topic=topic, node=node)
        nsqd = await self._topology.reach(node)
        return Findings(None, warnings + await self._post_each([nsqd.http_address], "/topic/delete", topic=topic))

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
