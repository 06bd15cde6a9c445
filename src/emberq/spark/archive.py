"""An archive: topics as Parquet files, each message once, and the way back.

    DIR/topic=clicks/date=2026-11-15/hour=06/*.parquet     columns nsqd, offset, id, timestamp, body
    DIR/_checkpoint                                        how far it has come; goes with the files

An archive is written by a pipeline (`archive_pipeline`). Reading it back needs no Spark: `archived_bodies` reads the
files hour by hour. Within an hour files are read in the order in which they were written, so messages of one nsqd come
in the order of their offsets. Between nsqds, and between merged files, times are not in exact order.

**A topic for all time** (`read_topic`) is what the archive has, read by Spark's own Parquet reader, and behind it what
the journals have. They meet at the offsets of the last batch that the archive's checkpoint says is done:

    batch        0 ... 41          42                    not done yet
    archive      |-- its files ----|.. half of a batch ..   left out, by the names of the files
    journals          retention |--|-- read from here on ------------>

Files say in their names which batch they are of, so what an archiver that was killed left half done is not taken. The
position is that of a journal, known by its uuid: an nsqd may move, and a topic that was deleted and made again is
another journal, which is read from its start. What is in neither, because retention was faster than the archive, is
lost, and `failOnDataLoss` decides.

The archiver may go on, and files may be merged, while they are listed: Spark's list is taken if a second look finds the
same files of the batches that are done, and of merges under way the notes tell which files not to read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from emberq.spark.error import NsqSparkError, OptionError
from emberq.spark.journal_offset import ANY_NSQD, Positions, from_document, to_document
from emberq.spark.journal_plan import JournalSurvey, next_step
from emberq.spark.option import Mode, SourceSettings, Use
from emberq.spark.pipeline.checkpoint import source_offsets
from emberq.spark.pipeline.files import (
    QUERY_DIGITS,
    DataFile,
    FileSystem,
    WrittenBy,
    data_files,
    finish_interrupted,
    superseded_files,
)
from emberq.spark.pipeline.model import BodyFormat, Pipeline, Sink, Source, View
from emberq.spark.schema import BODY, COLUMNS, HEADERS, opened, schema_of

_log = logging.getLogger(__name__)

CHECKPOINT = "_checkpoint"
FILES_SINK = "files"
ADDRESSES = ("nsqd", "lookupd")
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
        options={name: text for name, text in access.items() if name not in ADDRESSES + SECRETS},
        secrets={name: access[name] for name in SECRETS if name in access},
        trigger=trigger,
        sources={"messages": Source(topic=tuple(topics), format=BodyFormat.BINARY, options=options)},
        views={"archived": View(sql=_MESSAGES)},
        sinks={
            FILES_SINK: Sink(view="archived", path=folder, partition_by=("topic",), partition_by_time="timestamp"),
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


# A topic for all time.

STORED_COLUMNS = (
    "nsqd STRING, offset LONG, id STRING, timestamp TIMESTAMP, body BINARY, topic STRING, date DATE, hour INT"
)
"""Of the files; the last three are in the names of folders."""
_DATE = "date_from_unix_date(CAST(unix_seconds(timestamp) DIV 86400 AS INT)) AS date"
_HOUR = "CAST(unix_seconds(timestamp) DIV 3600 % 24 AS INT) AS hour"
"""In UTC, whatever the time zone of the session is."""
MAX_LOOKS = 10
"""How often files are listed again when they change meanwhile. A merge changes each folder once."""


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """What an archive has of some topics, and where their journals go on."""

    rows: DataFrame
    """The archived messages: the columns of format("nsq"), then `date` and `hour`, by which the files are split."""
    starting_offsets: str
    """The first messages that are not in `rows`, for the option `startingOffsets` of a stream or a batch."""


def read_topic(
    spark: SparkSession, options: Mapping[str, str], *, archive: str, times: TimeRange | None = None
) -> DataFrame:
    """All messages of topics, each once: what is archived, and what the journals have beyond it.

    `options` are those of format("nsq"), and `archive` is the folder that `emberq archive` has written. Rows have the
    columns of format("nsq"), and `date` and `hour` of publishing, in UTC; a condition on these leaves out whole
    folders of the archive. `times` leaves out what was published at other times.

    What is archived is looked up at once. The journals are read from there on, up to what they have when the DataFrame
    runs for the first time; when it runs again it has the same rows. If retention has removed some of them meanwhile,
    or files of the archive were merged, it fails: call this again.

    Raises DataLossError if messages were removed by retention before they were archived, unless `failOnDataLoss` is
    `false`.
    """
    past = archived_topic(spark, options, archive=archive)
    newer = {**options, "mode": Mode.JOURNAL.value, "startingOffsets": past.starting_offsets}
    rows = spark.read.format("nsq").options(**newer).load().selectExpr("*", _DATE, _HOUR)
    if times is None:
        return past.rows.unionByName(rows)
    return past.rows.where(_published_in(times, has_folders=True)).unionByName(rows.where(_published_in(times)))


def archived_topic(spark: SparkSession, options: Mapping[str, str], *, archive: str) -> ArchivedTopic:
    """What an archive has of topics: a batch, behind which a stream can begin at the exact offsets.

    Arguments and errors are those of `read_topic`.
    """
    if not hasattr(spark, "_jvm"):
        raise NsqSparkError(
            "the checkpoint of an archive is read through Java, and Spark Connect has no Java here; run this where "
            "Spark's driver is"
        )
    settings = _settings(options)
    folder = archive.rstrip("/")
    done = _last_commit(FileSystem(spark), folder)
    rows = _archived_rows(spark, folder, settings.topics, done)
    if HEADERS in settings.columns:
        rows = _opened(rows)
    archived = {place: position for place, position in done.positions.items() if place.topic in settings.topics}
    return ArchivedTopic(rows, json.dumps(_starting_offsets(archived, settings)))


def _settings(options: Mapping[str, str]) -> SourceSettings:
    settings = SourceSettings.of(options, Use.BATCH)
    given = {name.lower(): name for name in options}
    for name in ("topicPattern", "startingOffsets", "endingOffsets", "columns"):
        if name.lower() in given:
            raise OptionError(
                f'option "{name}" has no meaning with an archive: name topics, choose rows by timestamp, date and '
                "hour, and select columns"
            )
    if settings.mode is Mode.CHANNEL:
        raise OptionError('option "mode": a channel does not go on where an archive ends; only journals do')
    return settings


class _Commit(NamedTuple):
    """The last batch that is in an archive as a whole."""

    query: str
    batch: int
    """-1: none yet."""
    positions: Positions
    """The first message that is not archived, of each journal."""

    def has(self, path: str, *, folder: str) -> bool:
        """Whether all of a file counts. OptionError if it is none of the archive's."""
        by = WrittenBy.of(path.rpartition("/")[2])
        if by is None or by.query != self.query:
            raise OptionError(
                f"{folder} has files that do not go with its {CHECKPOINT}, such as {path}: whether they repeat "
                "messages cannot be told; move them away, or query the folder as plain Parquet"
            )
        return by.last_batch <= self.batch


def _last_commit(files: FileSystem, folder: str) -> _Commit:
    checkpoint = f"{folder}/{CHECKPOINT}/{FILES_SINK}"
    metadata = files.read_text(f"{checkpoint}/metadata")
    if metadata is None:
        raise OptionError(f"{folder} is no archive: `emberq archive` would have left {checkpoint}")
    query = str(json.loads(metadata)["id"]).replace("-", "")[:QUERY_DIGITS]
    names = [path.rpartition("/")[2] for path in files.matching(f"{checkpoint}/commits/*")]
    batch = max((int(name) for name in names if name.isdigit()), default=-1)
    offsets = files.read_text(f"{checkpoint}/offsets/{batch}") if batch >= 0 else None
    positions: Positions = {}
    for document in source_offsets(offsets or ""):
        if "spool" in document:
            raise OptionError(
                f"{folder} was consumed from a channel, so it does not tell where journals go on; query it by itself"
            )
        positions |= from_document(document)
    return _Commit(query, batch, positions)


def _archived_rows(spark: SparkSession, folder: str, topics: Sequence[str], done: _Commit) -> DataFrame:
    """The files of all batches that are done, and no others."""
    files = FileSystem(spark)
    roots = [root for topic in topics for root in files.matching(f"{folder}/topic={topic}")]
    if not roots:
        return _as_messages(spark.createDataFrame([], STORED_COLUMNS))
    for _ in range(MAX_LOOKS):
        reader = spark.read.schema(STORED_COLUMNS).option("basePath", folder)
        rows = reader.option("ignoreMissingFiles", "false").parquet(*roots)  # whatever the session says
        listed = {_path_within(file): file for file in rows.inputFiles()}
        counted = _counted(folder, listed, done)
        if counted is not None:
            break
    else:
        raise NsqSparkError(f"the files of {folder} do not stop changing; try again when they are merged")
    for path in listed.keys() - counted:
        rows = rows.where(~_is_of_file(path))
    return _as_messages(rows)


def _is_of_file(path: str) -> Column:
    """The condition for the rows of a file. Full paths will not do: Spark escapes them in one place, not in another."""
    topic, date, hour, name = path.split("/")
    return (
        (F.col("_metadata.file_name") == name)
        & (F.col("topic") == topic.partition("=")[2])
        & (F.col("date") == F.lit(date.partition("=")[2]).cast("date"))
        & (F.col("hour") == int(hour.partition("=")[2]))
    )


def _as_messages(stored: DataFrame) -> DataFrame:
    columns = (*COLUMNS, "date", "hour")
    return stored.selectExpr("*", "CAST(NULL AS INT) AS attempts").select(*columns)


def _opened(messages: DataFrame) -> DataFrame:
    """With the columns that `includeHeaders` gives. Files have messages as they were published."""

    def parts(bodies: pa.Array) -> pa.Array:
        headers, alone = opened(bodies)
        return pa.StructArray.from_arrays([alone, headers], [BODY, HEADERS])

    taken_apart = F.arrow_udf(parts, schema_of((BODY, HEADERS)))  # type: ignore[attr-defined]  # no stub has it
    others = [column for column in messages.columns if column not in (BODY, "date", "hour")]
    return messages.withColumn(BODY, taken_apart(BODY)).select(*others, f"{BODY}.*", "date", "hour")


def _path_within(file: str) -> str:
    """The path of a file in the archive: topic, date, hour and name."""
    return "/".join(unquote(urlsplit(file).path).split("/")[-4:])


def _counted(folder: str, listed: Mapping[str, str], done: _Commit) -> set[str] | None:
    """Of the files that Spark has listed, those to be read; None if they are not the same any more.

    Only `compact` changes what was written before, and only on file systems of this machine.
    """
    found = {path for path in listed if done.has(path, folder=folder)}
    first = next(iter(listed.values()), "")
    if urlsplit(first).scheme != "file":
        return found
    root = Path(unquote(urlsplit(first).path)).parents[3]
    merges = superseded_files(root)
    topics = {path.partition("/")[0] for path in listed}
    again = {str(path.relative_to(root)) for topic in topics for path in (root / topic).rglob("*.parquet")}
    if found != {path for path in again if done.has(path, folder=folder)}:
        return None
    return found - {path for merged, replaced in merges.items() if merged in found for path in replaced}


def _starting_offsets(archived: Positions, settings: SourceSettings) -> dict[str, Any]:
    """Where to begin in each journal, for startingOffsets. What is in neither is lost, and told as such.

    These may be used much later. So they say that journals which are not there now go on where the archive ends, too,
    and that any other is read from its first message on: if retention has removed that by then, it is a loss.
    """
    with closing(JournalSurvey(settings)) as survey:
        journals = survey.first_look()
        gone = survey.gone(archived, journals)
    step = next_step(archived, journals, max_rows=0, gone=gone, reader="the archive")
    known = {position.journal for position in archived.values()}
    losses = step.losses + [
        f"{place}: the messages up to offset {journal.first_offset - 1} were removed by retention before they were "
        "archived"
        for place, journal in journals.items()
        if journal.uuid not in known and journal.first_offset
    ]
    if losses:
        settings.report_loss("; ".join(losses))
    document = to_document(step.end)
    for place in step.end.keys() - journals.keys():
        _log.warning("%s cannot be asked: of it only what is archived is read", place)
        document[place.nsqd][place.topic]["optional"] = True
    return document | {ANY_NSQD: dict.fromkeys(settings.topics, 0)}


def _published_in(times: TimeRange, *, has_folders: bool = False) -> Column:
    """The condition for rows; with folders it names them, too, so that Spark lists no others."""
    condition = F.lit(True)
    hour = F.struct("date", "hour")
    if times.start_ns is not None:
        condition &= F.col("timestamp") >= F.timestamp_micros(F.lit(-(-times.start_ns // 1000)))
        if has_folders:
            condition &= hour >= _folder_of(times.start_ns)
    if times.end_ns is not None:
        condition &= F.col("timestamp") < F.timestamp_micros(F.lit(-(-times.end_ns // 1000)))
        if has_folders:
            condition &= hour <= _folder_of(times.end_ns)
    return condition


def _folder_of(time_ns: int) -> Column:
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return F.struct(F.lit(moment.date()).alias("date"), F.lit(moment.hour).alias("hour"))
