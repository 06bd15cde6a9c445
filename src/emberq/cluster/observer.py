"""Gathers figures over the cluster.

First the nsqds concerned are found (see `topology`), then all of them are asked for /stats at once. Warnings of both
steps come with the result. Only what is needed is asked for: clients make most of an answer, so they are left out
unless they are to be shown. What may take long is reckoned in the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberq.base.clock import Clock
from emberq.cluster.aggregate import total_channel, total_topic
from emberq.cluster.client_sieve import ClientSieve
from emberq.cluster.node_figures import FigureReader
from emberq.cluster.producer import Producer
from emberq.cluster.stats import ChannelStats, TopicStats
from emberq.cluster.stats_document import StatsReader
from emberq.cluster.survey import Survey
from emberq.cluster.tally import NOTHING, Tally
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import ChannelNotFound, Findings, Kind, Upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """All that one nsqd has."""

    node: str
    topics: tuple[TopicStats, ...]
    """By name, with channels and clients."""

    @property
    def total_messages(self) -> int:
        """Messages published to it since it was started."""
        return sum(topic.message_count for topic in self.topics)

    @property
    def total_clients(self) -> int:
        """Consumers connected to it."""
        return sum(channel.client_count for topic in self.topics for channel in topic.channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCounter:
    """How many messages a channel of one node was given."""

    node: str
    topic_name: str
    channel_name: str
    message_count: int

    @property
    def key(self) -> str:
        """What nsqadmin lists it under."""
        return f"{self.topic_name}:{self.channel_name}:{self.node}"


class Observer:
    """Looks at the cluster. Remembers nothing: every answer is asked for anew."""

    def __init__(self, upstreams: Upstreams, topology: Topology) -> None:
        self._upstreams = upstreams
        self._topology = topology

    async def topic(self, topic: str) -> Findings[TopicStats]:
        """A topic over the nsqds that have it."""
        producers = await self._topology.topic_producers(topic)
        parts = await self.of_producers(producers.value, topic=topic)
        total = await self._upstreams.background.run(lambda: total_topic(topic, parts.value))
        return Findings(total, producers.warnings + parts.warnings)

    async def channel(
        self, topic: str, channel: str, *, include_clients: bool, sieve: ClientSieve | None = None
    ) -> Findings[ChannelStats]:
        """A channel over the nsqds that have the topic; ChannelNotFound if none has the channel.

        Its clients go through the sieve, if there is one.
        """
        producers = await self._topology.topic_producers(topic)
        stats = await self.of_producers(
            producers.value, topic=topic, channel=channel, include_clients=include_clients, sieve=sieve
        )
        parts = [part for of_topic in stats.value for part in of_topic.channels if part.channel_name == channel]
        if not parts:
            raise ChannelNotFound(f"no nsqd has channel {channel} of topic {topic}")
        total = await self._upstreams.background.run(lambda: total_channel(parts))
        return Findings(total, producers.warnings + stats.warnings)

    async def node(self, node: str) -> Findings[NodeStats]:
        """Everything on the nsqd that the cluster calls `node`; NodeNotFound."""
        producer = await self._topology.node(node)
        stats = await self.of_producers([producer.value], include_clients=True)
        topics = tuple(sorted(stats.value, key=lambda topic: topic.topic_name))
        return Findings(NodeStats(node=node, topics=topics), producer.warnings)

    async def counters(self) -> Findings[tuple[ChannelCounter, ...]]:
        """The message count of every channel on every nsqd."""
        producers = await self._topology.producers()
        stats = await self.of_producers(producers.value)
        counters = tuple(
            ChannelCounter(
                node=channel.node,
                topic_name=channel.topic_name,
                channel_name=channel.channel_name,
                message_count=channel.message_count,
            )
            for topic in stats.value
            for channel in topic.channels
        )
        return Findings(counters, producers.warnings + stats.warnings)

    async def survey(self, clock: Clock, before: Survey | None = None) -> Findings[Survey]:
        """Every topic and channel over all nsqds, and what happened since `before`.

        A cluster without a single nsqd is empty, and nothing is wrong with it.
        """
        producers = await self._topology.identities()
        if not producers.value:
            return Findings(Survey((), Tally(), taken_ns=clock.monotonic_ns()), producers.warnings)
        then = before.nodes if before is not None else NOTHING
        tally = Tally(then)

        async def ask(producer: Producer) -> None:
            read = FigureReader(producer, then.get(producer.node)).figures
            query = {"format": "json", "include_clients": "false"}
            figures = await self._upstreams.get(producer.http_address, "/stats", read, **query)
            await self._upstreams.background.run(lambda: tally.add(figures))

        found = await self._upstreams.ask_each(Kind.NSQD, producers.value, ask)
        taken_ns = clock.monotonic_ns()
        survey = await self._upstreams.background.run(
            lambda: Survey(producers.value, tally, taken_ns=taken_ns, before=before)
        )
        return Findings(survey, producers.warnings + found.warnings)

    async def of_producers(
        self,
        producers: Sequence[Producer],
        *,
        topic: str = "",
        channel: str = "",
        include_clients: bool = False,
        sieve: ClientSieve | None = None,
    ) -> Findings[list[TopicStats]]:
        """The topics of each of these nsqds, node by node; all topics unless one is named."""
        query = {"format": "json"}
        if topic:
            query["topic"] = topic
        if channel:
            query["channel"] = channel
        if not include_clients:
            query["include_clients"] = "false"

        async def ask(producer: Producer) -> list[TopicStats]:
            return await self._upstreams.get(
                producer.http_address, "/stats", StatsReader(producer, sieve).topics, **query, include_mem="false"
            )

        found = await self._upstreams.ask_each(Kind.NSQD, producers, ask)
        return Findings([stats for answer in found.value for stats in answer.value], found.warnings)
