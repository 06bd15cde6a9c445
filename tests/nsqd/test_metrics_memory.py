"""Memory, as far as Python can tell, in the terms of /stats."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from emberq.base import metrics
from emberq.nsqd.metrics import Memory, MemoryStats, pause_usec

MIB = 1024 * 1024


@pytest.fixture
def watched() -> Iterator[Memory]:
    watch = Memory()
    watch.start()
    yield watch
    watch.stop()


def test_the_fields_are_the_keys_of_stats_in_their_order() -> None:
    assert [field.name for field in fields(MemoryStats)] == [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ]


def test_what_is_allocated_shows_in_use(watched: Memory) -> None:
    before = watched.stats()
    block = bytearray(b"x") * (64 * MIB)
    during = watched.stats()
    del block
    after = watched.stats()
    assert during.heap_in_use_bytes - before.heap_in_use_bytes > 60 * MIB
    assert after.heap_released_bytes > 60 * MIB
    assert before.heap_objects > 10_000


def test_runs_of_the_collector_are_counted_and_timed(watched: Memory) -> None:
    before = watched.stats()
    assert before.gc_pause_usec_100 == 0
    gc.collect()
    after = watched.stats()
    assert after.gc_total_runs == before.gc_total_runs + 1
    assert after.gc_pause_usec_100 == after.gc_pause_usec_99 == after.gc_pause_usec_95 > 0


def test_after_the_stop_the_collector_is_left_alone() -> None:
    callbacks = list(gc.callbacks)
    watch = Memory()
    watch.start()
    watch.stop()
    watch.stop()
    assert gc.callbacks == callbacks


@pytest.mark.parametrize(
    ("pauses_us", "percentile", "expected_us"),
    [
        ([], 95, 0),
        ([7], 95, 7),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 101)), 99, 100),  # index floor(99.5) counts from 0
        (list(range(1, 101)), 95, 96),
        (list(range(1, 11)), 95, 10),
        (list(range(1, 9)), 50, 5),
    ],
)
def test_percentiles_of_pauses_follow_the_rule_of_the_reference(
    pauses_us: list[int], percentile: int, expected_us: int
) -> None:
    assert pause_usec([pause_us * 1000 + 999 for pause_us in pauses_us], percentile=percentile) == expected_us


def test_without_proc_the_peak_stands_for_what_is_in_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metrics, "_STATUS", tmp_path / "missing")
    stats = Memory().stats()
    assert stats.heap_in_use_bytes > MIB
    assert stats.heap_released_bytes == 0


def test_a_kernel_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "status").write_bytes(b"Name:\tnsqd\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n")
    monkeypatch.setattr(metrics, "_STATUS", tmp_path / "status")
    stats = Memory().stats()
    assert (stats.heap_in_use_bytes, stats.heap_released_bytes) == (0, MIB)
