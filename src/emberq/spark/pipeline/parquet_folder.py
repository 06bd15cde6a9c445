"""A folder of Parquet files into which the batches of a query are written, each exactly once.

    data/clicks/date=2026-11-15/hour=06/5f0c2a91-0000000042-0000.parquet
                                        |        |          which file of that batch in that partition
                                        |        batch of the query
                                        the query, by the beginning of its id, which is in its checkpoint

A batch is written to `_staging` first, then its files are moved to their names. If that was interrupted, Spark runs the
batch again when the query starts again; then files of that batch are removed first. So a batch is there once, however
often it was tried, and whatever lies in the folder counts: no log beside it has to be read, as with Spark's own sink,
and any program that reads Parquet sees the same rows. Files may be merged (`parquet_compaction`).

While a batch is being moved, a reader may see some of its files and not yet the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from emberq.spark.pipeline.file_system import FileSystem

STAGING = "_staging"
QUERY_DIGITS = 8
BATCH_DIGITS = 10


class ParquetFolder:
    """Where one query writes. Belongs to its thread on the driver."""

    def __init__(self, path: str, *, partition_by: Sequence[str] = (), partition_by_time: str = "") -> None:
        self._path = path.rstrip("/")
        self._partition_by = list(partition_by)
        self._time_column = partition_by_time
        self._is_first_batch = True
        """Only the first batch of a run can have been tried before."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """For foreachBatch."""
        spark = rows.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        batch = f"{query.replace('-', '')[:QUERY_DIGITS]}-{batch_id:0{BATCH_DIGITS}d}"
        partitions = [*self._partition_by, *(("date", "hour") if self._time_column else ())]
        files = FileSystem(spark)
        if self._is_first_batch:
            for left_over in files.matching(f"{self._path}{'/*' * len(partitions)}/{batch}-*"):
                files.remove(left_over)
            self._is_first_batch = False
        counted = Observation()
        staging = f"{self._path}/{STAGING}/{batch}"
        # The other way to store moments, INT96, is Spark's default; no other program writes it any more.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        observed = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
        writer = self._with_date_and_hour(observed).write.mode("overwrite")
        (writer.partitionBy(*partitions) if partitions else writer).parquet(staging)
        if counted.get["rows"]:  # else Spark may have written a file without rows
            self._move_into_place(files, staging, batch)
        files.remove(staging)

    def _with_date_and_hour(self, rows: DataFrame) -> DataFrame:
        if not self._time_column:
            return rows
        time = F.col(self._time_column)
        return rows.withColumns({"date": F.date_format(time, "yyyy-MM-dd"), "hour": F.date_format(time, "HH")})

    def _move_into_place(self, files: FileSystem, staging: str, batch: str) -> None:
        written = sorted(file for file in files.files_below(staging) if file.endswith(".parquet"))
        for number, file in enumerate(written):
            partition = file.rpartition("/")[0]
            target = f"{self._path}/{partition}/" if partition else f"{self._path}/"
            files.move(f"{staging}/{file}", f"{target}{batch}-{number:04d}.parquet")
