"""Who gets the next message, and how that depends on what happened before."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.tools.host_pool import EpsilonGreedy, LiveHosts, ResponseTimes, RoundRobin, make_pool

HOSTS = ("a", "b", "c")


def picks(pool: RoundRobin | LiveHosts | EpsilonGreedy, count: int) -> str:
    return "".join(pool.pick() for _ in range(count))


def test_round_robin_takes_turns_whatever_happens() -> None:
    pool = RoundRobin(HOSTS)
    pool.failed("b")
    pool.succeeded("a", elapsed_ns=1)
    assert picks(pool, 6) == "abcabc"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("round-robin", RoundRobin),
        ("hostpool", LiveHosts),
        ("epsilon-greedy", EpsilonGreedy),
        ("whatever", RoundRobin),
    ],
)
def test_a_mode_names_a_kind_of_pool(mode: str, kind: type) -> None:
    assert isinstance(make_pool(mode, HOSTS, clock=ManualClock()), kind)


def test_a_host_that_failed_is_left_out_for_30_seconds_and_then_tried_once() -> None:
    clock = ManualClock()
    pool = LiveHosts(HOSTS, clock=clock)
    pool.failed("b")
    assert picks(pool, 4) == "acac"
    clock.advance(seconds=29.9)
    assert picks(pool, 4) == "acac"
    clock.advance(seconds=0.1)
    assert picks(pool, 5) == "abcac"


def test_each_failed_trial_doubles_the_time_up_to_15_minutes() -> None:
    clock = ManualClock()
    pool = LiveHosts(HOSTS, clock=clock)
    pool.failed("b")
    for pause_s in (30, 60, 120, 240, 480, 900, 900):
        clock.advance(seconds=pause_s - 1)
        assert "b" not in picks(pool, 6)
        clock.advance(seconds=1)
        assert picks(pool, 6).count("b") == 1
        pool.failed("b")


def test_a_trial_that_succeeds_brings_a_host_back() -> None:
    clock = ManualClock()
    pool = LiveHosts(HOSTS, clock=clock)
    pool.failed("b")
    clock.advance(seconds=30)
    assert "b" in picks(pool, 3)
    pool.succeeded("b", elapsed_ns=1)
    assert Counter(picks(pool, 6)) == {"a": 2, "b": 2, "c": 2}


def test_when_all_are_dead_all_are_tried() -> None:
    pool = LiveHosts(HOSTS, clock=ManualClock())
    for host in HOSTS:
        pool.failed(host)
    assert Counter(picks(pool, 6)) == {"a": 2, "b": 2, "c": 2}


def test_recent_response_times_weigh_more_than_old_ones() -> None:
    clock = ManualClock()
    times = ResponseTimes()
    times.add(100, now_ns=clock.monotonic_ns())
    clock.advance(seconds=150)
    times.add(10, now_ns=clock.monotonic_ns())
    assert times.weighted_mean_ns(now_ns=clock.monotonic_ns()) == pytest.approx((60 * 100 + 120 * 10) / 180)


def test_response_times_are_forgotten_after_5_minutes() -> None:
    clock = ManualClock()
    times = ResponseTimes()
    times.add(100, now_ns=clock.monotonic_ns())
    clock.advance(seconds=301)
    assert times.weighted_mean_ns(now_ns=clock.monotonic_ns()) is None


def test_fast_hosts_get_more_in_proportion_to_their_speed() -> None:
    clock = ManualClock()
    pool = EpsilonGreedy(HOSTS, clock=clock, random=random.Random(7).random)
    for host, elapsed_ms in (("a", 10), ("b", 20), ("c", 70)):
        pool.succeeded(host, elapsed_ns=elapsed_ms * NS_PER_MS)
    picked = Counter(picks(pool, 7000))
    assert picked["a"] > 1.6 * picked["b"] > 4 * picked["c"] > 0


def test_exploring_becomes_rarer_but_never_ends() -> None:
    drawn: list[float] = []

    def always_explore() -> float:
        drawn.append(0.0)
        return 0.0

    pool = EpsilonGreedy(HOSTS, clock=ManualClock(), random=always_explore)
    assert picks(pool, 60) == "abc" * 20
    assert len(drawn) == 60


def test_a_dead_host_is_not_drawn_however_fast_it_was() -> None:
    clock = ManualClock()
    pool = EpsilonGreedy(("a", "b"), clock=clock, random=lambda: 0.999)
    pool.succeeded("a", elapsed_ns=10_000_000)
    pool.succeeded("b", elapsed_ns=1)
    assert pool.pick() == "b"
    pool.failed("b")
    assert picks(pool, 3) == "aaa"


def test_without_any_measurement_hosts_take_turns() -> None:
    pool = EpsilonGreedy(HOSTS, clock=ManualClock(), random=lambda: 0.999)
    assert picks(pool, 4) == "abca"
