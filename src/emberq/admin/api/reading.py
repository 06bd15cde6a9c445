"""GET /api/topics, /api/nodes and what lies below them; GET /api/counter. As in the reference, to the key."""

from __future__ import annotations

from emberq.admin.api.document import (
    channel_document,
    counters_document,
    node_document,
    producer_document,
    topic_document,
)
from emberq.admin.upstream import Cluster
from emberq.base.clock import Clock
from emberq.http.message import Request, Response, json


class ReadingApi:
    """Asks the cluster anew for each request."""

    def __init__(self, cluster: Cluster, *, clock: Clock) -> None:
        self._topology = cluster.topology
        self._observer = cluster.observer
        self._clock = clock

    async def topics(self, request: Request) -> Response:
        """All topics; with `inactive=true` those that no nsqd has, and their channels."""
        if request.query().get("inactive") == "true":
            inactive = await self._topology.inactive_topics()
            listed = {topic: list(channels) for topic, channels in inactive.value.items()}
            return json({"topics": listed, "message": inactive.message})
        found = await self._topology.topics()
        return json({"topics": list(found.value) or None, "message": found.message})

    async def topic(self, request: Request) -> Response:
        found = await self._observer.topic(request.params["topic"])
        return json(topic_document(found.value, now_ns=self._clock.wall_ns()) | {"message": found.message})

    async def channel(self, request: Request) -> Response:
        """With its clients."""
        topic, channel = request.params["topic"], request.params["channel"]
        found = await self._observer.channel(topic, channel, include_clients=True)
        document = channel_document(found.value, now_ns=self._clock.wall_ns(), with_clients=True)
        return json(document | {"message": found.message})

    async def nodes(self, _request: Request) -> Response:
        found = await self._topology.producers()
        return json({"nodes": [producer_document(each) for each in found.value], "message": found.message})

    async def node(self, request: Request) -> Response:
        found = await self._observer.node(request.params["node"])
        return json(node_document(found.value, now_ns=self._clock.wall_ns()) | {"message": found.message})

    async def counter(self, _request: Request) -> Response:
        found = await self._observer.counters()
        return json({"stats": counters_document(found.value), "message": found.message})
