"""Alarms ring once, when due, in the order of their due times, however often they were moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.timers import NEVER, Alarm, Timers


def ringing(timers: Timers, log: list[str], name: str) -> Alarm:
    return timers.alarm(lambda: log.append(name))


def test_an_alarm_rings_once_at_its_due_time() -> None:
    timers, log = Timers(), list[str]()
    ringing(timers, log, "a").set(100)
    timers.run_due(99)
    assert log == []
    timers.run_due(100)
    timers.run_due(1_000)
    assert log == ["a"]


def test_alarms_ring_in_the_order_of_their_due_times() -> None:
    timers, log = Timers(), list[str]()
    for name, due_ns in (("late", 30), ("early", 10), ("middle", 20), ("middle too", 20)):
        ringing(timers, log, name).set(due_ns)
    timers.run_due(30)
    assert log == ["early", "middle", "middle too", "late"]


def test_an_alarm_that_fails_does_not_silence_the_others() -> None:
    timers, log = Timers(), list[str]()
    fault = LookupError("a fault of one")

    def fail() -> None:
        raise fault

    ringing(timers, log, "before").set(10)
    timers.alarm(fail).set(20)
    ringing(timers, log, "behind").set(30)
    with pytest.raises(ExceptionGroup) as raised:
        timers.run_due(30)
    assert (log, raised.value.exceptions) == (["before", "behind"], (fault,))
    assert timers.next_due_ns == NEVER


def test_an_alarm_moved_later_rings_only_then() -> None:
    timers, log = Timers(), list[str]()
    alarm = ringing(timers, log, "a")
    alarm.set(10)
    alarm.set(50)
    timers.run_due(49)
    assert log == []
    timers.run_due(50)
    assert log == ["a"]


def test_an_alarm_moved_nearer_rings_then_and_not_again() -> None:
    timers, log = Timers(), list[str]()
    alarm = ringing(timers, log, "a")
    alarm.set(50)
    alarm.set(10)
    timers.run_due(10)
    timers.run_due(50)
    assert log == ["a"]


def test_set_earlier_never_moves_an_alarm_later() -> None:
    timers, log = Timers(), list[str]()
    alarm = ringing(timers, log, "a")
    alarm.set_earlier(20)
    alarm.set_earlier(30)
    assert alarm.due_ns == 20
    alarm.set_earlier(10)
    assert alarm.due_ns == 10


def test_a_cancelled_alarm_stays_silent_until_it_is_set_again() -> None:
    timers, log = Timers(), list[str]()
    alarm = ringing(timers, log, "a")
    alarm.set(10)
    alarm.cancel()
    timers.run_due(20)
    assert log == []
    alarm.set(30)
    timers.run_due(30)
    assert log == ["a"]


def test_next_due_is_never_when_nothing_waits() -> None:
    timers = Timers()
    assert timers.next_due_ns == NEVER
    timers.alarm(lambda: None).set(5)
    assert timers.next_due_ns == 5
    timers.run_due(5)
    assert timers.next_due_ns == NEVER


def test_the_owner_hears_when_the_next_due_time_moves_nearer() -> None:
    timers, heard = Timers(), list[int]()
    timers.on_earlier = heard.append
    first, second = timers.alarm(lambda: None), timers.alarm(lambda: None)
    first.set(50)
    second.set(80)
    second.set(20)
    first.set(60)
    assert heard == [50, 20]


def test_an_alarm_set_for_the_past_while_ringing_waits_for_the_next_run() -> None:
    timers, log = Timers(), list[str]()

    def ring() -> None:
        log.append("a")
        alarm.set(10)

    alarm = timers.alarm(ring)
    alarm.set(10)
    timers.run_due(20)
    assert log == ["a"]
    assert timers.next_due_ns == 10
    timers.run_due(20)
    assert log == ["a", "a"]


def test_an_alarm_cancelled_by_another_that_rings_first_stays_silent() -> None:
    timers, log = Timers(), list[str]()
    victim = ringing(timers, log, "victim")
    timers.alarm(victim.cancel).set(10)
    victim.set(11)
    timers.run_due(20)
    assert log == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["set", "set_earlier"]), st.integers(0, 3), st.integers(1, 20)),
            st.tuples(st.just("cancel"), st.integers(0, 3), st.just(0)),
            st.tuples(st.just("pass"), st.just(0), st.integers(1, 10)),
        ),
        max_size=60,
    )
)
def test_alarms_behave_as_a_plain_table_of_due_times(steps: list[tuple[str, int, int]]) -> None:
    timers, rung = Timers(), list[int]()
    alarms = [timers.alarm(lambda number=number: rung.append(number)) for number in range(4)]  # type: ignore[misc]
    due = dict.fromkeys(range(4), NEVER)
    now_ns = 0
    for step, number, amount in steps:
        if step == "set":
            alarms[number].set(now_ns + amount)
            due[number] = now_ns + amount
        elif step == "set_earlier":
            alarms[number].set_earlier(now_ns + amount)
            due[number] = min(due[number], now_ns + amount)
        elif step == "cancel":
            alarms[number].cancel()
            due[number] = NEVER
        else:
            now_ns += amount
            timers.run_due(now_ns)
            expected = {number for number, due_ns in due.items() if due_ns <= now_ns}
            assert sorted(rung) == sorted(expected)
            rung.clear()
            due.update(dict.fromkeys(expected, NEVER))
        assert timers.next_due_ns <= min(due.values())


def test_an_alarm_set_near_and_far_in_turns_does_not_fill_the_heap() -> None:
    timers = Timers()
    alarm = timers.alarm(lambda: None)
    far_ns = 3600 * 10**9
    for now_ns in range(1, 2000):
        alarm.set(far_ns)
        alarm.set_earlier(now_ns)
        timers.run_due(now_ns)
    assert len(timers._heap) < 200


def test_a_later_time_is_never_announced_as_an_earlier_one() -> None:
    timers = Timers()
    announced: list[int] = []
    first, second = timers.alarm(lambda: None), timers.alarm(lambda: None)
    first.set(50)
    first.set(40)
    timers.run_due(40)
    second.set(70)
    timers.on_earlier = announced.append
    first.set(100)
    assert announced == []


def test_an_alarm_set_again_for_a_past_time_rings_once_a_call() -> None:
    timers = Timers()
    rung: list[int] = []

    def ring() -> None:
        rung.append(1)
        alarm.set(10)

    alarm = timers.alarm(ring)
    alarm.set(20)
    alarm.set(10)
    timers.run_due(20)
    assert len(rung) == 1
    timers.run_due(20)
    assert len(rung) == 2


def test_a_discarded_alarm_lets_go_of_its_callback() -> None:
    timers = Timers()
    rung: list[int] = []
    alarm = timers.alarm(lambda: rung.append(1))
    alarm.set(10)
    alarm.discard()
    timers.run_due(10)
    assert rung == []
