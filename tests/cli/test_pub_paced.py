"""Portions of work: their sizes, and the time between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.task import RateLimiter
from emberq.tools.to_nsq import paced


async def portions(items: Sequence[int], *, throttle: RateLimiter | None, max_size: int) -> list[list[int]]:
    return [list(portion) async for portion in paced(items, throttle=throttle, max_size=max_size)]


async def test_without_a_throttle_portions_are_as_large_as_allowed() -> None:
    assert await portions(range(7), throttle=None, max_size=3) == [[0, 1, 2], [3, 4, 5], [6]]


async def test_nothing_makes_no_portion() -> None:
    assert await portions([], throttle=None, max_size=3) == []


async def test_a_slow_rate_makes_small_portions_in_the_time_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    began_ns = clock.monotonic_ns()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds=seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    taken = await portions(range(5), throttle=RateLimiter(2, clock=clock), max_size=100)
    assert [item for portion in taken for item in portion] == [0, 1, 2, 3, 4]
    assert max(map(len, taken)) == 1
    assert (clock.monotonic_ns() - began_ns) / NS_PER_SECOND == pytest.approx(2.0)
