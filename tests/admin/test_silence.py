"""Silences: which alerts they cover, what the webhook is told and when, and who may begin and end them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberq.admin.alert import AlertKey
from emberq.admin.rule import RuleError
from emberq.admin.silence import MAX_SILENCES, Silence
from emberq.base.clock import NS_PER_SECOND
from tests.admin.test_alert import Judged, KeptTexts, Told, told_of, topic
from tests.admin.test_webhook import RULES, Alarmed, Receiver
from tests.support.admin_rig import basic, user_file
from tests.support.waiting import wait_until

HOUR = {"for": "1h", "reason": "I am on it"}
FIRING, RESOLVED = ("depth", "t / c", "firing"), ("depth", "t / c", "resolved")


def silence(**said: Any) -> Silence:
    return Silence.parse({**HOUR, **said}, user="ada", now_ns=0)


@pytest.mark.parametrize(
    ("patterns", "covered"),
    [
        ({"rule": "Deep"}, True),
        ({"rule": "deep"}, False),
        ({"rule": "*", "topic": "orders.*"}, True),
        ({"topic": "orders"}, False),
        ({"channel": "b?lling"}, True),
        ({"rule": "Deep", "topic": "orders.eu", "channel": "billing"}, True),
        ({"rule": "Deep", "channel": "archive"}, False),
        ({"node": "host*"}, False),
    ],
)
def test_a_silence_covers_what_fits_all_its_patterns(patterns: dict[str, str], *, covered: bool) -> None:
    assert silence(**patterns).covers(AlertKey("Deep", "orders.eu", "billing")) is covered


def test_a_silence_of_topics_does_not_cover_nodes() -> None:
    gone = AlertKey("Node gone", node="host-1:4151")
    assert not silence(topic="orders*").covers(gone)
    assert silence(node="host-1:*").covers(gone)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({**HOUR}, "needs one of rule, topic"),
        ({**HOUR, "topics": "orders"}, 'has no "topics"'),
        ({**HOUR, "rule": ""}, "rule must be a pattern"),
        ({**HOUR, "rule": 7}, "rule must be a string"),
        ({**HOUR, "rule": "x" * 201}, "rule must be a pattern"),
        ({"rule": "*", "reason": "why"}, "for must be a duration"),
        ({**HOUR, "rule": "*", "for": "soon"}, "for must be a duration"),
        ({**HOUR, "rule": "*", "for": "0s"}, "for must be more than 0s"),
        ({**HOUR, "rule": "*", "for": "721h"}, "at most 720h"),
        ({**HOUR, "rule": "*", "reason": " "}, "needs a reason"),
        ({**HOUR, "rule": "*", "reason": "x" * 201}, "needs a reason"),
    ],
)
def test_what_is_no_silence_is_refused_with_the_rule(said: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=why):
        Silence.parse(said, user="", now_ns=0)


# What the webhook is told


class Taking(Told):
    """A webhook that takes what it is told at once."""

    def __init__(self) -> None:
        super().__init__()
        self.has_url = True

    def tell(self, alerts: Any, *, firing_count: int) -> None:
        super().tell(alerts, firing_count=firing_count)
        self.on_told([AlertKey(each["rule"], each["topic"], each["channel"], each["node"]) for each in alerts])


class Silenced(Judged):
    """Looks every ten seconds; a silence of all alerts can be begun for some of them."""

    def __init__(self, *, store: Any = None) -> None:
        super().__init__({"when": "depth", "above": 10}, store=store, told=Taking())

    def begin(self, *, seconds: int) -> Silence:
        said = {"rule": "*", "for": f"{seconds}s", "reason": "maintenance"}
        begun = Silence.parse(said, user="ada", now_ns=self.clock.wall_ns())
        self.alerts.silences.add(begun)
        self.alerts.apply_silences()
        return begun

    def looks(self, *depths: int) -> list[list[tuple[str, str, str]]]:
        return [self.at(a=topic(depth)) for depth in depths]


def test_an_alert_that_begins_in_a_silence_is_told_when_the_silence_is_over() -> None:
    judged = Silenced()
    begun = judged.begin(seconds=25)
    assert judged.looks(50, 50) == [[], []]
    shown = judged.alerts.document()
    assert [(each["state"], each["silence"]) for each in shown["alerts"]] == [("firing", begun.id)]
    assert [(each["reason"], each["user"], each["alert_count"]) for each in shown["silences"]] == [
        ("maintenance", "ada", 1)
    ]
    assert judged.alerts.summary() == {"alerts": [], "alert_count": 0, "silenced_count": 1}
    assert judged.marks.document("t", "c")[0]["kind"] == "alert"  # the charts show it all the same
    assert judged.looks(50, 50) == [[FIRING], []]
    assert judged.told.firing_count == 1
    assert judged.alerts.document()["silences"] == []


def test_an_alert_that_begins_and_ends_in_a_silence_is_never_told() -> None:
    judged = Silenced()
    judged.begin(seconds=35)
    assert judged.looks(50, 50, 0, 0, 0) == [[]] * 5


def test_the_end_of_an_alert_that_was_told_before_is_told_when_the_silence_is_over() -> None:
    judged = Silenced()
    assert judged.looks(50) == [[FIRING]]
    judged.begin(seconds=25)
    assert judged.looks(0, 0) == [[], []]
    assert judged.looks(0, 0) == [[RESOLVED], []]


def test_an_alert_that_was_told_and_comes_again_in_a_silence_is_not_told_twice() -> None:
    judged = Silenced()
    assert judged.looks(50) == [[FIRING]]
    judged.begin(seconds=35)
    assert judged.looks(0, 50, 50, 50) == [[]] * 4  # the receiver believed all the time that it fires
    assert judged.looks(0) == [[RESOLVED]]


def test_an_alert_that_was_told_comes_again_and_ends_in_a_silence() -> None:
    judged = Silenced()
    assert judged.looks(50) == [[FIRING]]
    judged.begin(seconds=35)
    assert judged.looks(0, 50, 0) == [[]] * 3
    assert judged.looks(0) == [[RESOLVED]]


def test_a_silence_that_an_operator_ends_tells_at_once() -> None:
    judged = Silenced()
    begun, other = judged.begin(seconds=3600), judged.begin(seconds=60)
    assert judged.looks(50) == [[]]
    judged.alerts.silences.end(other)
    judged.alerts.apply_silences()
    assert judged.told.taken() == []  # the longer one still holds
    judged.alerts.silences.end(begun)
    judged.alerts.apply_silences()
    assert judged.told.taken() == [FIRING]


async def test_silences_and_what_they_withhold_outlive_a_restart() -> None:
    store = KeptTexts()
    before = Silenced(store=store)
    assert before.looks(50) == [[FIRING]]
    before.begin(seconds=60)
    assert before.looks(0, 50) == [[], []]
    after = Silenced(store=store)
    await after.alerts.load()
    assert after.looks(50, 50, 0) == [[], [], []]
    assert [each["reason"] for each in after.alerts.document()["silences"]] == ["maintenance"]
    again = Silenced(store=store)
    await again.alerts.load()
    again.clock.advance(seconds=60)
    assert again.looks(0) == [[RESOLVED]]


# In a running nsqadmin


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def options(folder: Path, receiver: Receiver) -> dict[str, Any]:
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    return {
        "alert_rules_file": str(rules),
        "alert_webhook_url": receiver.url,
        "history_path": str(folder / "history"),
        "history_duration_ns": 600 * NS_PER_SECOND,
        "audit_log_file": str(folder / "audit.log"),
    }


def test_an_operator_silences_a_channel_for_two_hours_over_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    given = options(tmp_path, receiver)
    with Alarmed(**given) as alarmed:
        alarmed.wait_until_idle()
        said = {"topic": "t", "channel": "a", "for": "2h", "reason": "I am on it"}
        begun = alarmed.admin.post("/api/silences", said).json()["silence"]
        assert (begun["rule"], begun["until"] - begun["since"]) == ("*", 7200.0)
        alarmed.set_depths(a=5, b=7)
        alarmed.advance(seconds=10)
        wait_until(lambda: told_of(receiver) == [("b", "firing")])
        topics = alarmed.admin.get("/api/view?view=topics").json()
        assert (topics["alert_count"], topics["silenced_count"]) == (1, 1)
        assert "nsqadmin_alerts_silenced 1" in alarmed.admin.get("/metrics").text
    with Alarmed(**given) as alarmed:
        alarmed.set_depths(a=5, b=7)
        alarmed.wait_until_idle()
        shown = alarmed.admin.get("/api/alerts").json()
        assert (shown["silences"][0]["id"], shown["keeps_silences"]) == (begun["id"], True)
        alarmed.advance(seconds=10)
        alarmed.wait_until_idle()
        assert told_of(receiver) == [("b", "firing")]
        assert alarmed.admin.delete(f"/api/silences/{begun['id']}").status == 200
        wait_until(lambda: told_of(receiver) == [("b", "firing"), ("a", "firing")])
        assert alarmed.admin.delete(f"/api/silences/{begun['id']}").json()["message"] == "SILENCE_NOT_FOUND"
        audited = alarmed.admin.get("/api/audit?action=*silence*").json()["lines"]
    assert [(each["action"], each["detail"]) for each in audited] == [
        ("end_silence", 'topic "t", channel "a" for 2h0m0s: I am on it'),
        ("silence_alerts", 'topic "t", channel "a" for 2h0m0s: I am on it'),
    ]


def test_who_may_silence_and_how_much(tmp_path: Path, receiver: Receiver) -> None:
    users = user_file(tmp_path, {"tom": ("viewer", "a"), "ada": ("operator", "b")})
    said = {"rule": "*", **HOUR}
    with Alarmed(**options(tmp_path, receiver), user_file=str(users)) as alarmed:
        tom, ada = basic("tom", "a"), basic("ada", "b")
        assert alarmed.admin.post("/api/silences", said, Authorization=tom).status == 403
        begun = alarmed.admin.post("/api/silences", said, Authorization=ada).json()["silence"]
        assert begun["user"] == "ada"
        assert alarmed.admin.delete(f"/api/silences/{begun['id']}", Authorization=tom).status == 403
        refused = alarmed.admin.post("/api/silences", HOUR, Authorization=ada)
        assert (refused.status, refused.json()["message"][:16]) == (400, "INVALID_SILENCE:")
        for _ in range(MAX_SILENCES - 1):
            assert alarmed.admin.post("/api/silences", said, Authorization=ada).status == 200
        full = alarmed.admin.post("/api/silences", said, Authorization=ada)
        assert (full.status, full.json()["message"]) == (409, "TOO_MANY_SILENCES: there are 100 silences already")
