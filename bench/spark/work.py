"""What is measured. A work has sides that do the same with the same rows: ours, and Spark with files of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.failure import LoadFailure
from bench.metric import Better
from bench.server import Binary, Server
from bench.spark.messages import BODY_BYTES, SteadyFlow, publish
from bench.spark.stream import delays_ms, drained_rate, observing_newest, sustained_rate
from emberq.spark import read_topic
from emberq.spark.archive import archive_pipeline
from emberq.spark.pipeline import PipelineRun
from emberq.spark.pipeline.model import AVAILABLE_NOW

TOPIC = "rows"
OURS, FILES = "nsq", "files"
STEADY_PER_SECOND = 20_000
SKIPPED_BATCHES = 10
"""Of the latency: the first ones have a backlog to work off."""
COUNTED_BATCHES = 60
JOURNALED = ("--journal", "--max-body-size=10485760")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the works share."""

    spark: SparkSession
    nsqd: Binary
    row_count: int
    folder: Path
    """With `rows`, the Parquet files that the other side reads: the same columns, the same size."""

    @property
    def files(self) -> str:
        return str(self.folder / "rows")


Measured = Callable[[Bench], float]


@dataclass(frozen=True, kw_only=True)
class Work:
    """One line of the table."""

    name: str
    summary: str
    unit: str
    better: Better
    sides: Mapping[str, Measured]
    at_least: float
    """What we promise ourselves."""


def prepare_files(bench: Bench) -> None:
    """The rows as Parquet, made by reading them from an nsqd once."""
    with _filled(bench, bench.row_count, *JOURNALED) as server:
        _batch_rows(bench, server).write.parquet(bench.files)


def _journal_to_noop(bench: Bench) -> float:
    return _drain_journal(bench, _into_nothing)


def _journal_to_parquet(bench: Bench) -> float:
    return _drain_journal(
        bench, lambda rows, folder: rows.writeStream.format("parquet").option("path", f"{folder}/out")
    )


def _bodies_to_noop(bench: Bench) -> float:
    return _drain_journal(bench, _into_nothing, columns="body")


def _drain_journal(bench: Bench, write: Callable[[DataFrame, str], DataStreamWriter], **options: str) -> float:
    with _filled(bench, bench.row_count, *JOURNALED) as server, TemporaryDirectory(dir=bench.folder) as folder:
        return _drained(bench, write(_stream_rows(bench, server, **options), folder), folder)


def _files_to_noop(bench: Bench) -> float:
    with TemporaryDirectory(dir=bench.folder) as folder:
        return _drained(bench, _into_nothing(_file_rows(bench), folder), folder)


def _files_to_parquet(bench: Bench) -> float:
    with TemporaryDirectory(dir=bench.folder) as folder:
        return _drained(bench, _into_parquet(_file_rows(bench), folder), folder)


def _into_nothing(rows: DataFrame, _folder: str) -> DataStreamWriter:
    return rows.writeStream.format("noop")


def _into_parquet(rows: DataFrame, folder: str) -> DataStreamWriter:
    return rows.writeStream.format("parquet").option("path", f"{folder}/out")


def _drained(bench: Bench, writer: DataStreamWriter, folder: str) -> float:
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    return drained_rate(query, row_count=bench.row_count)


def _channel_to_noop(bench: Bench) -> float:
    memory = f"--mem-queue-size={bench.row_count}"
    with (
        _filled(bench, bench.row_count, memory, "--max-rdy-count=10000") as server,
        TemporaryDirectory(dir=bench.folder) as folder,
    ):
        rows = _stream_rows(bench, server, mode="channel", channel="spark", spool=f"{folder}/spool")
        query = rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint").start()
        return sustained_rate(query, row_count=bench.row_count)


def _rows_to_topic(bench: Bench) -> float:
    with bench.nsqd.serve(JOURNALED) as server:
        writer = _bodies(bench).write.format("nsq").mode("append").option("nsqd", _http(server)).option("topic", TOPIC)
        return _timed_rate(bench, writer.save)


def _rows_to_files(bench: Bench) -> float:
    with TemporaryDirectory(dir=bench.folder) as folder:
        return _timed_rate(bench, lambda: _bodies(bench).write.parquet(f"{folder}/out"))


def _timed_rate(bench: Bench, action: Callable[[], None]) -> float:
    begun_s = time.monotonic()
    action()
    return bench.row_count / (time.monotonic() - begun_s)


ARCHIVED_PART = 0.9
"""Of the rows of `history`. The others are read from the journal."""


def _history(bench: Bench) -> float:
    """All rows are in the journal, too; those that are archived are not read from it."""
    archived = round(bench.row_count * ARCHIVED_PART)
    with _filled(bench, archived, *JOURNALED) as server, TemporaryDirectory(dir=bench.folder) as folder:
        pipeline = archive_pipeline([TOPIC], folder, access={"nsqd": _http(server)}, trigger=AVAILABLE_NOW, options={})
        run = PipelineRun(pipeline, bench.spark)
        run.start()
        run.wait()
        run.stop()
        assert server.http_address is not None  # we have started it
        publish(server.http_address, TOPIC, bench.row_count - archived)
        return _timed_rate(bench, lambda: _use(bench, read_topic(bench.spark, _where(server), archive=folder)))


def _plain_files(bench: Bench) -> float:
    return _timed_rate(bench, lambda: _use(bench, bench.spark.read.parquet(bench.files)))


def _use(bench: Bench, rows: DataFrame) -> None:
    """Read every column of every row. Count and sum of the offsets show that each came once."""
    sums = "count(offset)", "sum(offset)", "sum(length(body))", "max(timestamp)", "max(id)"
    found = rows.selectExpr(*sums).collect()[0]
    count = bench.row_count
    if tuple(found)[:3] != (count, count * (count - 1) // 2, count * BODY_BYTES):
        raise LoadFailure(f"{found[0]} rows came of {count}, or others than were published")


def _latency(bench: Bench) -> float:
    with bench.nsqd.serve(JOURNALED) as server, TemporaryDirectory(dir=bench.folder) as folder:
        assert server.http_address is not None  # we have started it
        publish(server.http_address, TOPIC, 1)
        with SteadyFlow(server.http_address, TOPIC, per_second=STEADY_PER_SECOND):
            rows = observing_newest(_stream_rows(bench, server))
            query = rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint").start()
            return median(delays_ms(query, skipped=SKIPPED_BATCHES, wanted=COUNTED_BATCHES))


@contextmanager
def _filled(bench: Bench, row_count: int, *flags: str) -> Iterator[Server]:
    """An nsqd with so many messages in its topic, and in the channel `spark` of it."""
    with bench.nsqd.serve(flags) as server:
        assert server.http_address is not None  # we have started it
        publish(server.http_address, TOPIC, row_count)
        yield server


def _http(server: Server) -> str:
    assert server.http_address is not None  # we have started it
    return "{}:{}".format(*server.http_address)


def _where(server: Server) -> dict[str, str]:
    return {"nsqd": _http(server), "topic": TOPIC}


def _batch_rows(bench: Bench, server: Server) -> DataFrame:
    return bench.spark.read.format("nsq").options(**_where(server)).load()


def _stream_rows(bench: Bench, server: Server, **options: str) -> DataFrame:
    return bench.spark.readStream.format("nsq").options(**_where(server), **options).load()


def _file_rows(bench: Bench) -> DataFrame:
    schema = bench.spark.read.parquet(bench.files).schema
    return bench.spark.readStream.schema(schema).parquet(bench.files)


def _bodies(bench: Bench) -> DataFrame:
    """Made up while they are written, which costs both sides the same and next to nothing."""
    return bench.spark.range(bench.row_count).select(
        F.lpad(F.col("id").cast("string"), BODY_BYTES, "0").cast("binary").alias("body")
    )


RATE_UNIT = "rows/s"

WORKS = (
    Work(
        name="journal-noop",
        summary="a stream of a journal, its rows counted and forgotten; files: of Parquet files",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _journal_to_noop, FILES: _files_to_noop},
        at_least=800_000,
    ),
    Work(
        name="journal-body",
        summary="the same with the column body alone",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _bodies_to_noop},
        at_least=900_000,
    ),
    Work(
        name="journal-parquet",
        summary="a stream of a journal into Parquet files; files: of Parquet files into others",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _journal_to_parquet, FILES: _files_to_parquet},
        at_least=400_000,
    ),
    Work(
        name="channel-noop",
        summary="a stream of a channel, through the spool, its rows counted and forgotten",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _channel_to_noop},
        at_least=250_000,
    ),
    Work(
        name="sink",
        summary="rows into a journaled topic; files: the same rows into Parquet files",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _rows_to_topic, FILES: _rows_to_files},
        at_least=300_000,
    ),
    Work(
        name="history",
        summary="a topic with its archive, nine tenths of the rows archived; files: all rows as plain Parquet",
        unit=RATE_UNIT,
        better="higher",
        sides={OURS: _history, FILES: _plain_files},
        at_least=500_000,
    ),
    Work(
        name="latency",
        summary=f"median age of the newest row when its micro-batch is done, at {STEADY_PER_SECOND:,} messages/s",
        unit="ms",
        better="lower",
        sides={OURS: _latency},
        at_least=300,
    ),
)
