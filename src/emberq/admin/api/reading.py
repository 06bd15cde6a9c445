"""GET /api/topics, /api/nodes and what lies below them; GET /api/counter. As in the reference, to the key.

A large cluster has megabytes to say, which take seconds to receive and to word. So it is asked, and the document made,
where those who are served meanwhile do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from emberq.admin.api.document import (
    Document,
    channel_document,
    counters_document,
    node_document,
    producer_document,
    topic_document,
)
from emberq.admin.api.watching import encoded
from emberq.admin.encoding import encode_in_pieces
from emberq.admin.upstream import Cluster
from emberq.base.clock import Clock
from emberq.cluster.observer import Observer
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import Findings
from emberq.http.message import Request, Response, json

T = TypeVar("T")


class ReadingApi:
    """Asks the cluster anew for each request."""

    def __init__(self, cluster: Cluster, *, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def topics(self, request: Request) -> Response:
        """All topics; with `inactive=true` those that no nsqd has, and their channels."""
        if request.query().get("inactive") == "true":
            return await self._answer(
                lambda topology, _: topology.inactive_topics(),
                lambda inactive: {"topics": {topic: list(channels) for topic, channels in inactive.items()}},
            )
        # Names are few enough to be answered at once, without waiting for what others have asked for.
        found = await self._cluster.topology.topics()
        return json({"topics": list(found.value) or None, "message": found.message})

    async def topic(self, request: Request) -> Response:
        name, now_ns = request.params["topic"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.topic(name), lambda topic: topic_document(topic, now_ns=now_ns)
        )

    async def channel(self, request: Request) -> Response:
        """With its clients."""
        topic, name, now_ns = request.params["topic"], request.params["channel"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.channel(topic, name, include_clients=True),
            lambda channel: channel_document(channel, now_ns=now_ns, with_clients=True),
        )

    async def nodes(self, _request: Request) -> Response:
        return await self._answer(
            lambda topology, _: topology.producers(),
            lambda producers: {"nodes": [producer_document(each) for each in producers]},
        )

    async def node(self, request: Request) -> Response:
        name, now_ns = request.params["node"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.node(name), lambda node: node_document(node, now_ns=now_ns)
        )

    async def counter(self, _request: Request) -> Response:
        return await self._answer(
            lambda _, observer: observer.counters(), lambda counters: {"stats": counters_document(counters)}
        )

    async def _answer(
        self,
        ask: Callable[[Topology, Observer], Coroutine[Any, Any, Findings[T]]],
        word: Callable[[T], Document],
    ) -> Response:
        """What `word` makes of the cluster's answer, with what is wrong with it."""
        found = await self._cluster.ask_in_background(ask)
        return encoded(
            await self._cluster.background.run(lambda: encode_in_pieces(word(found.value) | {"message": found.message}))
        )
