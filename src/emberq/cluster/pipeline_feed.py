"""The Spark queries that run on the cluster, as they report themselves.

Every query publishes its progress, a JSON object as Spark words it (`name`, `id`, `batchId`, `inputRowsPerSecond`,
`durationMs`, …) with what emberq adds (`lag`, `error`), to the topic `emberq.pipelines`. Here the last report of each
is kept, read by an ephemeral channel of our own, so that nobody misses a report because of us. Nothing is subscribed
to before the topic exists: subscribing would create it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from typing import Any

from emberq.base.clock import NS_PER_MS, Clock
from emberq.client import ClientConfig, Consumer, ConsumerConfig, Message, NsqError
from emberq.cluster.observer import Snapshot

TOPIC = "emberq.pipelines"
MAX_PIPELINES = 500
"""Of more, the one that reported longest ago is forgotten."""
MAX_REPORT_BYTES = 64 * 1024
"""A longer one is not a report."""
_MAX_IN_FLIGHT = 100

_log = logging.getLogger(__name__)


class PipelineFeed:
    """Owned by the daemon."""

    def __init__(self, *, clock: Clock, auth_secret: bytes = b"") -> None:
        self._clock = clock
        self._config = ClientConfig(client_id="nsqadmin", auth_secret=auth_secret)
        self._channel = f"nsqadmin-{secrets.token_hex(4)}#ephemeral"
        self._reports: dict[str, dict[str, Any]] = {}
        """By the query's name, the newest last."""
        self._addresses: frozenset[str] = frozenset()
        self._consumer: Consumer | None = None
        self._change: asyncio.Task[None] | None = None
        """Consumers being stopped and started, one after the other."""

    def follow(self, snapshot: Snapshot) -> None:
        """Subscribe on all nsqds that have the topic now."""
        nodes = {part.node for topic in snapshot.topics if topic.topic_name == TOPIC for part in topic.nodes or ()}
        addresses = frozenset(producer.tcp_address for producer in snapshot.producers if producer.node in nodes)
        if addresses != self._addresses and (self._change is None or self._change.done()):
            self._addresses = addresses
            self._change = asyncio.get_running_loop().create_task(self._subscribe(addresses))

    async def _subscribe(self, addresses: frozenset[str]) -> None:
        await self._unsubscribe()
        if not addresses:
            return
        consumer = Consumer(
            TOPIC,
            self._channel,
            self._take,
            nsqd_addresses=sorted(addresses),
            config=ConsumerConfig(max_in_flight=_MAX_IN_FLIGHT),
            client_config=self._config,
        )
        try:
            await consumer.start()
        except NsqError as failure:
            _log.warning("cannot follow %s: %s", TOPIC, failure)
            self._addresses = frozenset()  # the next look tries again
            return
        self._consumer = consumer

    async def _unsubscribe(self) -> None:
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop(drain_timeout_s=1.0)

    async def stop(self) -> None:
        """Unsubscribe."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        await self._unsubscribe()

    async def _take(self, message: Message) -> None:
        self.read(bytes(message.body))

    def read(self, body: bytes) -> None:
        """Keep a report; what is none is passed over."""
        if len(body) > MAX_REPORT_BYTES:
            return
        try:
            report = json.loads(body)
            json.dumps(report, allow_nan=False)  # Infinity and NaN, which are no JSON, are read but cannot be shown
        except (ValueError, RecursionError):
            return
        if not isinstance(report, dict):
            return
        name = report.get("name") or report.get("id")
        if not isinstance(name, str):
            return
        self._reports.pop(name, None)
        self._reports[name] = {**report, "name": name, "received": self._clock.wall_ns() // NS_PER_MS / 1000}
        if len(self._reports) > MAX_PIPELINES:
            del self._reports[next(iter(self._reports))]

    def document(self) -> dict[str, Any]:
        """The last report of each query, by name."""
        return {"pipelines": [self._reports[name] for name in sorted(self._reports)]}
