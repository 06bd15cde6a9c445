"""The spool: what is stored stays until nobody needs it, and is known again."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from emberq.spark import channel_spool
from emberq.spark.channel_frames import keys
from emberq.spark.channel_spool import Spool, read_segment
from emberq.spark.error import OptionError
from emberq.spark.journal_offset import Place
from tests.spark.message_frames import HERE, array, frame, messages


class Wall:
    """A clock on the wall that is moved by hand."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def numbers(spool: Spool) -> list[int]:
    return [segment.first for segment in spool.segments]


def known(spool: Spool, *wanted: int, origin: Place = HERE) -> list[int]:
    """Which of these messages are known to be stored."""
    key_of = {number: keys(array(frame(number)))[0].as_py() for number in wanted}
    found = spool.known_keys(messages(*wanted, origin=origin))
    return [number for number, key in key_of.items() if key in found]


def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append([messages(1, 2), messages(7, origin=Place("n:4150", "u"))])
        spool.append([messages(3)])
        uuid = spool.uuid
    with Spool(tmp_path) as spool:
        assert (spool.uuid, spool.next_number) == (uuid, 2)
        assert [segment.row_count for segment in spool.segments] == [3, 1]
        first, second = read_segment(spool.segments[0].path)
        assert (first.origin, first.frames.to_pylist()) == (HERE, [frame(1), frame(2)])
        assert (second.origin.topic, second.frames.to_pylist()) == ("u", [frame(7)])


def test_a_segment_that_was_not_completed_is_none(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        spool.append([messages(1)])
    (tmp_path / "000000000001-1.new").write_bytes(b"half")
    with Spool(tmp_path) as spool:
        assert numbers(spool) == [0]
        spool.append([messages(2)])
        assert numbers(spool) == [0, 1]


def test_a_second_receiver_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_spool, "LOCK_TIMEOUT_S", 0.0)
    with Spool(tmp_path), pytest.raises(OptionError, match='option "spool": another query receives'):
        Spool(tmp_path).open()
    with Spool(tmp_path):
        pass


def test_committed_segments_are_known_for_as_long_as_their_finishing_may_not_be(tmp_path: Path) -> None:
    wall = Wall()
    with Spool(tmp_path, window_s=60, wall_s=wall) as spool:
        for number in range(1, 5):
            spool.append([messages(number)])
            wall.now_s += 40
            spool.prune(before=number)
        assert numbers(spool) == []
        assert known(spool, 1, 2, 3, 4) == [3, 4]  # 1 and 2 are more than a minute older than 4
        wall.now_s += 100_000
        spool.prune(before=4)
        assert known(spool, 3, 4) == [3, 4]  # a receiver that stands still forgets nothing
        spool.append([messages(5)])
        spool.prune(before=4)
        assert numbers(spool) == [4]  # is not committed
        assert known(spool, 3, 4, 5) == [5]


def test_what_was_stored_before_a_connection_is_known_for_good(tmp_path: Path) -> None:
    wall = Wall()
    with Spool(tmp_path, window_s=60, wall_s=wall) as spool:
        spool.append([messages(1)])
        spool.put_in_doubt()
        spool.prune(before=1)
        for number in range(2, 6):
            wall.now_s += 100
            spool.append([messages(number)])
            spool.prune(before=number)
        assert known(spool, 1, 2, 3, 4, 5) == [1, 2, 5]  # 2 may have been on its way to the disk just then
    with Spool(tmp_path, window_s=60, wall_s=wall) as spool:
        wall.now_s += 100
        spool.append([messages(6)])
        spool.prune(before=6)
        assert known(spool, 1, 2, 5, 6) == [1, 2, 5, 6]  # another run is another connection


def test_too_many_keys_are_forgotten_oldest_first(tmp_path: Path) -> None:
    with Spool(tmp_path, max_keys=4) as spool:
        for number in range(5):
            spool.append([messages(2 * number, 2 * number + 1)])
            spool.put_in_doubt()
            spool.prune(before=number + 1)
        assert spool.key_count == 4
        assert known(spool, *range(10)) == [6, 7, 8, 9]


def test_no_number_comes_twice(tmp_path: Path) -> None:
    with Spool(tmp_path, window_s=0, max_keys=0) as spool:
        for number in range(2):
            spool.append([messages(number)])
        spool.prune(before=99)
        assert spool.first_number == spool.next_number == 2
    with Spool(tmp_path) as spool:
        assert (spool.first_number, spool.next_number) == (2, 2)


def test_a_segment_whose_keys_were_stored_but_that_was_not_removed_is_removed_later(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        for number in range(3):
            spool.append([messages(number)])
        left_over = spool.segments[1].path
        content = left_over.read_bytes()
        spool.prune(before=2)
        left_over.write_bytes(content)
    with Spool(tmp_path) as spool:
        assert numbers(spool) == [2]
        assert not left_over.exists()


def test_messages_are_known_by_topic_nsqd_time_and_id(tmp_path: Path) -> None:
    elsewhere = Place("other:4150", "t")
    with Spool(tmp_path) as spool:
        spool.append([messages(1, 2)])
        spool.append([messages(3, origin=elsewhere)])
        for _ in range(2):
            assert known(spool, 1, 3, 9) == [1]
            assert known(spool, 3, origin=elsewhere) == [3]
            assert known(spool, 1, origin=Place("n:4150", "u")) == []
            spool.prune(before=2)
        assert spool.newest_ns(HERE) == 2
        assert spool.newest_ns(Place("n:4150", "u")) == -1


def test_storing_and_looking_up_go_on_while_committed_segments_go(tmp_path: Path) -> None:
    with Spool(tmp_path, window_s=0) as spool:

        def commit() -> None:
            while spool.next_number < 20:
                spool.prune(before=spool.next_number)

        committing = threading.Thread(target=commit)
        committing.start()
        for number in range(20):
            spool.append([messages(number)])
            assert known(spool, number) == [number]
        committing.join()
        spool.prune(before=20)
        assert spool.first_number == spool.next_number == 20


def test_the_files_of_a_spool_are_those_that_its_description_shows(tmp_path: Path) -> None:
    """Written here with Arrow alone: spools outlive the edition that made them."""
    key = keys(array(frame(1)))[0].as_py()
    for name, column, value, time_ns in (
        ("000000000000-000000000006-1.keys", "key", key, "1"),
        ("000000000007-1.arrow", "frame", frame(2), "2"),
    ):
        schema = pa.schema([pa.field(column, pa.binary(), nullable=False)])
        metadata = {"topic": HERE.topic, "nsqd": HERE.nsqd, "first_ns": time_ns, "last_ns": time_ns}
        with pa.ipc.new_file(tmp_path / name, schema) as writer:
            writer.write_batch(pa.record_batch([[value]], schema=schema), custom_metadata=metadata)
    (tmp_path / "spool.json").write_text('{"spool": "0b5f6a52-0000-4000-8000-000000000001"}')
    with Spool(tmp_path) as spool:
        assert (spool.uuid, spool.first_number, spool.next_number) == ("0b5f6a52-0000-4000-8000-000000000001", 7, 8)
        assert (spool.key_count, spool.newest_ns(HERE)) == (1, 2)
        assert known(spool, 1, 2, 3) == [1, 2]
        assert [each.frames.to_pylist() for each in read_segment(spool.segments[0].path)] == [[frame(2)]]
        spool.append([messages(3)])
    assert (tmp_path / "000000000008-1.arrow").exists()
