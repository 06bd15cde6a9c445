"""A bit of everything that commands and pipelines do with Spark, so that its classes are loaded once."""

from __future__ import annotations

from pyspark.sql import SparkSession

from emberq.spark.pipeline.model import AVAILABLE_NOW, OutputMode, Pipeline, Sink, Source, View, Watermark
from emberq.spark.pipeline.run import PipelineRun
from emberq.spark.sql_console import SqlConsole

TOPIC = "exercise"
BODIES = [b'{"page": "/%d", "at": "2026-01-01T00:%02d:00Z"}' % (number % 7, number % 60) for number in range(300)]
"""What the topic is to hold."""

_COUNTS = "SELECT window.start AS minute, page, count(*) AS n FROM exercise GROUP BY window(at, '1 minute'), page"


def exercise(spark: SparkSession, *, nsqd: str, folder: str) -> None:
    """Ask the topic at this nsqd in SQL, archive it, count it and publish the counts."""
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
