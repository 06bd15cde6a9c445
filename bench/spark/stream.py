"""What Spark tells of a stream: rows, durations and delays of its micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from bench.failure import LoadFailure

NEWEST = "newest"
"""What an observed stream reports of each micro-batch: when its newest message was published."""
LOOK_EVERY_S = 0.05
LIMIT_S = 180


def drained_rate(query: StreamingQuery, *, row_count: int) -> float:
    """Rows in a second of a stream that ends by itself, by the time that its micro-batches took."""
    if not query.awaitTermination(LIMIT_S):
        query.stop()
        raise LoadFailure(f"the stream had not ended after {LIMIT_S} s")
    batches = _batches(query)
    _check_count(batches, row_count)
    return row_count / sum(batch.durationMs["triggerExecution"] for batch in batches) * 1000


def sustained_rate(query: StreamingQuery, *, row_count: int) -> float:
    """Rows in a second of a stream that never ends, from the end of its first micro-batch to the end of its last."""
    _wait(query, lambda: sum(batch.numInputRows for batch in _batches(query)) >= row_count)
    query.stop()
    batches = _batches(query)
    _check_count(batches, row_count)
    seconds = _end_s(batches[-1]) - _end_s(batches[0])
    if seconds <= 0:
        raise LoadFailure("all rows came in one micro-batch; there is nothing to measure")
    return (row_count - batches[0].numInputRows) / seconds


def delays_ms(query: StreamingQuery, *, skipped: int, wanted: int) -> list[float]:
    """How long before the end of each micro-batch its newest message was published; without the first ones."""
    _wait(query, lambda: len(_batches(query)) >= skipped + wanted)
    query.stop()
    return [_end_s(batch) * 1000 - batch.observedMetrics[NEWEST]["us"] / 1000 for batch in _batches(query)[skipped:]]


def observing_newest(rows: DataFrame) -> DataFrame:
    """The same rows, with what `delays_ms` needs."""
    return rows.observe(NEWEST, F.max(F.unix_micros("timestamp")).alias("us"))


def _batches(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """Of the last hundred, those that had something to do."""
    return [batch for batch in query.recentProgress if batch.numInputRows]


def _end_s(batch: StreamingQueryProgress) -> float:
    begun = datetime.fromisoformat(batch.timestamp.replace("Z", "+00:00"))
    return begun.timestamp() + batch.durationMs["triggerExecution"] / 1000


def _wait(query: StreamingQuery, is_done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_done():
        if not query.isActive:
            raise LoadFailure(f"the stream has ended: {query.exception()}")
        if time.monotonic() > deadline_s:
            query.stop()
            raise LoadFailure(f"the stream was not done after {LIMIT_S} s")
        time.sleep(LOOK_EVERY_S)


def _check_count(batches: list[StreamingQueryProgress], row_count: int) -> None:
    seen = sum(batch.numInputRows for batch in batches)
    if seen != row_count:
        raise LoadFailure(f"{seen} rows came of {row_count}")
