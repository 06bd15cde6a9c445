"""Merging Parquet files: rows stay, whatever happens."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emberq.spark.pipeline import files
from emberq.spark.pipeline.files import DataFile, compact, data_files, finish_interrupted

QUERY = "5f0c2a91"


def write(folder: Path, batch: int, rows: list[int], *, part: int = 0, hour: str = "06", query: str = QUERY) -> Path:
    """A file as a batch leaves it."""
    partition = folder / "date=2026-11-15" / f"hour={hour}"
    partition.mkdir(parents=True, exist_ok=True)
    path = partition / f"{query}-{batch:010d}-{part:04d}.parquet"
    pq.write_table(pa.table({"n": rows}), path)
    return path


def rows_in(folder: Path) -> list[int]:
    return sorted(n for file in data_files(folder) for n in pq.read_table(file.path, columns=["n"])["n"].to_pylist())


def test_files_of_an_hour_become_one_and_the_newest_batch_stays(tmp_path: Path) -> None:
    for batch in range(5):
        write(tmp_path, batch, [batch * 10, batch * 10 + 1])
    done = compact(tmp_path)
    assert (done.files_before, done.files_after) == (5, 2)
    assert rows_in(tmp_path) == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]
    assert [file.path.name for file in data_files(tmp_path)] == [
        f"compact-{QUERY}-0000000000-0000000003-0000.parquet",
        f"{QUERY}-0000000004-0000.parquet",
    ]


def test_hours_queries_and_columns_are_kept_apart(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, batch, [batch], hour="06")
        write(tmp_path, batch, [batch + 10], hour="07")
        write(tmp_path, batch, [batch + 20], query="00000000")
    pq.write_table(pa.table({"n": [99], "more": ["x"]}), write(tmp_path, 2, [], part=1))
    write(tmp_path, 3, [3])
    compact(tmp_path)
    assert rows_in(tmp_path) == [0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 99]
    assert not [file for file in data_files(tmp_path) if len({*pq.read_schema(file.path).names}) > 2]


def test_files_grow_no_larger_than_the_target(tmp_path: Path) -> None:
    size_bytes = write(tmp_path, 0, [0]).stat().st_size
    for batch in range(1, 7):
        write(tmp_path, batch, [batch])
    assert compact(tmp_path, target_bytes=2 * size_bytes).files_after == 4


def test_what_is_compact_is_left_alone_and_can_grow(tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, batch, [batch])
    compact(tmp_path)
    before = [file.path.name for file in data_files(tmp_path)]
    compact(tmp_path)
    assert [file.path.name for file in data_files(tmp_path)] == before
    write(tmp_path, 3, [3])
    compact(tmp_path)
    assert rows_in(tmp_path) == [0, 1, 2, 3]


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(12))
def test_a_compaction_that_is_interrupted_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    for batch in range(4):
        write(tmp_path, batch, [batch])
    left = steps

    def count_down(*_: object, **__: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash

    sync, unlink = os.fsync, Path.unlink

    def counted_unlink(self: Path, missing_ok: bool = False) -> None:
        count_down()
        unlink(self, missing_ok=missing_ok)

    def counted_sync(fd: int) -> None:
        count_down()
        sync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", counted_sync)
        patched.setattr(Path, "unlink", counted_unlink)
        with suppress(Crash):
            compact(tmp_path)
    finish_interrupted(tmp_path)
    assert rows_in(tmp_path) == [0, 1, 2, 3]
    assert not list((tmp_path / "_compaction").glob("*"))
    assert compact(tmp_path).files_after == 2


def test_a_note_says_what_is_to_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(3):
        write(tmp_path, batch, [batch])
    monkeypatch.setattr(files, "_carry_out", lambda folder, note: None)
    compact(tmp_path)
    (note,) = (tmp_path / "_compaction").glob("*.json")
    document = json.loads(note.read_text())
    assert document["add"]["to"] == f"date=2026-11-15/hour=06/compact-{QUERY}-0000000000-0000000001-0000.parquet"
    assert len(document["remove"]) == 2


def test_a_reader_beside_a_compaction_leaves_what_it_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(4):
        write(tmp_path, batch, [batch])
    merged = files._write_merged

    def write_beside_a_reader(target: Path, group: Sequence[DataFile]) -> None:
        merged(target, group)
        finish_interrupted(tmp_path)  # as `emberq replay --archive` does before it reads

    monkeypatch.setattr(files, "_write_merged", write_beside_a_reader)
    assert compact(tmp_path).files_after == 2
    assert rows_in(tmp_path) == [0, 1, 2, 3]
