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
    "rules": {"clicks.has_user": {"action": "drop", "sql": "user IS NOT NULL"}},
    "samples": {
        "clicks": ["not JSON; clicks on 127.0.0.1:4151, offset 183246: ?"],
        "clicks.has_user": ['clicks on 127.0.0.1:4151, offset 183249: {"page": "/"}'],
    },
    "offsets": [{"127.0.0.1:4151": {"clicks": {"journal": "0b5f", "offset": 183250}}}],
    "sources": [{"description": "nsq: clicks on 127.0.0.1:4151", "metrics": {"minOffsetsBehindLatest": 12}}],
    "graph": [
        {"name": "clicks", "kind": "source", "detail": "clicks", "uses": []},
        {"name": "per_minute", "kind": "view", "detail": "", "uses": ["clicks"]},
        {"name": "counts", "kind": "sink", "detail": "clicks.per-minute", "uses": ["per_minute"]},
    ],
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
    "samples": {},
}
"""Of a query that has nothing to read."""
