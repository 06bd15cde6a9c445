"""Alerts: when they begin and end, and who is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberq.admin.absence import Absences
from emberq.admin.alert import MAX_MARKS, AlertKey, Alerts, findings
from emberq.admin.history import History
from emberq.admin.history_store import KeptKind, Marks
from emberq.admin.rule import Rule, RuleFile, RuleSet
from emberq.admin.view import Look
from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.cluster.survey import Survey
from tests.admin.test_webhook import RULES, Alarmed, Receiver
from tests.support.cluster_rig import NODE, channel_entry, seen, topic_entry
from tests.support.waiting import wait_until


class Told:
    """A webhook that remembers."""

    def __init__(self) -> None:
        self.has_url = False
        self.on_told: Callable[[Iterable[AlertKey]], None] = lambda _keys: None
        self.changes: list[tuple[str, str, str]] = []

    def is_waiting(self, _key: AlertKey) -> bool:
        return False

    def tell(self, alerts: Any, *, firing_count: int) -> None:
        self.firing_count = firing_count
        for alert in alerts:
            subject = alert["node"] or f"{alert['topic']} / {alert['channel']}"
            self.changes.append((alert["rule"], subject, alert["state"]))

    def taken(self) -> list[tuple[str, str, str]]:
        changes, self.changes = self.changes, []
        return changes


class Judged:
    """A look every ten seconds, held against rules."""

    def __init__(self, *rules: dict[str, Any], store: Any = None, told: Told | None = None) -> None:
        self.clock = ManualClock()
        self.file = RuleFile("")
        self.file.current = RuleSet(rules=tuple(Rule.parse({"name": each["when"], **each}) for each in rules))
        self.told = told or Told()
        self.marks = Marks()
        webhook: Any = self.told
        self.alerts = Alerts(self.file, self.marks, webhook, clock=self.clock, store=store)
        self.history = History(interval_ns=10 * NS_PER_SECOND, duration_ns=600 * NS_PER_SECOND)
        self.absences = Absences()
        self.survey: Survey | None = None
        self._now_s = 1000

    def at(self, *, unanswered: tuple[str, ...] = (), health: str = "OK", **nodes: Any) -> list[tuple[str, str, str]]:
        """What the webhook is told of a look."""
        self._now_s += 10
        self.clock.advance(seconds=10)
        survey = seen(before=self.survey, at_s=self._now_s, **nodes)
        survey.producers += tuple(replace(NODE, broadcast_address=name) for name in unanswered)
        for node, figures in list(survey.nodes.items()):
            survey.nodes[node] = replace(figures, health=health)
        self.survey = survey
        taken_ns = self._now_s * NS_PER_SECOND
        look = Look(survey, taken_ns=taken_ns, absences=self.absences.update(survey, taken_ns))
        self.history.record(look, now_ns=self.clock.monotonic_ns())
        self.alerts.take(findings(self.file.current.rules, look, self.history), look)
        return self.told.taken()


def topic(depth: int = 0, *, name: str = "t", count: int = 0, **channel: Any) -> list[dict[str, Any]]:
    return [topic_entry(name, channel_entry("c", depth=depth, message_count=count, **channel), message_count=count)]


def test_an_alert_fires_when_it_has_held_for_long_enough_and_is_resolved_when_it_holds_no_more() -> None:
    judged = Judged({"when": "depth", "above": 100, "for": "20s"})
    assert judged.at(a=topic(100)) == []
    assert judged.at(a=topic(101)) == []
    assert judged.alerts.document()["alerts"][0]["state"] == "pending"
    assert judged.alerts.summary() == {"alerts": [], "alert_count": 0, "silenced_count": 0}
    assert judged.at(a=topic(300)) == []
    assert judged.at(a=topic(400)) == [("depth", "t / c", "firing")]
    (alert,) = judged.alerts.summary()["alerts"]
    assert alert == {
        "rule": "depth",
        "topic": "t",
        "channel": "c",
        "node": "",
        "state": "firing",
        "severity": "warning",
        "value": 400,
        "above": 100,
        "since": 1020.0,
        "until": None,
        "text": "400 messages wait",
    }
    assert judged.at(a=topic(500)) == []  # told once
    assert judged.at(a=topic(3)) == [("depth", "t / c", "resolved")]
    assert judged.alerts.document()["alerts"] == []
    (resolved,) = judged.alerts.document()["resolved"]
    assert (resolved["since"], resolved["until"]) == (1020.0, 1060.0)
    marks = [(mark["time"], mark["kind"], mark["text"], mark["state"]) for mark in judged.marks.document("t", "c")]
    assert marks == [
        (1040.0, "alert", "depth: 400 messages wait", "firing"),
        (1060.0, "alert", "depth: resolved", "resolved"),
    ]


def test_what_holds_for_too_short_a_time_is_no_alert() -> None:
    judged = Judged({"when": "depth", "for": "15s"})
    assert [judged.at(a=topic(depth)) for depth in (5, 5, 0, 5, 5, 0)] == [[]] * 6


def test_every_condition_of_channels() -> None:
    kinds = ("age", "no_consumers", "stuck", "growing", "dead_letters", "requeued", "paused")
    judged = Judged(*({"when": kind, **({"above": "15s"} if kind == "age" else {})} for kind in kinds))
    judged.at(a=topic(0, client_count=1))
    assert judged.at(a=topic(50, count=50, client_count=1)) == [
        ("stuck", "t / c", "firing"),
        ("growing", "t / c", "firing"),
    ]
    assert judged.at(a=topic(50, count=50, client_count=1))[0] == ("age", "t / c", "firing")
    texts = {each["rule"]: each["text"] for each in judged.alerts.document()["alerts"]}
    assert texts["age"] == "the oldest message has waited for 20s"
    assert texts["stuck"] == "50 messages wait, and consumers finish none"
    judged = Judged(*({"when": kind} for kind in kinds if kind != "age"))
    judged.at(a=topic(5))
    told = judged.at(a=topic(5, count=20, dead_letter_count=10, requeue_count=40, paused=True))
    assert told == [(kind, "t / c", "firing") for kind in ("dead_letters", "requeued", "paused")]
    assert {each["rule"]: each["value"] for each in judged.alerts.document()["alerts"]} == {
        "no_consumers": 5,
        "dead_letters": 1.0,
        "requeued": 4.0,
        "paused": 5,
    }


def test_nodes_that_are_silent_gone_or_not_well() -> None:
    judged = Judged({"when": "node_silent"}, {"when": "node_gone", "node": "b*"}, {"when": "node_unhealthy"})
    judged.at(a=topic(), b=topic(7))
    assert judged.at(a=topic(), unanswered=("b",)) == [("node_silent", "b:4151", "firing")]
    assert judged.at(a=topic(), health="NOK - the disk is full") == [
        ("node_gone", "b:4151", "firing"),
        ("node_unhealthy", "a:4151", "firing"),
        ("node_silent", "b:4151", "resolved"),
    ]
    texts = [each["text"] for each in judged.alerts.document()["alerts"]]
    assert texts == ["it is gone, with 7 messages", "it is not well: the disk is full"]
    judged.absences.dismiss("b:4151")
    assert sorted(judged.at(a=topic())) == [
        ("node_gone", "b:4151", "resolved"),
        ("node_unhealthy", "a:4151", "resolved"),
    ]


def test_a_silent_node_ends_no_alert_of_what_it_has() -> None:
    judged = Judged({"when": "depth", "above": 10})
    assert judged.at(a=topic(), b=topic(50)) == [("depth", "t / c", "firing")]
    assert judged.at(a=topic(), unanswered=("b",)) == []
    assert judged.alerts.summary()["alert_count"] == 1
    assert judged.at(a=topic(), b=topic(50)) == []
    assert judged.at(a=topic(), b=topic(5)) == [("depth", "t / c", "resolved")]


def test_alerts_of_a_rule_that_was_taken_away_are_resolved() -> None:
    judged = Judged({"when": "depth"})
    assert judged.at(a=topic(5)) == [("depth", "t / c", "firing")]
    judged.file.current = RuleSet(rules=())
    assert judged.at(a=topic(5)) == [("depth", "t / c", "resolved")]


def test_many_at_once_are_bounded_and_the_gravest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.admin.alert.MAX_ALERTS", 40)
    judged = Judged({"when": "depth"}, {"when": "node_unhealthy", "severity": "critical"})
    topics = [each for number in range(50) for each in topic(5, name=f"t{number:02}")]
    assert len(judged.at(a=topics, health="NOK - full")) == 40
    document = judged.alerts.document()
    assert (document["left_off"], document["alerts"][0]["rule"]) == (11, "node_unhealthy")
    marks = judged.marks.document()
    assert len(marks) == MAX_MARKS + 1
    assert "20 more alerts" in {mark["text"] for mark in marks}
    assert judged.alerts.counts() == {("depth", "warning"): 39, ("node_unhealthy", "critical"): 1}


class KeptTexts:
    """A store that keeps alerts and silences in memory."""

    def __init__(self) -> None:
        self._kept: dict[KeptKind, list[str]] = {}

    def keep(self, kind: KeptKind, texts: list[str]) -> None:
        self._kept[kind] = texts

    async def kept(self, kind: KeptKind) -> list[str]:
        return ["{}", *self._kept.get(kind, [])]  # the first of which another version has left


async def test_a_node_that_was_gone_stays_so_over_a_restart() -> None:
    store = KeptTexts()
    before = Judged({"when": "node_gone"}, store=store)
    before.at(a=topic(), b=topic(7))
    assert before.at(a=topic()) == [("node_gone", "b:4151", "firing")]
    after = Judged({"when": "node_gone"}, store=store)
    await after.alerts.load()
    after.absences.recall(after.alerts.gone_nodes())
    assert [after.at(a=topic()) for _ in range(3)] == [[], [], []]
    (alert,) = after.alerts.document()["alerts"]
    assert (alert["node"], alert["since"], alert["text"]) == ("b:4151", 1020.0, "it is gone")
    assert after.at(a=topic(), b=topic()) == [("node_gone", "b:4151", "resolved")]


async def test_an_age_of_which_only_a_part_is_known_ends_no_alert() -> None:
    store = KeptTexts()
    rule = {"when": "age", "above": "15s"}
    before = Judged(rule, store=store)
    before.at(a=topic(0))
    before.at(a=topic(50, count=50))
    assert before.at(a=topic(50, count=50)) == [("age", "t / c", "firing")]
    after = Judged(rule, store=store)
    await after.alerts.load()
    assert [after.at(a=topic(50, count=50)) for _ in range(3)] == [[], [], []]  # the history began anew
    assert after.at(a=topic(0, count=50)) == [("age", "t / c", "resolved")]


# In a running nsqadmin


def test_the_first_page_the_page_of_alerts_and_the_charts_tell_what_is_wrong(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with Alarmed(alert_rules_file=str(rules)) as alarmed, alarmed.admin.events("view=topics") as events:
        assert events.next()[1]["alert_count"] == 0
        alarmed.set_depths(a=5)
        alarmed.advance(seconds=2)
        topics = events.next()[1]
        assert (topics["alert_count"], topics["alerts"][0]["text"]) == (1, "5 messages wait")
        told = alarmed.admin.get("/api/alerts").json()
        assert [each["rule"] for each in told["alerts"]] == ["Deep"]
        assert alarmed.admin.get("/api/marks?topic=t").json()["marks"][0]["kind"] == "alert"
        changed = {"rules": [{"name": "Other", "when": "depth", "above": 100}]}
        shown = alarmed.admin.get("/api/rules").json()
        assert alarmed.admin.put("/api/rules", changed | {"version": "?"}).status == 409
        assert alarmed.admin.put("/api/rules", changed | {"version": shown["version"]}).json()["rules"] == [
            {"name": "Other", "when": "depth", "above": 100, "for": "0s", "severity": "warning"}
        ]
        assert alarmed.admin.get("/api/alerts").json()["alerts"] == []  # by the new rules nothing is wrong
        assert 'name = "Other"' in rules.read_text()
        refused = alarmed.admin.put("/api/rules", {"rules": [{"name": "x"}]})
        assert (refused.status, refused.json()["message"][:14]) == (400, "INVALID_RULES:")
        assert "nsqd_channel_depth) > 100" in alarmed.admin.get("/api/rules/prometheus").text


def told_of(receiver: Receiver) -> list[tuple[str, str]]:
    """What the webhook has been told so far: of which channel or node, and in which state."""
    alerts = [alert for message in receiver.messages for alert in message["alerts"]]
    return [(alert["channel"] or alert["node"], alert["state"]) for alert in alerts]


def test_alerts_go_on_over_a_restart(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with Receiver() as receiver:
        options: dict[str, Any] = {
            "alert_rules_file": str(rules),
            "alert_webhook_url": receiver.url,
            "history_path": str(tmp_path / "history"),
            "history_duration_ns": 600 * NS_PER_SECOND,
        }
        with Alarmed(**options) as alarmed:
            alarmed.wait_until_idle()
            alarmed.set_depths(a=5, b=7)
            alarmed.advance(seconds=10)
            wait_until(lambda: told_of(receiver) == [("a", "firing"), ("b", "firing")])
            receiver.status = 503
            alarmed.set_depths(a=5, b=7, c=9)
            alarmed.advance(seconds=10)
            wait_until(lambda: alarmed.results()["failed"] == 1)  # nobody knows of `c` yet
        receiver.status = 200
        receiver.received.clear()
        with Alarmed(**options) as alarmed:
            wait_until(lambda: told_of(receiver) == [("c", "firing")])
            alarmed.wait_until_idle()  # a first look has no rates, so it ends nothing
            alarmed.set_depths(a=5, c=9)
            alarmed.advance(seconds=10)
            wait_until(lambda: told_of(receiver) == [("c", "firing"), ("b", "resolved")])
            shown = alarmed.admin.get("/api/alerts").json()
            assert [(each["channel"], each["since"]) for each in shown["alerts"]] == [
                ("a", 1_700_000_010.0),
                ("c", 1_700_000_020.0),
            ]
            assert [each["channel"] for each in shown["resolved"]] == ["b"]
