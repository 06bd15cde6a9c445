r"""Files anywhere Spark can reach, and folders of Parquet files that are written exactly once and compacted.

**Files** (`FileSystem`) are on this machine, in HDFS or in an object store, through Hadoop's API on the driver.

**A folder of Parquet files** (`ParquetFolder`), into which the batches of a query are written, each exactly once:

    data/clicks/date=2026-11-15/hour=06/5f0c2a91-0000000042-0000.parquet
                                        |        |          which file of that batch in that partition
                                        |        batch of the query
                                        the query, by the beginning of its id, which is in its checkpoint

A batch is written to `_staging` first, then its files are moved to their names. If that is interrupted, Spark runs the
batch again when the query starts again, and files of that batch are removed first. So a batch is there once, however
often it was tried, and every file in the folder counts. No log beside it has to be read, as with Spark's own sink, and
any program that reads Parquet sees the same rows. While a batch is being moved, a reader may see some of its files and
not yet the others.

**Compaction** (`compact`) merges the small files that many small batches leave, without Spark, for folders on this
machine. Files of the same partition and the same columns become files of about `target_bytes`:

    5f0c2a91-0000000041-0000.parquet  \
    5f0c2a91-0000000042-0000.parquet   >  compact-5f0c2a91-0000000041-0000000042-0000.parquet
    5f0c2a91-0000000042-0001.parquet  /

The query may go on writing meanwhile. The files of its newest batch are left alone: that batch may have to be written
again after a crash, which removes its files by their names.

No row is lost or doubled. First the merged file is written and brought to the disk. Then a note of what is to be added
and removed goes to `_compaction`. From then on the merge counts as done, and if it is interrupted, the next compaction
finishes it from the note. Between moving the merged file in and removing the old ones, a reader may see rows twice,
unless it reads the notes (`superseded_files`). One compaction works at a time: it holds a lock on `_compaction`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from emberq.base.file import replace_file, sync_file, sync_folder

# Files anywhere.


class FileSystem:
    """Any file system that Spark knows, chosen by the path."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        java_context: Any = spark.sparkContext._jsc
        self._configuration: Any = java_context.hadoopConfiguration()

    def read_text(self, path: str) -> str | None:
        """The text of a small file; None if it does not exist."""
        system, file = self._opened(path)
        if not system.exists(file):
            return None
        stream = system.open(file)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a file, whole or not at all."""
        system, file = self._opened(path)
        being_written = self._path(f"{path}.new")
        stream = system.create(being_written, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        system.delete(file, False)
        system.rename(being_written, file)

    def remove(self, path: str) -> None:
        """Remove a file or a folder, if it exists."""
        system, file = self._opened(path)
        system.delete(file, True)

    def move(self, old: str, new: str) -> None:
        """Move a file, and create the folder it goes to."""
        system, file = self._opened(old)
        target = self._path(new)
        system.mkdirs(target.getParent())
        if not system.rename(file, target):
            raise OSError(f"{old} cannot be moved to {new}")

    def matching(self, pattern: str) -> list[str]:
        """The files whose paths match the pattern, in which `*` is any name."""
        system, glob = self._opened(pattern)
        return [str(status.getPath().toString()) for status in system.globStatus(glob) or ()]

    def files_below(self, folder: str) -> Iterator[str]:
        """The paths of all files below a folder, relative to it."""
        system, root = self._opened(folder)
        start = len(str(system.makeQualified(root).toUri().getPath())) + 1
        found = system.listFiles(root, True)
        while found.hasNext():
            yield str(found.next().getPath().toUri().getPath())[start:]

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _opened(self, path: str) -> tuple[Any, Any]:
        file = self._path(path)
        return file.getFileSystem(self._configuration), file


# A folder of Parquet files.

STAGING = "_staging"
QUERY_DIGITS = 8
BATCH_DIGITS = 10


class ParquetFolder:
    """The folder that one query writes to. Owned by the query's thread on the driver."""

    def __init__(self, path: str, *, partition_by: Sequence[str] = (), partition_by_time: str = "") -> None:
        self._path = path.rstrip("/")
        self._partition_by = list(partition_by)
        self._time_column = partition_by_time
        self._is_first_batch = True
        """Only the first batch of a run can have been tried before."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write one batch; for foreachBatch."""
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
        # Spark's default, INT96, is outdated; no other program writes it any more.
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


# Compaction.

NOTES = "_compaction"
DEFAULT_TARGET_BYTES = 128 * 1024 * 1024
ROWS_AT_A_TIME = 65_536

_NAME = re.compile(r"(compact-)?(?P<query>[0-9a-f]{8})-(?P<first>\d{10})(?(1)-(?P<last>\d{10}))-\d{4}\.parquet")
"""Only what is compacted has a last batch besides the first."""


class WrittenBy(NamedTuple):
    """Which batches of which query are in a file, as its name tells."""

    query: str
    first_batch: int
    last_batch: int

    @classmethod
    def of(cls, name: str) -> WrittenBy | None:
        """None if neither a query nor a compaction gives such a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(found["query"], int(found["first"]), int(found["last"] or found["first"]))


class DataFile(NamedTuple):
    """A file that a query or a compaction has written."""

    path: Path
    by: WrittenBy
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of files before and after a compaction."""

    files_before: int
    files_after: int


def data_files(folder: Path) -> list[DataFile]:
    """The files of a folder, by partition, and in the order in which they were written."""
    found = [
        DataFile(path, by, path.stat().st_size)
        for path in folder.rglob("*.parquet")
        if not _is_hidden(path.relative_to(folder)) and (by := WrittenBy.of(path.name)) is not None
    ]
    return sorted(found, key=lambda file: (file.path.parent, file.by.query, file.by.first_batch, file.path.name))


def compact(folder: Path, *, target_bytes: int = DEFAULT_TARGET_BYTES) -> Compacted:
    """Merge small files into files of about `target_bytes`. Waits for another compaction of the folder to end."""
    (folder / NOTES).mkdir(exist_ok=True)
    with _locked(folder / NOTES, fcntl.LOCK_EX):
        _finish_interrupted(folder)
        before = data_files(folder)
        newest: dict[str, int] = defaultdict(int)
        for file in before:
            newest[file.by.query] = max(newest[file.by.query], file.by.last_batch)
        settled = [file for file in before if file.by.last_batch < newest[file.by.query]]
        for number, group in enumerate(_groups(settled, target_bytes=target_bytes)):
            _merge(folder, group, number)
        return Compacted(len(before), len(data_files(folder)))


def finish_interrupted(folder: Path) -> None:
    """Finish interrupted compactions, as their notes say. One that is still at work is left alone."""
    with suppress(FileNotFoundError, BlockingIOError), _locked(folder / NOTES, fcntl.LOCK_EX | fcntl.LOCK_NB):
        _finish_interrupted(folder)


def superseded_files(folder: Path) -> dict[str, list[str]]:
    """Of merges that are under way: the merged file, and those that it replaces. Paths are relative to the folder."""
    found = {}
    for note in (folder / NOTES).glob("*.json"):
        with suppress(FileNotFoundError):  # the merge was done meanwhile
            document = json.loads(note.read_text())
            found[document["add"]["to"]] = document["remove"]
    return found


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    """The lock goes with the process. BlockingIOError if it is not to be waited for, and held."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, operation)
        yield
    finally:
        os.close(file)


def _finish_interrupted(folder: Path) -> None:
    for note in sorted((folder / NOTES).glob("*.json")):
        _carry_out(folder, note)
    # The rest is of merges that were interrupted before their note.
    for left_over in (*(folder / NOTES).glob("*.tmp"), *(folder / STAGING).glob("compact-*.parquet")):
        left_over.unlink()


def _groups(files: Sequence[DataFile], *, target_bytes: int) -> Iterator[list[DataFile]]:
    """Files to be merged into one: neighbours in a partition, of one query and with the same columns."""
    group: list[DataFile] = []
    size_bytes = 0
    for file in files:
        fits = size_bytes + file.size_bytes <= target_bytes
        if group and not (fits and _belong_together(group[-1], file)):
            if len(group) > 1:
                yield group
            group, size_bytes = [], 0
        group.append(file)
        size_bytes += file.size_bytes
    if len(group) > 1:
        yield group


def _belong_together(one: DataFile, other: DataFile) -> bool:
    return (
        one.path.parent == other.path.parent
        and one.by.query == other.by.query
        and bool(pq.read_schema(one.path).equals(pq.read_schema(other.path)))
    )


def _merge(folder: Path, group: Sequence[DataFile], number: int) -> None:
    by, last = group[0].by, max(file.by.last_batch for file in group)
    name = f"compact-{by.query}-{by.first_batch:010d}-{last:010d}-{number % 10_000:04d}.parquet"
    staged = folder / STAGING / name
    staged.parent.mkdir(exist_ok=True)
    _write_merged(staged, group)
    note = folder / NOTES / f"{name}.json"
    target = group[0].path.parent / name
    document = {
        "add": {"from": str(staged.relative_to(folder)), "to": str(target.relative_to(folder))},
        "remove": [str(file.path.relative_to(folder)) for file in group if file.path != target],
    }
    replace_file(note, json.dumps(document).encode())
    sync_folder(note.parent)
    _carry_out(folder, note)


def _write_merged(target: Path, group: Sequence[DataFile]) -> None:
    with pq.ParquetWriter(target, pq.read_schema(group[0].path), compression="snappy") as writer:
        for file in group:
            for rows in pq.ParquetFile(file.path).iter_batches(batch_size=ROWS_AT_A_TIME):
                writer.write_batch(rows)
    sync_file(target)


def _carry_out(folder: Path, note: Path) -> None:
    """Do what a note says. Can be repeated after any interruption: a step that was done before does nothing."""
    document = json.loads(note.read_text())
    staged, target = folder / document["add"]["from"], folder / document["add"]["to"]
    if staged.exists():
        staged.replace(target)
        sync_folder(target.parent)
    for name in document["remove"]:
        old = folder / name
        old.unlink(missing_ok=True)
        (old.parent / f".{old.name}.crc").unlink(missing_ok=True)
    sync_folder(target.parent)
    note.unlink()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)
