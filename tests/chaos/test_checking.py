"""The judge itself, on small histories written by hand: each promise broken once, and each excuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.checking import STUCK_S, Checker, Disturbances, Promise, Verdict
from tests.chaos.history import DAMAGED, Event, History, Kind, body_of, key_of

JOURNALED = Promise(node="n", numbered=frozenset({1}))
CLASSIC = Promise(node="n", is_journaled=False, survives_kill=False, again_s=2.0)


def history(text: str) -> Iterator[Event]:
    """Events from lines such as `1.0 deliver 1.7 0a 1`: time, kind, message, details; all of topic t and channel c."""
    for line in filter(None, map(str.strip, text.splitlines())):
        time_s, word, *rest = line.split(maxsplit=3)
        kind = Kind(word)
        if kind in (Kind.KILL, Kind.START, Kind.FAULT, Kind.HEALED, Kind.MEMORY):
            yield Event(float(time_s), kind, "n", detail=rest[0] if rest else "-")
        elif kind is Kind.LEFT:
            yield Event(float(time_s), kind, "t", "c", detail=rest[0])
        else:
            key, detail = [*rest, "-", "-"][:2]
            yield Event(float(time_s), kind, "t", "c", key, detail)


def judge(text: str, promise: Promise = JOURNALED) -> Verdict:
    return Checker({"t": promise}, {"t": ["c"]}).check(history(text))


def kinds(text: str, promise: Promise = JOURNALED) -> list[str]:
    return [finding.kind for finding in judge(text, promise).findings]


PUBLISHED = """
    1.0 publish 1.0
    1.1 ok 1.0
"""
WHOLE = f"""{PUBLISHED}
    1.2 deliver 1.0 0a 1
    1.3 fin 1.0
"""


def test_a_message_that_was_confirmed_delivered_and_finished_is_fine() -> None:
    verdict = judge(WHOLE)
    assert verdict.is_clean
    assert verdict.counts["confirmed"] == verdict.counts["finished"] == 1


def test_confirmed_and_never_delivered_is_lost() -> None:
    assert kinds(PUBLISHED) == ["lost"]


def test_it_is_stuck_if_the_channel_has_something_left() -> None:
    assert kinds(f"{PUBLISHED}\n 9 left 1") == ["stuck"]


def test_not_confirmed_and_not_delivered_is_fine() -> None:
    assert kinds("1 publish 1.0\n 2 refused 1.0") == []


def test_delivered_and_never_finished_is_lost_although_it_was_not_confirmed() -> None:
    assert kinds("1 publish 1.0\n 2 refused 1.0\n 3 deliver 1.0 0a 1") == ["lost"]


def test_a_journaled_message_survives_a_kill() -> None:
    assert kinds(f"{PUBLISHED}\n 1.15 kill") == ["lost"]


def test_a_classic_message_may_be_lost_with_a_kill_that_came_later() -> None:
    verdict = judge(f"{PUBLISHED}\n 1.15 kill", CLASSIC)
    assert verdict.is_clean
    assert verdict.counts["lost to a kill"] == 1


def test_a_classic_message_that_was_published_after_the_kill_must_arrive() -> None:
    assert kinds(f"0.5 kill\n{PUBLISHED}", CLASSIC) == ["lost"]


def test_what_a_killed_nsqd_had_sent_may_be_handled_until_the_next_one_is_there() -> None:
    requeued = f"{PUBLISHED}\n 1.2 kill\n 1.21 deliver 1.0 0a 1\n 1.22 requeue 1.0\n"
    assert kinds(f"{requeued} 1.5 start", CLASSIC) == []
    assert kinds(requeued.replace("1.21", "1.61") + " 1.5 start", CLASSIC) == ["lost"]


def test_what_was_never_published_is_invented() -> None:
    assert kinds("1 deliver 1.0 0a 1\n 2 fin 1.0") == ["invented"]


def test_a_body_that_was_changed_is_invented() -> None:
    body = body_of("t", "1.0")
    assert key_of("t", body) == "1.0"
    assert key_of("t", body[:-1] + b"!") == key_of("t", body[:-1]) == key_of("u", body) == key_of("t", b"x") == DAMAGED
    assert kinds(f"{WHOLE}\n 2 deliver {DAMAGED} 0b 1") == ["invented"]


def test_a_repeat_shortly_after_a_kill_is_within_the_bound() -> None:
    verdict = judge(f"{WHOLE}\n 2.0 kill\n 2.5 deliver 1.0 0a 2\n 2.6 fin 1.0")
    assert verdict.is_clean
    assert verdict.counts["again"] == 1
    assert verdict.oldest_again_s == pytest.approx(0.7)


def test_a_repeat_of_what_was_finished_long_before_the_kill_is_beyond_the_bound() -> None:
    assert kinds(f"{WHOLE}\n 9.0 kill\n 9.5 deliver 1.0 0a 2\n 9.6 fin 1.0") == ["doubled"]


def test_a_repeat_without_a_kill_is_beyond_the_bound() -> None:
    assert kinds(f"{WHOLE}\n 1.5 deliver 1.0 0a 2\n 1.6 fin 1.0") == ["doubled"]


def test_a_classic_message_may_come_as_often_as_it_was_handed_out_before_a_kill() -> None:
    requeued = f"{PUBLISHED}\n 1.2 deliver 1.0 0a 1\n 1.3 requeue 1.0\n 1.4 kill\n 2 deliver 1.0 0a 1\n 2.1 fin 1.0"
    twice = f"{requeued}\n 2.2 deliver 1.0 0a 2\n 2.3 fin 1.0"
    assert kinds(twice, CLASSIC) == []
    assert kinds(twice, JOURNALED) == ["doubled"]
    assert kinds(twice.replace("1.4 kill", "0.4 kill"), CLASSIC) == ["doubled"]


def test_a_kill_after_the_repeat_excuses_nothing() -> None:
    assert kinds(f"{WHOLE}\n 1.5 deliver 1.0 0a 2\n 1.6 fin 1.0\n 1.7 kill") == ["doubled"]


def test_a_fin_may_be_lost_with_its_connection() -> None:
    assert kinds(f"{WHOLE}\n 1.4 disconnect\n 1.5 deliver 1.0 0a 2\n 1.6 fin 1.0") == []
    assert kinds(f"{WHOLE}\n 8.4 disconnect\n 8.5 deliver 1.0 0a 2\n 8.6 fin 1.0") == ["doubled"]


def test_the_time_of_a_fault_does_not_count() -> None:
    frozen = f"{WHOLE}\n 1.4 fault frozen\n 9.0 healed frozen"
    assert kinds(f"{frozen}\n 9.1 kill\n 9.5 deliver 1.0 0a 2\n 9.6 fin 1.0") == []
    assert kinds(f"{frozen}\n 15 kill\n 16 deliver 1.0 0a 2\n 17 fin 1.0") == ["doubled"]


def test_the_time_in_which_the_run_itself_stood_still_does_not_count() -> None:
    lost = "\n 9.1 disconnect\n 9.5 deliver 1.0 0a 2\n 9.6 fin 1.0"
    assert kinds(f"1.0 memory\n{WHOLE}\n 9.0 memory{lost}") == []
    looks = "\n".join(f"{second} memory" for second in range(2, 10))
    assert kinds(f"1.0 memory\n{WHOLE}\n{looks}{lost}") == ["doubled"]


def test_work_that_was_done_too_late_may_come_again() -> None:
    late = f"{PUBLISHED}\n 1.2 deliver 1.0 0a 1\n 1.3 late 1.0"
    assert kinds(late) == []
    assert kinds(f"{late}\n 9 deliver 1.0 0a 2\n 9.1 fin 1.0") == []


def test_a_message_that_is_given_up_needs_a_letter() -> None:
    given_up = f"{PUBLISHED}\n 1.2 deliver 1.0 0a 1\n 1.3 requeue 1.0\n 1.4 deliver 1.0 0a 2\n 1.5 requeue 1.0"
    assert kinds(given_up) == ["lost"]
    assert kinds(f"{given_up}\n 1.6 letter 1.0") == []


def test_a_requeued_message_has_to_come_again() -> None:
    requeued = f"{PUBLISHED}\n 1.2 deliver 1.0 0a 1\n 1.3 requeue 1.0"
    assert kinds(requeued) == ["lost"]
    assert kinds(f"{requeued}\n 1.5 deliver 1.0 0a 2\n 1.6 fin 1.0") == []


def test_a_delivery_that_comes_far_too_late_was_stuck() -> None:
    late_s = 1.1 + STUCK_S + 1
    late = f"{PUBLISHED}\n{late_s} deliver 1.0 0a 1\n{late_s} fin 1.0"
    assert kinds(late) == ["stuck"]
    assert kinds(f"{PUBLISHED}\n 2 fault frozen\n 9 healed frozen\n{late_s} deliver 1.0 0a 1\n{late_s} fin 1.0") == []
    assert kinds(late, Promise(node="n", is_backlog=True)) == []


def test_a_journal_that_lacks_a_confirmed_message_has_lost_it() -> None:
    assert kinds(f"{WHOLE}\n 2 publish 1.1\n 9 stored 1.1 0b") == ["lost"]


def test_a_numbered_message_is_stored_once() -> None:
    assert kinds(f"{WHOLE}\n 9 stored 1.0 0a\n 9 stored 1.0 0b") == ["doubled"]


def test_a_message_without_a_number_may_be_stored_twice() -> None:
    plain = WHOLE.replace("1.0 ", "2.0 ").replace("1.0\n", "2.0\n")
    assert kinds(f"{plain}\n 9 stored 2.0 0a\n 9 stored 2.0 0b") == []


def test_the_journal_keeps_the_order_of_a_numbered_publisher() -> None:
    published = "1 publish 1.0\n 1 publish 1.1\n 1 publish 2.0\n 1 publish 2.1"
    assert kinds(f"{published}\n 9 stored 1.0 0a\n 9 stored 2.1 0b\n 9 stored 2.0 0c\n 9 stored 1.1 0d") == []
    assert kinds(f"{published}\n 9 stored 1.1 0a\n 9 stored 1.0 0b") == ["out of order"]


def test_an_offset_belongs_to_one_message_for_ever() -> None:
    second = "2.0 publish 1.1\n 2.1 ok 1.1\n 2.2 deliver 1.1 0a 1\n 2.3 fin 1.1"
    assert kinds(f"{WHOLE}\n {second}") == ["reissued"]


def test_faults_that_overlap_are_counted_once() -> None:
    disturbances = Disturbances()
    disturbances.begin("a", 1.0)
    disturbances.begin("b", 2.0)
    disturbances.end("a", 3.0)
    disturbances.end("b", 4.0)
    disturbances.begin("c", 8.0)
    assert disturbances.quiet_s(0.0, 10.0) == pytest.approx(5.0)
    assert disturbances.quiet_s(2.5, 3.5) == pytest.approx(0.0)
    assert disturbances.quiet_s(3.5, 5.0) == pytest.approx(1.0)
    assert disturbances.quiet_s(5.0, 7.0) == pytest.approx(2.0)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    with History(tmp_path / "history.tsv") as written:
        written.note(Kind.PUBLISH, "t", key="1.0")
        written.note(Kind.DELIVER, "t", "c", "1.0", "0a 1")
        events = list(written.events())
    assert [event[1:] for event in events] == [
        (Kind.PUBLISH, "t", "-", "1.0", "-"),
        (Kind.DELIVER, "t", "c", "1.0", "0a 1"),
    ]
    assert events[0].time_s <= events[1].time_s
