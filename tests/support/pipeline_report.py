"""What a Spark query publishes to the topic `emberq.pipelines`, as `emberq.spark.pipeline.progress` words it."""

from __future__ import annotations

from typing import Any

REPORT: dict[str, Any] = {
    "pipeline": "clickstream",
    "query": "counts",
    "state": "running",
    "error": "",
    "time": "2026-11-15T06:10:00.000Z",
    "as_of": "2026-11-15T06:10:01.263Z",
    "batch": 42,
    "rows": 1200,
    "rows_per_second": 950.2,
    "rows_in_per_second": 800.1,
    "rows_out": 37,
    "rows_out_per_second": 24.7,
    "lag": 12,
    "duration_ms": 1263,
    "durations_ms": {"addBatch": 980, "commitOffsets": 40, "triggerExecution": 1263},
    "state_rows": 310,
    "watermark": "2026-11-15T06:08:00.000Z",
    "messages": {"clicks": 1200},
    "bad": {"clicks": 3},
    "failed_rules": {"clicks.has_user": 2},
    "offsets": [{"127.0.0.1:4151": {"clicks": {"journal": "0b5f", "offset": 183250}}}],
    "sources": [{"description": "nsq: clicks on 127.0.0.1:4151", "metrics": {"minOffsetsBehindLatest": 12}}],
}
"""Of a batch."""

HEARTBEAT = REPORT | {
    "rows": 0,
    "rows_per_second": 0.0,
    "rows_in_per_second": 0.0,
    "rows_out": 0,
    "rows_out_per_second": 0.0,
    "lag": 0,
    "duration_ms": 0,
    "durations_ms": {},
    "messages": {},
    "bad": {},
    "failed_rules": {},
}
"""Of a query that has nothing to read."""
