"""The spool: what is stored stays until nobody needs it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from emberq.spark import channel_spool
from emberq.spark.channel_spool import Spool, read_segment
from emberq.spark.error import OptionError
from emberq.spark.schema import ARROW_SCHEMA


def rows(*ids: str, nsqd: str = "n:4150", topic: str = "t") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"topic": topic, "nsqd": nsqd, "id": each, "attempts": 1, "body": each.encode()} for each in ids],
        schema=ARROW_SCHEMA,
    )


class Wall:
    """A clock on the wall that is moved by hand."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def numbers(spool: Spool) -> list[int]:
    return [segment.number for segment in spool.segments]


def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(rows("a", "b"))
        spool.append(rows("c"))
        uuid = spool.uuid
    with Spool(tmp_path) as spool:
        assert (spool.uuid, spool.next_number) == (uuid, 2)
        assert [segment.row_count for segment in spool.segments] == [2, 1]
        assert read_segment(spool.segments[0].path).column("id").to_pylist() == ["a", "b"]


def test_a_segment_that_was_not_completed_is_none(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(rows("a"))
    (tmp_path / "000000000001-1.new").write_bytes(b"half")
    with Spool(tmp_path) as spool:
        assert numbers(spool) == [0]
        spool.append(rows("b"))
        assert numbers(spool) == [0, 1]


def test_a_second_receiver_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_spool, "LOCK_TIMEOUT_S", 0.0)
    with Spool(tmp_path), pytest.raises(OptionError, match='option "spool": another query receives'):
        Spool(tmp_path).open()
    with Spool(tmp_path):
        pass


def test_committed_segments_stay_as_long_as_their_messages_may_come_again(tmp_path: Path) -> None:
    wall = Wall()
    with Spool(tmp_path, window_s=60, wall_s=wall) as spool:
        for number in range(4):
            spool.append(rows(str(number)))
            wall.now_s += 40
        spool.prune(before=4)
        assert numbers(spool) == [2, 3]  # 0 and 1 are more than a minute older than 3
        wall.now_s += 100_000
        spool.prune(before=4)
        assert numbers(spool) == [2, 3]  # a receiver that stands still forgets nothing
        spool.append(rows("4"))
        spool.prune(before=3)
        assert numbers(spool) == [3, 4]  # 3 is not committed


def test_the_newest_segment_stays_so_that_no_number_comes_twice(tmp_path: Path) -> None:
    wall = Wall()
    with Spool(tmp_path, window_s=0, wall_s=wall) as spool:
        for _ in range(2):
            spool.append(rows("x"))
            wall.now_s += 1
        spool.prune(before=99)
    with Spool(tmp_path) as spool:
        assert (numbers(spool), spool.next_number) == ([1], 2)


def test_messages_are_known_by_topic_nsqd_and_id(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append(rows("a", "b"))
        spool.append(rows("c", nsqd="other:4150"))
        assert spool.known_ids(["a", "c", "z"], topic="t", nsqd="n:4150") == {"a"}
        assert spool.known_ids(["c"], topic="t", nsqd="other:4150") == {"c"}
        assert not spool.known_ids(["a"], topic="u", nsqd="n:4150")
