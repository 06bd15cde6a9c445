"""How the queries of a pipeline get on: a listener of Spark turns every batch into a line of numbers.

It goes to whoever wants to show it, and as a JSON message to the topic `emberq.pipelines`:

    {"pipeline": "clickstream", "query": "counts", "batch": 42, "time": "2026-11-15T06:10:00.000Z", "rows": 1200,
     "rows_per_second": 950.2, "duration_ms": 1263, "state_rows": 310, "watermark": "2026-11-15T06:08:00.000Z",
     "messages": {"clicks": 1200}, "bad": {"clicks": 3}, "offsets": {"127.0.0.1:4151": {"clicks": …}}}

Publishing never holds a query up: what cannot be sent is dropped, and said once.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqSparkError
from emberq.spark.http import HttpPeer
from emberq.spark.option import Use, parse_options
from emberq.spark.pipeline.build import OBSERVED
from emberq.spark.setting import Access

MAX_WAITING = 1000
"""Lines that wait to be published; more than that come only if nsqd does not answer for long."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """One batch of one query."""

    pipeline: str
    query: str
    batch: int
    time: str
    rows: int
    rows_per_second: float
    duration_ms: int
    state_rows: int
    watermark: str
    messages: Mapping[str, int] = field(default_factory=dict)
    """How many came from each source."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """How many of those were not what the source says."""
    offsets: Any = None
    """Where the batch ended, of each source."""


class ProgressListener(StreamingQueryListener):
    """Hears of all queries in a session, and tells `on_progress` of those of one pipeline, in a thread of Spark."""

    def __init__(self, pipeline: str, queries: Mapping[str, str], on_progress: Callable[[QueryProgress], None]) -> None:
        """`queries` are the names that Spark knows the queries by, and those of their sinks."""
        self._pipeline = pipeline
        self._queries = queries
        self._on_progress = on_progress

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name, as are the others
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        query = self._queries.get(event.progress.name or "")
        if query is not None:
            self._on_progress(progress_of(event.progress, pipeline=self._pipeline, query=query))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def progress_of(progress: StreamingQueryProgress, *, pipeline: str, query: str) -> QueryProgress:
    """What counts of all that Spark tells."""
    observed = {
        name.removeprefix(OBSERVED): row.asDict()
        for name, row in progress.observedMetrics.items()
        if name.startswith(OBSERVED)
    }
    return QueryProgress(
        pipeline=pipeline,
        query=query,
        batch=progress.batchId,
        time=progress.timestamp,
        rows=progress.numInputRows,
        rows_per_second=_number(progress.processedRowsPerSecond),
        duration_ms=progress.durationMs.get("triggerExecution", 0),
        state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
        watermark=progress.eventTime.get("watermark", ""),
        messages={source: metrics["messages"] for source, metrics in observed.items()},
        bad={source: metrics["bad"] for source, metrics in observed.items()},
        offsets=[_document(source.endOffset) for source in progress.sources],
    )


def _number(rate: float) -> float:
    """Spark has rates that are no numbers, for batches that took no time; JSON has not."""
    return round(rate, 1) if math.isfinite(rate) else 0.0


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class ProgressPublisher:
    """Publishes progress to a topic, from a thread of its own."""

    def __init__(self, access_options: Mapping[str, str], topic: str) -> None:
        self._access = Access.of(parse_options(access_options, Use.SINK))
        self._topic = topic
        self._waiting: queue.Queue[QueryProgress | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="emberq-progress", daemon=True)
        self._has_failed = False

    def start(self) -> None:
        self._thread.start()

    def put(self, progress: QueryProgress) -> None:
        """Publish it soon, or never."""
        try:
            self._waiting.put_nowait(progress)
        except queue.Full:
            self._failed("more waits than can be published")

    def close(self) -> None:
        """Returns when what waits is published, or cannot be."""
        self._waiting.put(None)
        self._thread.join(self._access.request_timeout_s)

    def _run(self) -> None:
        book = AddressBook(self._access)
        while (progress := self._waiting.get()) is not None:
            try:
                nsqd = book.nsqds()[0]
                self._publish(book.peer(nsqd), progress)
                self._has_failed = False
            except (NsqSparkError, IndexError) as failure:
                self._failed(str(failure))
        book.close()

    def _publish(self, peer: HttpPeer, progress: QueryProgress) -> None:
        body = json.dumps(asdict(progress)).encode()
        headers = {"Content-Length": str(len(body))}
        peer.send("POST", "/pub", query={"topic": self._topic}, body=[body], headers=headers)
        peer.receive()

    def _failed(self, reason: str) -> None:
        if not self._has_failed:
            _log.warning("progress cannot be published to topic %s: %s", self._topic, reason)
        self._has_failed = True
