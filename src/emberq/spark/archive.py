"""An archive: topics as Parquet files, each message once, and the way back.

    DIR/topic=clicks/date=2026-11-15/hour=06/*.parquet     columns nsqd, offset, id, timestamp, body
    DIR/_checkpoint                                        how far it has come; goes with the files

An archive is written by a pipeline (`archive_pipeline`). Reading it back needs no Spark: `archived_bodies` reads the
files hour by hour. Within an hour files are read in the order in which they were written, so messages of one nsqd come
in the order of their offsets. Between nsqds, and between merged files, times are not in exact order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from emberq.spark.pipeline.files import DataFile, data_files, finish_interrupted
from emberq.spark.pipeline.model import BodyFormat, Pipeline, Sink, Source, View

CHECKPOINT = "_checkpoint"
SECRETS = ("authSecret", "lookupdSecret")
HOUR = timedelta(hours=1)

_MESSAGES = """
SELECT _topic AS topic, _nsqd AS nsqd, _offset AS offset, _id AS id, _time AS timestamp, body FROM messages
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """Publish times from `start_ns` to before `end_ns`, in nanoseconds since the epoch. None means no bound."""

    start_ns: int | None = None
    end_ns: int | None = None


def archive_pipeline(
    topics: Sequence[str], folder: str, *, access: Mapping[str, str], trigger: str, options: Mapping[str, str]
) -> Pipeline:
    """The pipeline that archives these topics. `access` and `options` are options of format("nsq")."""
    folder = folder.rstrip("/")
    return Pipeline(
        name="archive",
        checkpoint=f"{folder}/{CHECKPOINT}",
        nsqd=tuple(filter(None, access.get("nsqd", "").split(","))),
        lookupd=tuple(filter(None, access.get("lookupd", "").split(","))),
        secrets={name: access[name] for name in SECRETS if name in access},
        trigger=trigger,
        sources={"messages": Source(topic=tuple(topics), format=BodyFormat.BINARY, options=options)},
        views={"archived": View(sql=_MESSAGES)},
        sinks={
            "files": Sink(view="archived", path=folder, partition_by=("topic",), partition_by_time="timestamp"),
        },
    )


def archived_topics(folder: Path) -> list[str]:
    """The topics that have files in an archive."""
    return sorted(path.name.removeprefix("topic=") for path in folder.glob("topic=*/"))


def archived_count(folder: Path, topic: str, times: TimeRange) -> int:
    """How many messages of a topic were published in that time. Reads only the column of publish times."""
    return sum(len(_kept(rows.column(0), times)) for rows in _rows(folder, topic, times, ["timestamp"]))


def archived_bodies(folder: Path, topic: str, times: TimeRange) -> Iterator[list[bytes]]:
    """The bodies of a topic's messages published in that time, in portions."""
    for rows in _rows(folder, topic, times, ["timestamp", "body"]):
        bodies = rows.column(1).take(_kept(rows.column(0), times)).to_pylist()
        if bodies:
            yield bodies


def _rows(folder: Path, topic: str, times: TimeRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
    finish_interrupted(folder)
    for file in data_files(folder / f"topic={topic}"):
        if _may_hold(file, times):
            yield from pq.ParquetFile(file.path).iter_batches(columns=columns)


def _may_hold(file: DataFile, times: TimeRange) -> bool:
    """Whether the hour of a file overlaps the range."""
    parts = dict(part.split("=", 1) for part in file.path.parts if part.startswith(("date=", "hour=")))
    start = datetime.strptime(f"{parts['date']} {parts['hour']}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    start_ns, end_ns = _nanoseconds(start), _nanoseconds(start + HOUR)
    is_before = times.start_ns is not None and end_ns <= times.start_ns
    is_behind = times.end_ns is not None and start_ns >= times.end_ns
    return not is_before and not is_behind


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000_000


def _kept(timestamps: pa.Array, times: TimeRange) -> pa.Array:
    """The indices of the rows in range."""
    moments = timestamps.cast(pa.int64())  # microseconds
    mask = pc.is_valid(moments)
    if times.start_ns is not None:
        mask = pc.and_(mask, pc.greater_equal(moments, -(-times.start_ns // 1000)))
    if times.end_ns is not None:
        mask = pc.and_(mask, pc.less(moments, -(-times.end_ns // 1000)))
    return pc.indices_nonzero(mask)
