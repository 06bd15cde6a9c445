"""Whether everything that went into the clickstream pipeline came out again, and once: what `make demo` proves.

It looks at the end of each way a visit can take, with what is there and not with what the pipeline says of itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from emberq.spark.journal_replay import JournalReplay
from emberq.spark.pipeline.model import Pipeline
from emberq.spark.pipeline.parquet_compaction import data_files


@dataclass(frozen=True, slots=True)
class Check:
    """A number that should be another."""

    what: str
    expected: int
    found: int

    @property
    def is_right(self) -> bool:
        return self.expected == self.found


def check_clickstream(pipeline: Pipeline, *, good: int, broken: int, pages: Mapping[str, int]) -> list[Check]:
    """Compare what came out with what went in: so many good and broken events, the good ones for these pages."""
    ids = _archived_ids(Path(pipeline.sinks["archive"].path))
    counts = _latest_counts(pipeline, pipeline.sinks["live-counts"].topic)
    bad = pipeline.sources["clicks"].bad_records
    return [
        Check("visits in Parquet files", good, len(ids)),
        Check("different ones among them", good, len(pc.unique(ids))),
        Check("visits in the counts by minute and page", good, sum(counts.values())),
        Check("pages with the right count", len(pages), sum(counts[page] == count for page, count in pages.items())),
        Check("bad records, with their reasons", broken, len(list(_bodies(pipeline, bad.topic))) if bad else 0),
    ]


def _archived_ids(folder: Path) -> pa.ChunkedArray:
    columns = [pq.read_table(file.path, columns=["id"]).column("id") for file in data_files(folder)]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())


def _latest_counts(pipeline: Pipeline, topic: str) -> Counter[str]:
    """For each page, the last count of each minute, added up."""
    latest: dict[tuple[str, str], int] = {}
    for body in _bodies(pipeline, topic):
        count: dict[str, Any] = json.loads(body)
        key = count["minute"], count["page"]
        latest[key] = max(latest.get(key, 0), count["clicks"])  # counts only grow
    pages: Counter[str] = Counter()
    for (_minute, page), clicks in latest.items():
        pages[page] += clicks
    return pages


def _bodies(pipeline: Pipeline, topic: str) -> Iterator[bytes]:
    replay = JournalReplay(
        {**pipeline.access_options, "topic": topic, "mode": "journal"}, start="earliest", end="latest"
    )
    replay.prepare()
    for portion in replay.bodies():
        yield from portion
