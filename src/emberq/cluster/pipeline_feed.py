"""The Spark queries that run on the cluster, as they report themselves.

Every query of a pipeline publishes its progress, a JSON object for each batch and, when it has nothing to do, every few
seconds, to the topic `emberq.pipelines`; its fields are those of `QueryProgress`. They are read by an ephemeral channel
of its own, so that no other consumer misses a report. Nothing is subscribed to before the topic exists: subscribing
would create it.

Of each query the last report is kept, and what one report does not tell: the last batches, what was counted in all of
them, the last error, and when it was reported.

    {…the last report, "received": 1763190600.5, "row_count": 52000, "bad_count": 3,
     "recent": [{"time", "duration_ms", "rows_in_per_second", "rows_out_per_second", "lag"}, …],   the newest last
     "failures": [{"name": "clicks.has_user", "count", "since", "last"}, …],    rules, and sources with bad records
     "last_error": {"error", "time"}}                                                       stays when it runs again

Samples of what failed are told apart from that (`PipelineFeed.samples`): they show messages, which not everyone may
see who may see figures.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from emberq.base.clock import NS_PER_MS, Clock
from emberq.client import ClientConfig, Consumer, ConsumerConfig, Message, NsqError
from emberq.cluster.topology import ClusterNode
from emberq.cluster.upstream import MalformedDocumentError, passable

TOPIC = "emberq.pipelines"
MAX_QUERIES = 500
"""Of more, the one that reported longest ago is forgotten."""
RECENT_COUNT = 40
"""Batches, as many as a sparkline shows."""
MAX_REPORT_BYTES = 64 * 1024
"""A longer one is not a report."""
_MAX_COUNT = 1 << 63
"""Larger ones are made up, and their sum might have more digits than can be written."""
_MAX_TIME_CHARACTERS = 64
_MAX_IN_FLIGHT = 100
_BATCH_FIGURES = ("time", "duration_ms", "rows_in_per_second", "rows_out_per_second", "lag")
MAX_FAILURES = 50
"""Rules and sources of a query that are counted. A pipeline has a few; a report could make up many."""
SAMPLE_COUNT = 3
"""Samples of each of them, the newest."""
MAX_SAMPLE_CHARACTERS = 500
_MAX_NAME_CHARACTERS = 200

_log = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    """An nsqd to subscribe on, and what it is shown."""

    tcp_address: str
    secret: bytes


class PipelineFeed:
    """Reads the reports of all queries. Owned by the daemon."""

    def __init__(
        self,
        *,
        clock: Clock,
        secret_for: Callable[[str], bytes] = lambda _address: b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`secret_for` the HTTP address of an nsqd is what that nsqd is shown if it demands AUTH."""
        self._clock = clock
        self._tls = tls
        self._secret_for = secret_for
        self._channel = f"nsqadmin-{secrets.token_hex(4)}#ephemeral"
        self._queries: dict[tuple[str, str], _Query] = {}
        """By the names of pipeline and query, the one that reported last at the end."""
        self._wanted: frozenset[_Wanted] = frozenset()
        self._consumers: list[Consumer] = []
        """One for each secret, or for none."""
        self._change: asyncio.Task[None] | None = None
        """Consumers being stopped and started, one after the other."""

    def follow(self, producers: Iterable[ClusterNode], nodes: Collection[str]) -> None:
        """Subscribe on all nsqds that have the topic now: those of the producers that are called one of `nodes`."""
        wanted = frozenset(
            _Wanted(producer.tcp_address, self._secret_for(producer.http_address))
            for producer in producers
            if producer.node in nodes
        )
        if wanted != self._wanted and (self._change is None or self._change.done()):
            self._wanted = wanted
            self._change = asyncio.get_running_loop().create_task(self._subscribe(wanted))

    async def _subscribe(self, wanted: frozenset[_Wanted]) -> None:
        await self._unsubscribe()
        for secret in {each.secret for each in wanted}:
            await self._consume({each.tcp_address for each in wanted if each.secret == secret}, secret)

    async def _consume(self, addresses: set[str], secret: bytes) -> None:
        consumer = Consumer(
            TOPIC,
            self._channel,
            self._take,
            nsqd_addresses=sorted(addresses),
            config=ConsumerConfig(max_in_flight=_MAX_IN_FLIGHT),
            client_config=ClientConfig(client_id="nsqadmin", auth_secret=secret, tls=self._tls),
        )
        try:
            await consumer.start()
        except NsqError as failure:
            _log.warning("cannot follow %s: %s", TOPIC, failure)
            self._wanted = frozenset()  # the next look tries again
            return
        self._consumers.append(consumer)

    async def _unsubscribe(self) -> None:
        consumers, self._consumers = self._consumers, []
        await asyncio.gather(*(consumer.stop(drain_timeout_s=1.0) for consumer in consumers))

    async def stop(self) -> None:
        """Unsubscribe."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        await self._unsubscribe()

    async def _take(self, message: Message) -> None:
        self.read(bytes(message.body))

    def read(self, body: bytes) -> None:
        """Keep a report; any other message is passed over."""
        report = _report_in(body)
        if report is None:
            return
        name = report["pipeline"], report["query"]
        query = self._queries.pop(name, None) or _Query()
        query.take(report, received_ms=self._clock.wall_ns() // NS_PER_MS)
        self._queries[name] = query
        if len(self._queries) > MAX_QUERIES:
            del self._queries[next(iter(self._queries))]

    def document(self) -> dict[str, Any]:
        """What is known of each query, by name."""
        return {"pipelines": [self._queries[name].document() for name in sorted(self._queries)]}

    def samples(self, pipeline: str, query: str) -> dict[str, Any]:
        """What failed in a query, with samples of it: bad records, and rows that did not meet a rule."""
        found = self._queries.get((pipeline, query))
        return {"failures": found.failures(with_samples=True) if found is not None else []}


class _Failure:
    """How often a rule failed, or a source had bad records. Owned by its query."""

    def __init__(self) -> None:
        self.count = 0
        self.since: object = None
        self.last: object = None
        self.samples: deque[str] = deque(maxlen=SAMPLE_COUNT)

    def take(self, count: int, when: object, samples: object) -> None:
        self.count += count
        self.since = self.since or when
        self.last = when
        for text in samples if isinstance(samples, list) else ():
            if isinstance(text, str) and text[:MAX_SAMPLE_CHARACTERS] not in self.samples:
                self.samples.append(text[:MAX_SAMPLE_CHARACTERS])


class _Query:
    """What is kept of one query. Owned by the feed."""

    def __init__(self) -> None:
        self._report: dict[str, Any] = {}
        self._received_ms = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_COUNT)
        self._row_count = 0
        self._bad_count = 0
        self._last_error: dict[str, Any] | None = None
        self._failures: dict[str, _Failure] = {}

    def take(self, report: dict[str, Any], *, received_ms: int) -> None:
        samples = _table(report.pop("samples", None))
        self._report = report
        self._received_ms = received_ms
        for name, count in (*_table(report.get("bad")).items(), *_table(report.get("failed_rules")).items()):
            if _count(count) and len(name) <= _MAX_NAME_CHARACTERS:
                if name not in self._failures and len(self._failures) < MAX_FAILURES:
                    self._failures[name] = _Failure()
                if name in self._failures:
                    self._failures[name].take(_count(count), _figure(report.get("time")), samples.get(name))
        self._row_count += _count(report.get("rows"))
        self._bad_count += _sum(report.get("bad"))
        if _count(report.get("duration_ms")):  # else it tells of no batch, only that the query is alive, or has ended
            self._recent.append({figure: _figure(report.get(figure)) for figure in _BATCH_FIGURES})
        if report.get("error"):
            self._last_error = {"error": str(report["error"]), "time": report.get("time")}

    def document(self) -> dict[str, Any]:
        return {
            **self._report,
            "received": self._received_ms / 1000,
            "recent": list(self._recent),
            "row_count": self._row_count,
            "bad_count": self._bad_count,
            "failures": self.failures(),
            "last_error": self._last_error,
        }

    def failures(self, *, with_samples: bool = False) -> list[dict[str, Any]]:
        return [
            {"name": name, "count": failure.count, "since": failure.since, "last": failure.last}
            | ({"samples": list(failure.samples)} if with_samples else {})
            for name, failure in sorted(self._failures.items())
        ]


def _report_in(body: bytes) -> dict[str, Any] | None:
    """The report that a message is; None if it is something else."""
    if len(body) > MAX_REPORT_BYTES:
        return None
    try:
        report = json.loads(body)
        if not isinstance(report, dict):
            return None
        passable(report)
    except (ValueError, RecursionError, MalformedDocumentError):
        return None
    is_named = all(isinstance(report.get(part), str) and report[part] for part in ("pipeline", "query"))
    return report if is_named else None


def _count(value: object) -> int:
    """A number of things; 0 for anything that is none."""
    return value if type(value) is int and 0 < value < _MAX_COUNT else 0


def _figure(value: object) -> object:
    """A figure of a batch, which is kept many times over; None if it is too large for that."""
    is_small = type(value) is float or (type(value) is int and abs(value) < _MAX_COUNT)
    return value if is_small or (isinstance(value, str) and len(value) <= _MAX_TIME_CHARACTERS) else None


def _sum(counts: object) -> int:
    """Counts by source, together."""
    return sum(map(_count, _table(counts).values()))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
