"""Work in portions: as large as it may be, no faster than a throttle lets it go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from emberq.tools.throttle import Throttle

_T = TypeVar("_T")


async def paced(items: Sequence[_T], *, throttle: Throttle | None, max_size: int) -> AsyncIterator[Sequence[_T]]:
    """The items in order, up to `max_size` of them at a time; the throttle decides when, and how many it lets through.

    A slow rate so makes small portions, and the flow stays even.
    """
    start = 0
    while start < len(items):
        wanted = min(max_size, len(items) - start)
        count = wanted if throttle is None else throttle.take(wanted)
        if count:
            yield items[start : start + count]
            start += count
        elif throttle is not None:
            await asyncio.sleep(throttle.wait_s)
