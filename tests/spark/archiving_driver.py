"""A Spark driver of its own, to be killed: streams topics into Parquet files.

    python -m tests.spark.archiving_driver '{"master": ..., "folder": ..., "options": {...}, "is_last": false}'

It runs until it is told to end by SIGTERM; the last one ends by itself when all that there is has been read.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from emberq.spark import session
from emberq.spark.pipeline.files import ParquetFolder

SETTINGS: dict[str, str | int | bool] = {
    "spark.ui.enabled": False,
    "spark.driver.memory": "512m",
    "spark.deploy.maxExecutorRetries": -1,  # else a cluster gives an application up whose executors are killed
    "spark.sql.streaming.noDataMicroBatches.enabled": False,
}


def archive(spark: SparkSession, *, folder: str, options: Mapping[str, str], is_last: bool) -> StreamingQuery:
    """Start to archive into `folder`; the last time to the end of what is there."""
    rows = spark.readStream.format("nsq").options(**options).load()
    writer = rows.writeStream.foreachBatch(ParquetFolder(f"{folder}/rows").write)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(availableNow=True) if is_last else writer.trigger(processingTime="200 milliseconds")).start()


def main() -> None:
    task = json.loads(sys.argv[1])
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.set())
    spark = session("archive", master=task.pop("master"), config=SETTINGS)
    query = archive(spark, **task)
    while not told_to_end.is_set() and not query.awaitTermination(1):
        pass
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
