"""The lines in which ready consumers wait: whose turn it is, how large its share is, and who stands there no longer."""

from __future__ import annotations

import sys

import pytest

from emberq.broker.subscriber import Locality, ReadyLines, Subscriber
from tests.broker.rig import Rig

CONNECTION = Rig().consumer()
"""Where messages would go, if there were any."""


def waiting(lines: ReadyLines, count: int, *, rdy: int = 1, locality: Locality = Locality.GLOBAL) -> list[Subscriber]:
    """So many new subscribers, which joined one after the other."""
    subscribers = [Subscriber(CONNECTION, msg_timeout_ns=1, locality=locality) for _ in range(count)]
    for subscriber in subscribers:
        subscriber.ready_count = rdy
        lines.join(subscriber)
    return subscribers


def leave(lines: ReadyLines, subscriber: Subscriber) -> None:
    """What a channel does with a consumer that leaves it."""
    subscriber.sink = None
    lines.leave(subscriber)


def taken(lines: ReadyLines, *, depth: int = 1) -> list[Subscriber]:
    """All whose turn it is, until none is ready."""
    found = []
    while (subscriber := lines.next(depth)) is not None:
        found.append(subscriber)
    return found


def held_count(subscribers: list[Subscriber]) -> int:
    """How many of them a line holds: they have one reference more than `free`, which also has one elsewhere."""
    free = Subscriber(CONNECTION, msg_timeout_ns=1)
    *counts, free_count = [sys.getrefcount(subscriber) for subscriber in [*subscribers, free]]
    return sum(count > free_count for count in counts)


@pytest.mark.parametrize("locality", Locality)
def test_a_line_is_empty_until_a_subscriber_stands_in_it(locality: Locality) -> None:
    lines = ReadyLines()
    assert lines.is_empty is True
    assert (lines.next(5), lines.share) == (None, 0)
    waiting(lines, 1, locality=locality)
    assert lines.is_empty is False
    lines.next(5)
    assert lines.is_empty


def test_turns_come_in_the_order_of_joining_and_go_round() -> None:
    lines = ReadyLines()
    first, second, third = waiting(lines, 3)
    assert lines.next(1) is first
    lines.join(first)
    assert taken(lines) == [second, third, first]


def test_the_nearest_come_first() -> None:
    lines = ReadyLines()
    far, near, nearest = (waiting(lines, 2, locality=each) for each in reversed(Locality))
    assert taken(lines) == [*nearest, *near, *far]


def test_a_subscriber_joins_when_its_window_is_open_and_stands_there_once() -> None:
    lines = ReadyLines()
    waiting(lines, 1, rdy=0)
    assert lines.is_empty
    (subscriber,) = waiting(lines, 1, rdy=1)
    lines.join(subscriber)
    assert taken(lines) == [subscriber]


def test_a_window_that_closed_meanwhile_costs_a_subscriber_its_turn() -> None:
    lines = ReadyLines()
    first, second = waiting(lines, 2)
    first.in_flight_count = 1
    assert taken(lines) == [second]
    first.in_flight_count = 0
    lines.join(first)
    assert taken(lines) == [first]


def test_all_of_a_round_get_the_same_share_and_together_everything() -> None:
    lines = ReadyLines()
    waiting(lines, 3)
    shares = []
    for depth in (10, 6, 2):
        lines.next(depth)
        shares.append(lines.share)
    assert shares == [4, 4, 4]
    waiting(lines, 2)
    lines.next(10)
    assert lines.share == 5


def test_a_new_round_shares_out_anew() -> None:
    lines = ReadyLines()
    waiting(lines, 3)
    lines.next(9)
    lines.begin()
    lines.next(4)
    assert lines.share == 2


def test_another_line_begins_a_round_of_its_own() -> None:
    lines = ReadyLines()
    waiting(lines, 3)
    lines.next(9)
    waiting(lines, 1, locality=Locality.ZONE)
    lines.next(6)
    assert lines.share == 6
    lines.next(6)
    assert lines.share == 3


def test_who_has_left_is_passed_over() -> None:
    lines = ReadyLines()
    first, second, third, fourth = waiting(lines, 4)
    leave(lines, first)
    leave(lines, third)
    assert taken(lines) == [second, fourth]


@pytest.mark.parametrize("staying_count", [0, 1, 50])
def test_those_who_left_are_forgotten_when_they_are_most(staying_count: int) -> None:
    lines = ReadyLines()
    staying = waiting(lines, staying_count)
    for _ in range(3):  # the same again and again: what was forgotten is not counted twice
        leaving = waiting(lines, staying_count + 1)
        for index in range(staying_count):
            leave(lines, leaving[index])
        assert held_count(leaving) == len(leaving)  # going through the line for one of them would take long
        leave(lines, leaving[-1])
        assert held_count(leaving) == 0
    assert taken(lines) == staying


def test_lines_that_were_cleared_are_empty() -> None:
    lines = ReadyLines()
    for locality in Locality:
        waiting(lines, 2, locality=locality)
    lines.clear()
    assert lines.is_empty
    assert taken(lines) == []
