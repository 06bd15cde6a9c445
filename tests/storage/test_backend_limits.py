"""Which batches a queue refuses."""

from __future__ import annotations

import pytest

from emberq.storage.backend import DiskLimits
from tests.storage.rig import batch

LIMITS = DiskLimits(min_record_bytes=3, max_record_bytes=6)


@pytest.mark.parametrize("sizes", [[3], [6], [4, 4, 4], [3, 6, 5], [6, 3]])
def test_records_within_the_limits_are_fine(sizes: list[int]) -> None:
    assert LIMITS.refused_size(batch(*(b"x" * size for size in sizes)).ends) is None


@pytest.mark.parametrize(("sizes", "refused"), [([2], 2), ([7, 7], 7), ([3, 4, 2], 2), ([3, 7, 4], 7), ([0, 3], 0)])
def test_a_record_outside_the_limits_is_found(sizes: list[int], refused: int) -> None:
    assert LIMITS.refused_size(batch(*(b"x" * size for size in sizes)).ends) == refused
