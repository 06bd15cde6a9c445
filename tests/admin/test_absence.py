"""Nodes that were there and are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from emberq.admin import absence as module
from emberq.admin.absence import Absence, Absences, Presence
from emberq.admin.history import History
from emberq.admin.view import Look, nodes_view, topic_view, topics_view
from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.stats import total_topic
from emberq.cluster.survey import Survey
from tests.support.cluster_rig import NODE, channel_entry, seen, topic_entry


def topic(name: str = "t", *, depth: int = 0, waiting: int = 0) -> list[dict[str, Any]]:
    return [topic_entry(name, channel_entry("c", depth=waiting, client_count=2), depth=depth)]


def unanswered(survey: Survey, *names: str) -> Survey:
    """The same look, with nodes that are listed and did not answer."""
    survey.producers += tuple(replace(NODE, broadcast_address=name) for name in names)
    return survey


class Looking:
    """A look every ten seconds."""

    def __init__(self) -> None:
        self.absences = Absences()
        self.history = History(interval_ns=10 * NS_PER_SECOND, duration_ns=600 * NS_PER_SECOND)
        self._now_s = 1000

    def at(self, survey: Survey) -> Look:
        self._now_s += 10
        taken_ns = self._now_s * NS_PER_SECOND
        look = Look(survey, taken_ns=taken_ns, absences=self.absences.update(survey, taken_ns))
        self.history.record(look, now_ns=taken_ns)
        return look

    @property
    def marks(self) -> list[tuple[int, str, str]]:
        return [(mark.time_ns // NS_PER_SECOND, mark.node, mark.what) for mark in self.absences.marks]


def test_a_node_that_is_listed_no_more_is_gone_with_what_it_held() -> None:
    looking = Looking()
    looking.at(seen(a=topic(), b=topic(depth=3, waiting=4)))
    (absence,) = looking.at(seen(a=topic())).absences
    assert absence.document() == {
        "node": "b:4151",
        "hostname": "host",
        "state": "gone",
        "since": 1010.0,
        "depth": 7,
        "client_count": 2,
        "topic_count": 1,
    }
    assert [absence.document(*names)["held_here"] for names in (("t",), ("t", "c"), ("u",))] == [7, 4, None]
    assert looking.marks == [(1010, "b:4151", "gone")]
    (still,) = looking.at(seen(a=topic())).absences
    assert still == absence


def test_a_node_that_is_listed_and_does_not_answer_is_silent_and_then_gone_or_back() -> None:
    looking = Looking()
    looking.at(seen(a=topic(), b=topic()))
    silent = looking.at(unanswered(seen(a=topic()), "b"))
    assert [(each.presence, each.since_ns) for each in silent.absences] == [(Presence.SILENT, 1010 * NS_PER_SECOND)]
    assert [each.presence for each in looking.at(seen(a=topic())).absences] == [Presence.GONE]
    assert looking.at(seen(a=topic(), b=topic())).absences == ()
    assert looking.marks == [(1010, "b:4151", "silent"), (1030, "b:4151", "gone"), (1040, "b:4151", "back")]


def test_a_node_that_has_never_answered_is_silent_and_may_have_anything() -> None:
    look = Looking().at(unanswered(seen(a=topic()), "b"))
    (absence,) = look.absences
    assert (absence.presence, absence.held(), absence.lacks("t")) == (Presence.SILENT, None, True)
    assert topic_view(total_topic("t", ()), look)["is_incomplete"]


def test_only_a_node_that_is_gone_can_be_dismissed() -> None:
    looking = Looking()
    looking.at(seen(a=topic(), b=topic(), c=topic()))
    looking.at(unanswered(seen(a=topic()), "c"))
    assert [looking.absences.dismiss(node) for node in ("a:4151", "b:4151", "b:4151", "c:4151")] == [
        False,
        True,
        False,
        False,
    ]
    assert [absence.producer.node for absence in looking.at(seen(a=topic())).absences] == ["c:4151"]


def test_what_a_silent_node_has_a_part_in_is_incomplete_and_has_a_gap() -> None:
    looking = Looking()
    both = seen(a=[*topic("here"), *topic("both", depth=1)], b=[*topic("both", depth=5)])
    looking.at(both)
    look = looking.at(unanswered(seen(a=[*topic("here"), *topic("both", depth=1)]), "b"))
    looking.at(both)
    lines = {line["topic_name"]: line["is_incomplete"] for line in topics_view(look)["topics"]}
    assert lines == {"here": False, "both": True}
    times = {name: [point["time"] for point in looking.history.document(name)["points"]] for name in ("", *lines)}
    assert times == {"": [1010.0, 1030.0], "both": [1010.0, 1030.0], "here": [1010.0, 1020.0, 1030.0]}


def test_a_node_that_did_not_answer_is_not_one_without_work() -> None:
    looking = Looking()
    looking.at(seen(a=topic(depth=2), b=topic(depth=3), c=topic(depth=4)))
    look = looking.at(unanswered(seen(a=topic(depth=2)), "b"))
    shown = {line["node"]: (line["state"], line["depth"]) for line in nodes_view(look.survey.producers, look)["nodes"]}
    assert shown == {"a:4151": ("present", 2), "b:4151": ("silent", None), "c:4151": ("gone", 4)}


def test_there_are_so_many_absences_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABSENT", 2)
    looking = Looking()
    looking.at(unanswered(seen(a=topic(), b=topic()), "x", "y", "z"))
    looking.at(unanswered(seen(b=topic()), "x", "y", "z"))
    absent: tuple[Absence, ...] = looking.at(unanswered(seen(b=topic()), "x", "y", "z")).absences
    assert [absence.producer.node for absence in absent] == ["y:4151", "a:4151"]


def test_a_node_that_was_told_to_go_is_no_accident() -> None:
    looking = Looking()
    looking.at(seen(a=topic(), b=topic(), c=topic(), d=topic()))
    for node in ("b:4151", "c:4151", "d:4151"):
        looking.absences.let_go(node, 1015 * NS_PER_SECOND)
    looking.absences.hold_back("c:4151")
    gone = looking.at(seen(a=topic(), d=topic())).absences  # `b` was empty: no look has seen it draining
    assert {each.producer.node: each.was_draining for each in gone} == {"b:4151": True, "c:4151": False}
    for _ in range(6):  # `d` goes on for so long that it cannot be the drain that has ended it
        looking.at(seen(a=topic(), d=topic()))
    *_, last = looking.at(seen(a=topic())).absences
    assert (last.producer.node, last.was_draining) == ("d:4151", False)
