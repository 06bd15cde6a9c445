"""The history of figures."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.admin import history as module
from emberq.admin.history import History
from emberq.admin.view import Look
from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.survey import NOTHING, Survey, Tally
from tests.support.cluster_rig import NODE, channel_entry, topic_entry

TRACKED = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 2e9}, {"quantile": 0.5, "value": 1e9}]}
NO_RATES = dict.fromkeys(("rate", "in_rate", "finish_rate", "dead_letter_rate", "requeue_rate"))


class Recording:
    """Records a look every ten seconds."""

    def __init__(self, *, duration_s: int = 60, interval_s: int = 10) -> None:
        self.history = History(interval_ns=interval_s * NS_PER_SECOND, duration_ns=duration_s * NS_PER_SECOND)
        self._seen: Survey | None = None
        self._now_s = 1000

    def add(self, *entries: dict[str, Any], after_s: int = 10, memory: dict[str, Any] | None = None) -> None:
        self._now_s += after_s
        now_ns = self._now_s * NS_PER_SECOND
        tally = Tally(self._seen.nodes if self._seen is not None else NOTHING)
        tally.add(StatsReader(NODE).figures({"topics": list(entries), "memory": memory}))
        self._seen = Survey((NODE,), tally, taken_ns=now_ns, before=self._seen)
        self.history.record(Look(self._seen, taken_ns=now_ns), now_ns=now_ns)

    def points(self, topic: str = "", channel: str = "") -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = self.history.document(topic, channel)["points"]
        return points


def topic(name: str = "t", *, count: int = 0, depth: int = 0, in_flight: int = 0) -> dict[str, Any]:
    channel = channel_entry("c", depth=depth, in_flight_count=in_flight, message_count=count)
    return topic_entry(name, channel, message_count=count, depth=1, e2e_processing_latency=TRACKED)


def test_points_are_kept_in_their_order() -> None:
    recording = Recording()
    recording.add(topic(count=0, depth=5, in_flight=2))
    recording.add(topic(count=15, depth=7))
    first, second = recording.points("t")
    assert first == {
        "time": 1010.0,
        "depth": 6,
        "in_flight": 2,
        **NO_RATES,
        "e2e_p99": 2_000_000_000,
    }
    assert (second["time"], second["depth"], second["rate"]) == (1020.0, 8, 1.5)
    assert [point["depth"] for point in recording.points("t", "c")] == [5, 7]
    assert [point["depth"] for point in recording.points()] == [6, 8]
    assert recording.points()[1]["rate"] == 1.5
    assert recording.history.document()["interval"] == 10.0


def test_only_the_newest_points_are_kept() -> None:
    recording = Recording(duration_s=30)
    for depth in range(5):
        recording.add(topic(depth=depth))
    assert [point["depth"] for point in recording.points("t", "c")] == [2, 3, 4]


def test_points_are_not_recorded_more_often_than_asked_for() -> None:
    recording = Recording()
    recording.add(topic())
    recording.add(topic(), after_s=2)
    recording.add(topic(), after_s=8)
    assert [point["time"] for point in recording.points("t")] == [1010.0, 1020.0]


def test_a_look_that_took_less_time_than_the_one_before_makes_a_point_too() -> None:
    recording = Recording()
    recording.add(topic())
    recording.add(topic(), after_s=9)
    recording.add(topic(), after_s=11)
    assert [point["time"] for point in recording.points("t")] == [1010.0, 1019.0, 1030.0]


def test_a_rate_is_the_mean_since_the_point_before_however_often_one_looked() -> None:
    """Or a burst in the last two of ten seconds would look five times as high as it was."""
    recording = Recording()
    recording.add(topic())
    recording.add(topic(), after_s=8)
    recording.add(topic(count=20), after_s=2)
    recording.add(topic(count=40), after_s=10)
    for name in ((), ("t",), ("t", "c")):
        assert [point["rate"] for point in recording.points(*name)] == [None, 2, 2]
    assert [point["rate"] for point in recording.history.node_document(NODE.node)["points"]] == [None, 2, 2]


def test_in_and_out_are_of_one_unit_and_dead_letters_are_neither() -> None:
    def fanned_out(count: int, **figures: int) -> dict[str, Any]:
        read = channel_entry("read", message_count=count, **figures)
        return topic_entry("t", read, channel_entry("unread", message_count=count, depth=count), message_count=count)

    recording = Recording()
    recording.add(fanned_out(0))
    recording.add(fanned_out(20, requeue_count=30, dead_letter_count=5))
    expected = {"rate": 2, "in_rate": 4, "finish_rate": 1.5, "dead_letter_rate": 0.5, "requeue_rate": 3}
    for found in (
        recording.points("t")[1],
        recording.points()[1],
        recording.history.node_document(NODE.node)["points"][1],
    ):
        assert {figure: found[figure] for figure in expected} == expected
    of_channel = recording.points("t", "read")[1]
    assert (of_channel["in_rate"], of_channel["finish_rate"], of_channel["dead_letter_rate"]) == (2, 1.5, 0.5)


def test_what_is_away_for_a_while_has_a_gap() -> None:
    recording = Recording()
    recording.add(topic(depth=1))
    recording.add()
    recording.add(topic(depth=3))
    assert [point["time"] for point in recording.points("t", "c")] == [1010.0, 1030.0]
    assert len(recording.points()) == 3


def test_what_has_been_away_for_a_whole_turn_is_forgotten() -> None:
    recording = Recording(duration_s=30)
    recording.add(topic(depth=1))
    for _ in range(3):
        recording.add()
    assert recording.points("t") == []
    recording.add(topic(depth=2))
    assert [point["depth"] for point in recording.points("t", "c")] == [2]


def test_the_last_rates_of_every_topic_are_told_together() -> None:
    recording = Recording()
    recording.add(topic("a"), topic("b"))
    recording.add(topic("a", count=10), topic("b", count=20))
    assert recording.history.recent_rates() == {"interval": 10.0, "topics": {"a": [None, 1], "b": [None, 2]}}


def test_a_node_has_its_work_and_its_memory() -> None:
    recording = Recording()
    recording.add(topic(depth=5), memory={"heap_in_use_bytes": 4096, "heap_idle_bytes": 512, "gc_pause_usec_100": 7})
    recording.add(topic(count=20, depth=5))
    first, second = recording.history.node_document(NODE.node)["points"]
    assert first == {
        "time": 1010.0,
        "depth": 6,
        **NO_RATES,
        "heap_in_use_bytes": 4096,
        "heap_idle_bytes": 512,
        "heap_released_bytes": None,
        "gc_pause_usec_100": 7,
    }
    assert (second["rate"], second["finish_rate"], second["heap_in_use_bytes"]) == (2, 2, None)
    assert recording.history.node_document("other:4151")["points"] == []


def test_there_are_so_many_nodes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NODES", 0)
    recording = Recording()
    recording.add(topic())
    assert recording.history.node_document(NODE.node)["points"] == []


def test_a_history_of_no_duration_is_none() -> None:
    recording = Recording(duration_s=0)
    recording.add(topic())
    assert not recording.history.is_kept
    assert recording.points() == recording.points("t") == []
    assert recording.history.recent_rates()["topics"] == {}


def test_there_are_so_many_series_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    recording = Recording()
    recording.add(topic("a"), topic("b"))
    recorded = [name for name in (("a", ""), ("a", "c"), ("b", ""), ("b", "c"), ("", "")) if recording.points(*name)]
    assert recorded == [("a", ""), ("a", "c"), ("b", "")]
