"""Which lines allocate."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from pathlib import Path

import pytest

from emberq.http import debug
from emberq.http.debug import record_allocations

HERE = Path(__file__).name


async def record_while_growing(*, duration_s: float) -> str:
    """Record, and hold on to some memory that was asked for meanwhile."""
    recording = asyncio.create_task(record_allocations(duration_s))
    await asyncio.sleep(0)
    kept = [bytearray(10_000) for _ in range(50)]
    report = await recording
    assert len(kept) == 50
    return report


async def test_a_line_that_holds_on_to_memory_is_found() -> None:
    report = await record_while_growing(duration_s=0.02)
    line = next(line for line in report.splitlines() if HERE in line)
    size, blocks, where = line.split()
    assert int(size) > 500_000
    assert int(blocks) >= 100
    assert where.rpartition(":")[2].isdigit()
    assert report.startswith("resident memory ")
    assert not tracemalloc.is_tracing()


async def test_recording_ends_early_when_it_has_grown_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "MAX_RECORD_BYTES", 0)
    report = await record_while_growing(duration_s=60)
    recorded_s = re.search(r"allocated within (\d+\.\d) s", report)
    assert recorded_s is not None
    assert float(recorded_s[1]) < 60


async def test_recording_is_turned_off_when_it_is_cancelled() -> None:
    recording = asyncio.create_task(record_allocations(60))
    await asyncio.sleep(0)
    assert tracemalloc.is_tracing()
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert not tracemalloc.is_tracing()


async def test_what_was_recorded_from_outside_goes_on() -> None:
    tracemalloc.start()
    try:
        await record_while_growing(duration_s=0.001)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
