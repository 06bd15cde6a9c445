"""How a consumer shares its max_in_flight out among its connections."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.client.backoff import Backoff, BackoffAction, MessageOutcome
from emberq.client.rdy import RdyChange, RdyTable, Share, fair_counts

TICK_S = 5
TURN_S = 30
IDLE_S = 10


class Rig:
    """A table with a clock that is moved by hand."""

    def __init__(self, limit: int, *, connection_count: int = 0) -> None:
        self.clock = ManualClock()
        self.table = RdyTable(limit, clock=self.clock, idle_ns=IDLE_S * NS_PER_SECOND, turn_ns=TURN_S * NS_PER_SECOND)
        self.shares = [self.join() for _ in range(connection_count)]

    def join(self, *, cap: int = 2500) -> Share:
        self.clock.advance(ms=1)
        return self.table.join(cap=cap)[0]

    def tick(self, *, busy: list[Share] | None = None) -> list[RdyChange]:
        """Let a tick's time pass in which only `busy` brought messages."""
        self.clock.advance(seconds=TICK_S)
        for share in busy or []:
            share.received(1, now_ns=self.clock.monotonic_ns())
        return self.table.tick()

    @property
    def counts(self) -> list[int]:
        return [share.rdy for share in self.shares]


def test_one_connection_gets_everything() -> None:
    assert Rig(5, connection_count=1).counts == [5]


def test_a_new_connection_is_made_room_for_before_it_gets_its_share() -> None:
    rig = Rig(6, connection_count=1)
    newcomer, changes = rig.table.join(cap=2500)
    assert changes == [RdyChange(rig.shares[0], 3), RdyChange(newcomer, 3)]


def test_the_remainder_is_shared() -> None:
    assert sorted(Rig(7, connection_count=3).counts) == [2, 2, 3]


def test_the_remainder_moves_to_the_busy_connection() -> None:
    rig = Rig(7, connection_count=3)
    for share in rig.shares:
        rig.tick(busy=[share])
        assert share.rdy == 3


def test_the_remainder_stays_where_it_is_while_all_are_equally_busy() -> None:
    rig = Rig(7, connection_count=3)
    assert rig.tick(busy=rig.shares) == []


def test_what_a_server_does_not_allow_goes_to_the_others() -> None:
    rig = Rig(100)
    rig.shares = [rig.join(cap=10), rig.join(), rig.join()]
    assert rig.counts == [10, 45, 45]


def test_a_connection_that_leaves_frees_its_share_at_once() -> None:
    rig = Rig(6, connection_count=2)
    assert rig.table.leave(rig.shares[0]) == [RdyChange(rig.shares[1], 6)]


def test_with_too_little_for_all_the_first_ones_keep_what_they_have() -> None:
    assert Rig(2, connection_count=4).counts == [1, 1, 0, 0]


def test_an_idle_connection_gives_up_its_turn() -> None:
    rig = Rig(1, connection_count=2)
    assert rig.tick() == []
    assert rig.tick() == [RdyChange(rig.shares[0], 0), RdyChange(rig.shares[1], 1)]


def test_a_busy_connection_keeps_its_turn_until_it_is_over() -> None:
    rig = Rig(1, connection_count=2)
    for _ in range(TURN_S // TICK_S - 1):
        assert rig.tick(busy=[rig.shares[0]]) == []
    rig.tick(busy=[rig.shares[0]])
    assert rig.counts == [0, 1]


def test_silence_costs_a_turn_before_length_does() -> None:
    rig = Rig(2, connection_count=3)
    first, second, third = rig.shares
    for _ in range(IDLE_S // TICK_S):
        rig.tick(busy=[first])
    assert (first.rdy, second.rdy, third.rdy) == (1, 0, 1)


@pytest.mark.conformance(268)
def test_a_limit_of_zero_stops_all_and_a_new_limit_starts_them_again() -> None:
    rig = Rig(5, connection_count=1)
    assert [change.rdy for change in rig.table.set_limit(0)] == [0]
    assert [change.rdy for change in rig.table.set_limit(5)] == [5]


def test_an_unchanged_value_is_not_sent_again() -> None:
    assert Rig(5, connection_count=2).table.set_limit(5) == []


def test_probes_in_backoff_go_to_one_connection_after_the_other() -> None:
    rig = Rig(9, connection_count=3)
    probed = []
    for _ in range(3):
        rig.table.set_limit(0)
        rig.clock.advance(seconds=1)
        probed += [change.share for change in rig.table.set_limit(1)]
    assert probed == rig.shares


def test_every_turn_is_as_long_as_the_first() -> None:
    rig = Rig(1, connection_count=2)
    for holder in (0, 1, 0, 1):
        for _ in range(TURN_S // TICK_S - 1):
            assert rig.tick(busy=rig.shares) == []
            assert rig.shares[holder].rdy == 1
        rig.tick(busy=rig.shares)
        assert rig.shares[holder].rdy == 0


def test_a_turn_that_is_over_begins_again_when_too_few_are_waiting() -> None:
    rig = Rig(2, connection_count=3)
    for _ in range(TURN_S // TICK_S):
        rig.tick(busy=rig.shares)
    assert rig.counts == [0, 1, 1]
    for _ in range(TURN_S // TICK_S - 1):
        assert rig.tick(busy=rig.shares) == []


def test_a_newcomer_that_brings_messages_gets_the_remainder_from_those_that_bring_none() -> None:
    rig = Rig(5, connection_count=2)
    rig.tick(busy=rig.shares)
    newcomer = rig.join()
    assert newcomer.rdy == 1
    rig.tick(busy=[newcomer])
    assert newcomer.rdy == 2


@pytest.mark.parametrize(("is_busy", "turn_s"), [(False, 10), (True, 30)])
def test_a_turn_is_ten_seconds_of_silence_or_thirty_of_messages_unless_said_otherwise(
    is_busy: bool, turn_s: int
) -> None:
    clock = ManualClock()
    table = RdyTable(1, clock=clock)
    first, _ = table.join(cap=1)
    second, _ = table.join(cap=1)
    for _ in range(turn_s):
        assert table.tick() == []
        clock.advance(seconds=1)
        if is_busy:
            first.received(1, now_ns=clock.monotonic_ns())
    assert table.tick() == [RdyChange(first, 0), RdyChange(second, 1)]


@given(limit=st.integers(0, 200), caps=st.lists(st.integers(1, 60), max_size=30))
def test_fair_counts_use_all_that_can_be_used_and_nothing_more(limit: int, caps: list[int]) -> None:
    counts = fair_counts(limit, caps)
    assert sum(counts) == min(limit, sum(caps))
    assert all(0 <= count <= cap for count, cap in zip(counts, caps, strict=True))


@given(limit=st.integers(0, 200), caps=st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_nobody_has_two_more_than_one_who_could_have_more(limit: int, caps: list[int]) -> None:
    counts = fair_counts(limit, caps)
    unfilled = [count for count, cap in zip(counts, caps, strict=True) if count < cap]
    assert not unfilled or max(counts) <= min(unfilled) + 1


@given(limit=st.integers(1, 8), connection_count=st.integers(1, 20), data=st.data())
def test_no_connection_starves(limit: int, connection_count: int, data: st.DataObject) -> None:
    rig = Rig(limit, connection_count=connection_count)
    served = {index for index, count in enumerate(rig.counts) if count}
    rounds = math.ceil(connection_count / limit)
    for _ in range((rounds + 1) * TURN_S // TICK_S):
        rig.tick(busy=data.draw(st.lists(st.sampled_from(rig.shares), unique_by=id, max_size=connection_count)))
        served |= {index for index, count in enumerate(rig.counts) if count}
    assert served == set(range(connection_count))


class AnyHistory(RuleBasedStateMachine):
    """Connections come and go, limits change, time passes; the commands are replayed as a server would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(5)
        self.sent: dict[Share, int] = {}

    def replay(self, changes: list[RdyChange]) -> None:
        for share, count in changes:
            assert self.sent[share] != count, "an unchanged value was sent"
            assert count <= share.cap
            self.sent[share] = count
            if count > 0:
                assert sum(self.sent.values()) <= self.rig.table.limit

    @rule(cap=st.integers(1, 20))
    def join(self, cap: int) -> None:
        share, changes = self.rig.table.join(cap=cap)
        self.sent[share] = 0
        self.replay(changes)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.sent:
            share = data.draw(st.sampled_from(list(self.sent)))
            del self.sent[share]
            self.replay(self.rig.table.leave(share))

    @rule(limit=st.integers(0, 30))
    def set_limit(self, limit: int) -> None:
        changes = self.rig.table.set_limit(limit)
        lowered = [change for change in changes if change.rdy < self.sent[change.share]]
        assert changes[: len(lowered)] == lowered
        self.sent |= dict(lowered)
        self.replay(changes[len(lowered) :])

    @rule(data=st.data())
    def tick(self, data: st.DataObject) -> None:
        busy = data.draw(st.lists(st.sampled_from(list(self.sent)), unique_by=id)) if self.sent else []
        self.replay(self.rig.tick(busy=busy))

    @invariant()
    def all_that_can_be_asked_for_is_asked_for(self) -> None:
        assert sum(self.sent.values()) == min(self.rig.table.limit, sum(share.cap for share in self.sent))
        assert self.rig.table.total == sum(self.sent.values())

    @invariant()
    def with_enough_for_all_everybody_has_some(self) -> None:
        if self.rig.table.limit >= len(self.sent):
            assert all(self.sent.values())


TestAnyHistory = AnyHistory.TestCase


class Failures(RuleBasedStateMachine):
    """Handlers fail and succeed while connections come and go: what a consumer asks for, as its servers see it."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(0)
        self.backoff = Backoff()
        self.max_in_flight = 0
        self.change_max_in_flight(7)

    def apply_allowance(self) -> None:
        self.rig.table.set_limit(self.backoff.allowance(self.max_in_flight))

    @rule(outcome=st.sampled_from(MessageOutcome))
    def answer(self, outcome: MessageOutcome) -> None:
        if self.backoff.record(outcome).action is not BackoffAction.NOTHING:
            self.apply_allowance()

    @rule()
    def resume(self) -> None:
        self.backoff.resume()
        self.apply_allowance()

    @rule(count=st.integers(0, 12))
    def change_max_in_flight(self, count: int) -> None:
        self.max_in_flight = count
        self.apply_allowance()

    @rule(cap=st.integers(1, 9))
    def connect(self, cap: int) -> None:
        self.rig.shares.append(self.rig.join(cap=cap))

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        if self.rig.shares:
            share = data.draw(st.sampled_from(self.rig.shares))
            self.rig.shares.remove(share)
            self.rig.table.leave(share)

    @rule()
    def let_time_pass(self) -> None:
        self.rig.tick()

    @invariant()
    def no_more_is_asked_for_than_allowed(self) -> None:
        assert sum(self.rig.counts) <= self.max_in_flight
        assert not (self.backoff.is_paused and any(self.rig.counts))
        assert not (self.backoff.level and sum(self.rig.counts) > 1)

    @invariant()
    def outside_a_pause_something_is_asked_for(self) -> None:
        if self.rig.shares and self.max_in_flight and not self.backoff.is_paused:
            assert any(self.rig.counts)

    def teardown(self) -> None:
        """However it went: with time and successes everything is asked for again."""
        self.resume()
        for _ in range(self.backoff.level):
            self.answer(MessageOutcome.SUCCESS)
            self.resume()
        capacity = sum(share.cap for share in self.rig.shares)
        assert sum(self.rig.counts) == min(self.max_in_flight, capacity)


TestFailures = Failures.TestCase
