"""Two small uses of Spark: the check behind `make demo`, and the run behind `emberq prepare-spark`.

The check compares what went into the clickstream pipeline with what came out, and how often. It reads the outputs
themselves and not what the pipeline reports.

The run does a bit of everything that commands and pipelines do, so that Java loads Spark's classes.
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
from pyspark.sql import SparkSession

from emberq.spark.journal_read import JournalReplay
from emberq.spark.pipeline.files import data_files
from emberq.spark.pipeline.model import AVAILABLE_NOW, OutputMode, Pipeline, Sink, Source, View, Watermark
from emberq.spark.pipeline.run import PipelineRun
from emberq.spark.sql import SqlConsole

# The check of the demo.


@dataclass(frozen=True, slots=True)
class Check:
    """A number, and what it should be."""

    what: str
    expected: int
    found: int

    @property
    def is_right(self) -> bool:
        return self.expected == self.found


def check_clickstream(pipeline: Pipeline, *, good: int, broken: int, pages: Mapping[str, int]) -> list[Check]:
    """Compare the outputs with what was published: `good` and `broken` events; `pages` counts the good ones."""
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


# The run that loads Spark's classes.

TOPIC = "exercise"
BODIES = [b'{"page": "/%d", "at": "2026-01-01T00:%02d:00Z"}' % (number % 7, number % 60) for number in range(300)]
"""The messages of the topic."""

_COUNTS = "SELECT window.start AS minute, page, count(*) AS n FROM exercise GROUP BY window(at, '1 minute'), page"


def exercise(spark: SparkSession, *, nsqd: str, folder: str) -> None:
    """Query the topic on this nsqd in SQL, archive it, count it and publish the counts."""
    pipeline = Pipeline(
        name=TOPIC,
        nsqd=(nsqd,),
        checkpoint=f"{folder}/checkpoint",
        sources={
            TOPIC: Source(
                topic=(TOPIC,),
                schema="page STRING, at TIMESTAMP",
                watermark=Watermark(column="at", delay="10 seconds"),
            )
        },
        views={"counts": View(sql=_COUNTS)},
        sinks={
            "live": Sink(view="counts", topic="counts", output_mode=OutputMode.UPDATE),
            "final": Sink(view="counts", path=f"{folder}/counts"),
            "archive": Sink(view=TOPIC, path=f"{folder}/archive", partition_by_time="at"),
        },
        trigger=AVAILABLE_NOW,
    )
    run = PipelineRun(pipeline, spark)
    run.start()
    run.wait()
    run.stop()
    console = SqlConsole(spark)
    console.add_topic(TOPIC, access={"nsqd": nsqd}, schema="", raw=False)
    for give in (console.rows, console.json_lines):
        give("SELECT page, count(*) AS n FROM exercise GROUP BY page ORDER BY n DESC", max_rows=10)
