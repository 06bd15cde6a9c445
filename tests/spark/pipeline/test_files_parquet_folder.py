"""Batches in a folder of Parquet files: there once, however often they were written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.pipeline.files import ParquetFolder

QUERY_ID = "sql.streaming.queryId"


@pytest.fixture
def query(spark: SparkSession) -> Iterator[None]:
    """Within a batch of a query, as far as a folder can tell."""
    spark.sparkContext.setLocalProperty(QUERY_ID, "5f0c2a91-1111-2222-3333-444455556666")
    yield
    spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    start = datetime(2026, 11, 15, 6, tzinfo=UTC).timestamp()
    return spark.createDataFrame(
        [(n, datetime.fromtimestamp(start + n * 1800, UTC)) for n in numbers], "n INT, at TIMESTAMP"
    )


def numbers_in(folder: Path) -> list[int]:
    files = [path for path in folder.rglob("*.parquet") if "_staging" not in path.parts]
    return sorted(n for path in files for n in pq.ParquetFile(path).read(columns=["n"])["n"].to_pylist())


@pytest.mark.usefixtures("query")
def test_a_batch_that_is_run_again_replaces_what_it_left(spark: SparkSession, tmp_path: Path) -> None:
    first = ParquetFolder(str(tmp_path), partition_by_time="at")
    first.write(rows(spark, 0, 1, 2), 0)
    first.write(rows(spark, 3), 1)
    ParquetFolder(str(tmp_path), partition_by_time="at").write(rows(spark, 3), 1)  # after a crash
    assert numbers_in(tmp_path) == [0, 1, 2, 3]
    partitions = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("5f0c2a91-*.parquet")}
    assert partitions == {"date=2026-11-15/hour=06", "date=2026-11-15/hour=07"}


@pytest.mark.usefixtures("query")
def test_another_query_leaves_the_files_of_the_first_alone(spark: SparkSession, tmp_path: Path) -> None:
    ParquetFolder(str(tmp_path)).write(rows(spark, 1), 0)
    spark.sparkContext.setLocalProperty(QUERY_ID, "00000000-1111-2222-3333-444455556666")
    folder = ParquetFolder(str(tmp_path))
    folder.write(rows(spark, 2), 0)
    folder.write(rows(spark), 1)
    assert numbers_in(tmp_path) == [1, 2]
    assert not list(tmp_path.glob("_staging/*"))
