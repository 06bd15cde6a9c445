"""Which batches a queue refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emberq.nsqd.options import NsqdOptions
from emberq.storage.backend import DiskLimits
from tests.storage.rig import batch

LIMITS = DiskLimits(min_record_bytes=3, max_record_bytes=6)


def test_the_defaults_are_those_of_nsqd() -> None:
    options, limits = NsqdOptions(), DiskLimits()
    assert limits.max_bytes_per_file == options.max_bytes_per_file
    assert limits.sync_every == options.sync_every
    assert limits.sync_timeout_ns == options.sync_timeout_ns


def test_by_default_a_record_holds_a_message_of_up_to_a_mebibyte() -> None:
    smallest, largest = 26, 26 + 1024 * 1024
    assert DiskLimits().refused_size([4 + smallest]) is None
    assert DiskLimits().refused_size([4 + largest]) is None
    assert DiskLimits().refused_size([4 + smallest - 1]) == smallest - 1
    assert DiskLimits().refused_size([4 + largest + 1]) == largest + 1


@pytest.mark.parametrize("sizes", [[3], [6], [4, 4, 4], [3, 6, 5], [6, 3]])
def test_records_within_the_limits_are_fine(sizes: list[int]) -> None:
    assert LIMITS.refused_size(batch(*(b"x" * size for size in sizes)).ends) is None


@pytest.mark.parametrize(
    ("sizes", "refused"), [([2], 2), ([7, 7], 7), ([7, 3], 7), ([3, 4, 2], 2), ([3, 7, 4], 7), ([0, 3], 0)]
)
def test_a_record_outside_the_limits_is_found(sizes: list[int], refused: int) -> None:
    assert LIMITS.refused_size(batch(*(b"x" * size for size in sizes)).ends) == refused


class CountedEnds(list[int]):
    """Counts how often it is gone through."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_a_batch_that_goes_to_many_queues_is_looked_at_once() -> None:
    limits = DiskLimits(min_record_bytes=3, max_record_bytes=6)
    ends = CountedEnds(batch(b"xxx", b"xxxx").ends)
    assert limits.refused_size(ends) is None
    walks = ends.walks
    assert [limits.refused_size(ends) for _ in range(500)] == [None] * 500
    assert ends.walks == walks
    assert limits.refused_size(batch(b"xx", b"xxx").ends) == 2
    assert limits.refused_size(batch(b"xx", b"xxx").ends) == 2
