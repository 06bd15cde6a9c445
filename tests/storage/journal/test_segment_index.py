"""A sparse index: which batches get an entry, and which entry is found."""

from __future__ import annotations

from emberq.storage.journal.segment import BEFORE_ALL_TIME, BatchPlace, SparseIndex


def index_of(*batches: tuple[int, int, int], interval_bytes: int = 100) -> SparseIndex:
    """An index of batches given as (offset, position, time)."""
    index = SparseIndex(interval_bytes=interval_bytes)
    for offset, position, timestamp_ns in batches:
        index.add(offset=offset, position=position, timestamp_ns=timestamp_ns)
    return index


def test_an_empty_index_finds_nothing() -> None:
    index = index_of()
    assert index.before_offset(5) is None
    assert index.before_position(5) is None
    assert index.before_time(5) is None
    assert index.latest_ns == BEFORE_ALL_TIME


def test_one_batch_in_so_many_bytes_gets_an_entry() -> None:
    index = index_of((0, 64, 1), (5, 100, 2), (9, 163, 3), (11, 164, 4), (20, 500, 5), (30, 599, 6))
    assert list(index.positions) == [64, 164, 500]
    assert list(index.offsets) == [0, 11, 20]
    assert list(index.times) == [BEFORE_ALL_TIME, 3, 4]


def test_the_last_entry_before_is_found() -> None:
    index = index_of((0, 64, 1), (11, 164, 4), (20, 500, 5))
    assert [index.before_offset(offset) for offset in (0, 10, 11, 19, 20, 99)] == [
        *[BatchPlace(0, 64)] * 2,
        *[BatchPlace(11, 164)] * 2,
        *[BatchPlace(20, 500)] * 2,
    ]
    assert index.before_position(63) is None
    assert index.before_position(164) == BatchPlace(11, 164)
    assert index.before_position(499) == BatchPlace(11, 164)


def test_times_that_go_back_are_found_by_the_latest_so_far() -> None:
    index = index_of((0, 64, 50), (1, 164, 10), (2, 264, 60), (3, 364, 20))
    assert list(index.times) == [BEFORE_ALL_TIME, 50, 50, 60]
    assert index.before_time(50) == BatchPlace(0, 64)
    assert index.before_time(51) == BatchPlace(2, 264)
    assert index.before_time(61) == BatchPlace(3, 364)
    assert index.latest_ns == 60
