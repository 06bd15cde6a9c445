"""When a run is over."""

from __future__ import annotations

import time

from bench.clients.quota import Quota


def test_a_run_is_over_after_its_last_message_and_says_so_once() -> None:
    told: list[int] = []
    quota = Quota(3, on_over=lambda: told.append(quota.count))
    quota.add(10)
    assert not quota.is_over
    quota.add(20, 2)
    assert quota.is_over
    assert (quota.count, quota.body_bytes) == (3, 30)
    assert told == [3]


def test_a_run_is_over_when_its_time_is_and_what_comes_later_does_not_count() -> None:
    told: list[int] = []
    quota = Quota(100, on_over=lambda: told.append(quota.count))
    quota.add(10)
    quota.end()
    ended_s = quota.ended_s
    quota.add(10)
    quota.end()
    assert (quota.count, told, quota.ended_s) == (1, [1], ended_s)
    assert 0 < ended_s <= time.monotonic()
