"""Who is in the cluster: which topics there are, and which nsqds have them.

The user names either nsqlookupds, who know, or the nsqds themselves. Every question is answered in both cases:

    question               by nsqlookupds                          by nsqds
    topics                 /topics, united                         /stats, the names united
    inactive topics        /lookup of each topic: no producer      none: nsqd knows only what it has
    producers of a topic   /lookup?topic=, united                  /stats?topic= lists it; then /info
    all producers          /nodes, united                          /info and /stats
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from emberq.cluster.document import Document, objects, text, texts
from emberq.cluster.producer import (
    Producer,
    by_hostname,
    producer_of_info,
    producers_of_lookup,
    producers_of_nodes,
    united,
)
from emberq.cluster.upstream import Answer, Findings, Kind, NodeNotFound, Upstreams, UpstreamsFailed

TOPICS_AT_ONCE = 32
"""Topics that are looked up together, so that a thousand of them do not stand in line for connections at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The HTTP addresses, `host:port`, that the user gave: of one kind or the other. nsqlookupds win."""

    lookupds: tuple[str, ...] = ()
    nsqds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Lookup:
    producers: list[Producer]
    channels: list[str]


class Topology:
    """Answers questions about who is there. Holds nothing: every answer is asked for anew."""

    def __init__(self, upstreams: Upstreams, addresses: Addresses) -> None:
        self._upstreams = upstreams
        self.addresses = addresses

    async def topics(self) -> Findings[tuple[str, ...]]:
        """The names of all topics, sorted."""
        if self.addresses.lookupds:
            return await self.registered_topics()
        return _united_names(await self._upstreams.ask_each(Kind.NSQD, self.addresses.nsqds, self._topics_of_nsqd))

    async def registered_topics(self) -> Findings[tuple[str, ...]]:
        """The names of all topics that the nsqlookupds know, sorted; without any nsqlookupd there are none."""
        if not self.addresses.lookupds:
            return Findings(())
        lookupds = self.addresses.lookupds
        return _united_names(await self._upstreams.ask_each(Kind.LOOKUPD, lookupds, self._topics_of_lookupd))

    async def inactive_topics(self) -> Findings[dict[str, tuple[str, ...]]]:
        """The topics that no nsqd has at present, each with its channels; sorted."""
        if not self.addresses.lookupds:
            return Findings({})
        topics = await self.topics()
        inactive: dict[str, tuple[str, ...]] = {}
        warnings = list(topics.warnings)
        for start in range(0, len(topics.value), TOPICS_AT_ONCE):
            names = topics.value[start : start + TOPICS_AT_ONCE]
            for name, found in zip(names, await asyncio.gather(*map(self._lookup_or_warn, names)), strict=True):
                warnings += found.warnings
                if found.value is not None and not found.value.producers:
                    inactive[name] = tuple(sorted(found.value.channels))
        return Findings(inactive, tuple(dict.fromkeys(warnings)))  # a dead nsqlookupd fails for every topic alike

    async def topic_producers(self, topic: str) -> Findings[tuple[Producer, ...]]:
        """The nsqds that have the topic."""
        if self.addresses.lookupds:
            return await self.registered_producers(topic)
        asked = await self._upstreams.ask_each(
            Kind.NSQD, self.addresses.nsqds, lambda address: self._nsqd_if_it_has(topic, address)
        )
        return Findings(tuple(each.value for each in asked.value if each.value is not None), asked.warnings)

    async def registered_producers(self, topic: str) -> Findings[tuple[Producer, ...]]:
        """The nsqds that the nsqlookupds know to have the topic; without any nsqlookupd, UpstreamsFailed."""
        found = await self._lookup(topic)
        return Findings(tuple(found.value.producers), found.warnings)

    async def producers(self) -> Findings[tuple[Producer, ...]]:
        """All nsqds with their topics, by host name."""
        if not self.addresses.lookupds:
            return await self._given(self._nsqd_with_topics)
        return await self._registered(with_topics=True)

    async def identities(self) -> Findings[tuple[Producer, ...]]:
        """All nsqds by host name, without their topics: that takes half the queries, or most of the reading away."""
        if not self.addresses.lookupds:
            return await self._given(self._nsqd)
        return await self._registered(with_topics=False)

    async def node(self, node: str) -> Findings[Producer]:
        """The nsqd that the cluster calls `node`, without its topics; NodeNotFound."""
        found = await self.identities()
        for producer in found.value:
            if producer.node == node:
                return Findings(producer, found.warnings)
        raise NodeNotFound(f"no nsqd of the cluster is called {node}")

    async def reach(self, node: str) -> Producer:
        """The nsqd that the cluster calls `node`, even if no nsqlookupd knows it at the moment."""
        if not self.addresses.lookupds:
            return (await self.node(node)).value
        found = await self._upstreams.ask_each(Kind.NSQD, [node], self._nsqd)
        return found.value[0].value

    async def _registered(self, *, with_topics: bool) -> Findings[tuple[Producer, ...]]:
        """The nsqds that the nsqlookupds know."""
        found = await self._upstreams.ask_each(
            Kind.LOOKUPD, self.addresses.lookupds, lambda address: self._nodes(address, with_topics)
        )
        everyone = [producer for answer in found.value for producer in answer.value]
        united_ = await self._upstreams.background.run(lambda: by_hostname(united(everyone)))
        return Findings(united_, found.warnings)

    async def _given(self, ask: Callable[[str], Awaitable[Producer]]) -> Findings[tuple[Producer, ...]]:
        """The nsqds that the user named."""
        found = await self._upstreams.ask_each(Kind.NSQD, self.addresses.nsqds, ask)
        return Findings(by_hostname(answer.value for answer in found.value), found.warnings)

    async def _lookup(self, topic: str) -> Findings[_Lookup]:
        """What all nsqlookupds together know of a topic, each nsqd and each channel once."""
        found = await self._upstreams.ask_each(
            Kind.LOOKUPD,
            self.addresses.lookupds,
            lambda address: self._upstreams.get(address, "/lookup", _read_lookup, topic=topic),
        )
        producers: dict[str, Producer] = {}
        channels: dict[str, None] = {}
        for answer in found.value:
            channels.update(dict.fromkeys(answer.value.channels))
            for producer in answer.value.producers:
                producers.setdefault(producer.node, producer)
        return Findings(_Lookup(list(producers.values()), list(channels)), found.warnings)

    async def _lookup_or_warn(self, topic: str) -> Findings[_Lookup | None]:
        """The same; a topic that was deleted since it was listed must not spoil the answer about the others."""
        try:
            found = await self._lookup(topic)
        except UpstreamsFailed as failure:
            return Findings(None, failure.failures)
        return Findings(found.value, found.warnings)

    # What is asked of one daemon.

    async def _topics_of_lookupd(self, address: str) -> list[str]:
        return await self._upstreams.get(address, "/topics", lambda answer: texts(answer, "topics"))

    async def _nodes(self, address: str, with_topics: bool) -> list[Producer]:
        return await self._upstreams.get(
            address, "/nodes", lambda answer: producers_of_nodes(answer, lookupd=address, with_topics=with_topics)
        )

    async def _topics_of_nsqd(self, address: str, **query: str) -> list[str]:
        return await self._upstreams.get(
            address, "/stats", _read_topic_names, format="json", **query, include_clients="false"
        )

    async def _nsqd(self, address: str, topics: Iterable[str] = ()) -> Producer:
        return await self._upstreams.get(
            address, "/info", lambda answer: producer_of_info(answer, address=address, topics=topics)
        )

    async def _nsqd_with_topics(self, address: str) -> Producer:
        return await self._nsqd(address, await self._topics_of_nsqd(address))

    async def _nsqd_if_it_has(self, topic: str, address: str) -> Producer | None:
        names = await self._topics_of_nsqd(address, topic=topic)
        return await self._nsqd(address, names) if topic in names else None


def _united_names(found: Findings[list[Answer[str, list[str]]]]) -> Findings[tuple[str, ...]]:
    names = {name for answer in found.value for name in answer.value}
    return Findings(tuple(sorted(names)), found.warnings)


def _read_lookup(answer: Document) -> _Lookup:
    return _Lookup(producers_of_lookup(answer), texts(answer, "channels"))


def _read_topic_names(answer: Document) -> list[str]:
    return [text(topic, "topic_name") for topic in objects(answer, "topics")]
