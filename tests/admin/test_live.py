"""Live views: what is sent, to whom, and how often the cluster is asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import quote

import pytest

from emberq.admin import audience
from emberq.admin import live as module
from emberq.admin import view as view_module
from emberq.base.clock import ManualClock
from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread, of_cluster
from tests.support.cluster_rig import DEAD, channel_entry, topic_entry
from tests.support.embedded import create, publish
from tests.support.recording_daemon import RecordingDaemon
from tests.support.waiting import wait_until

INFO = {"broadcast_address": "nsqd.example", "hostname": "h", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}


class Watched:
    """An nsqd that notes how often it is asked for its figures, and an nsqadmin whose time stands still."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[str] = []
        self.clock = ManualClock()
        stats = {"topics": [topic_entry("t", channel_entry("c", message_count=10), message_count=10)]}
        self.nsqd = RecordingDaemon("", {"/info": INFO, "/stats": stats}, self.calls)
        self.options = options
        self.admin: AdminThread

    def __enter__(self) -> Self:
        self.nsqd.__enter__()
        self.admin = AdminThread(nsqd_http_address=(self.nsqd.address,), clock=self.clock, **self.options)
        self.admin.__enter__()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.admin.__exit__()
        self.nsqd.__exit__()

    def advance(self, *, seconds: float) -> None:
        """Move the clock, and have done what is due then."""
        self.wait_until_idle()
        self.admin.call(lambda: self.clock.advance(seconds=seconds))
        self.admin.call(self.admin.daemon.run_timers)

    def wait_until_idle(self) -> None:
        """Return when no look at the nsqd is under way."""
        wait_until(lambda: not self.admin.call(lambda: self.admin.daemon.gatherer.is_busy))

    @property
    def look_count(self) -> int:
        """How often the whole nsqd was looked at."""
        return sum(call.endswith("/stats?format=json&include_clients=false") for call in self.calls)

    def set_message_count(self, count: int) -> None:
        entry = topic_entry("t", channel_entry("c", message_count=count), message_count=count)
        self.nsqd.answers["/stats"] = {"topics": [entry]}


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


def test_a_view_is_sent_again_and_again_with_rates(watched: Watched) -> None:
    with watched.admin.events("view=topics") as events:
        assert "Content-Type: text/event-stream; charset=utf-8" in events.head
        assert "Content-Length" not in events.head
        name, first = events.next()
        assert (name, first["topics"][0]["rate"], first["time"]) == ("topics", None, 1_700_000_000.0)
        watched.set_message_count(30)
        watched.advance(seconds=2)
        name, second = events.next()
        assert (name, second["topics"][0]["rate"], second["rates"]["total"]) == ("topics", 10.0, 10.0)
        assert second["time"] == 1_700_000_002.0


def test_whoever_comes_is_shown_at_once_what_was_seen_last(watched: Watched) -> None:
    assert watched.admin.get("/api/view?view=topics").status == 200
    before = watched.look_count
    watched.admin.call(lambda: watched.clock.advance(seconds=29))
    with watched.admin.events("view=topics") as events:
        assert events.next()[1]["time"] == 1_700_000_000.0
        watched.advance(seconds=0)
        assert events.next()[1]["time"] == 1_700_000_029.0
    assert watched.look_count == before + 1


def test_what_was_seen_long_ago_is_not_shown(watched: Watched) -> None:
    assert watched.admin.get("/api/view?view=topics").status == 200
    watched.admin.call(lambda: watched.clock.advance(seconds=31))
    with watched.admin.events("view=topics") as events:
        assert events.next()[1]["time"] == 1_700_000_031.0


def test_however_many_look_the_cluster_is_asked_once(watched: Watched) -> None:
    with watched.admin.events("view=topics") as first:
        first.next()
        with watched.admin.events("view=topics&topic=ignored") as second, watched.admin.events("view=counter") as third:
            assert second.next()[1]["topics"][0]["topic_name"] == "t"
            assert third.next()[0] == "counter"
            before = watched.look_count
            watched.advance(seconds=2)
            for events in (first, second, third):
                events.next()
            assert watched.look_count == before + 1


def test_nobody_is_asked_while_nobody_looks(watched: Watched) -> None:
    assert watched.calls == []
    with watched.admin.events("view=topics") as events:
        events.next()
    wait_until(lambda: leaves(watched))
    watched.wait_until_idle()
    before = watched.look_count
    watched.advance(seconds=3600)
    assert watched.admin.get("/ping").status == 200
    assert watched.look_count == before


def leaves(watched: Watched) -> bool:
    """Whether the browser that went away has been noticed, which takes an event or two."""
    watched.advance(seconds=2)
    return watched.admin.call(lambda: watched.admin.daemon.gatherer.stream_count) == 0


def test_the_history_is_gathered_even_if_nobody_looks() -> None:
    with Watched(history_duration_ns=10**12) as watched:
        wait_until(lambda: len(watched.admin.get("/api/history").json()["points"]) == 1)
        watched.set_message_count(60)
        watched.advance(seconds=10)
        wait_until(lambda: len(watched.admin.get("/api/history?topic=t").json()["points"]) == 2)
        points = watched.admin.get("/api/history?topic=t&channel=c").json()["points"]
        assert [point["rate"] for point in points] == [None, 5]
        assert watched.admin.get("/api/history?topics=all").json()["topics"] == {"t": [None, 5]}
        assert watched.admin.get("/api/history?channel=c").error == (400, "MISSING_ARG_TOPIC")


def test_a_problem_is_told_and_the_next_round_tries_again(watched: Watched) -> None:
    with watched.admin.events("view=topics") as events:
        events.next()
        stats = watched.nsqd.answers.pop("/stats")
        watched.advance(seconds=2)
        name, problem = events.next()
        assert name == "problem"
        assert problem["message"].startswith("failed to query any nsqd: got response 404")
        watched.nsqd.answers["/stats"] = stats
        watched.advance(seconds=2)
        assert events.next()[0] == "topics"


def test_the_problem_of_one_view_is_not_that_of_others(watched: Watched) -> None:
    with watched.admin.events("view=topic&topic=nope") as wrong, watched.admin.events("view=topic&topic=t") as right:
        assert wrong.next() == ("problem", {"message": "no nsqd has topic nope", "is_missing": True})
        assert right.next()[0] == "topic"


def test_what_has_come_since_the_last_look_is_not_called_missing(watched: Watched) -> None:
    with watched.admin.events("view=topics") as events:
        events.next()
        watched.nsqd.answers["/stats"] = {"topics": [topic_entry("t"), topic_entry("new")]}
        with watched.admin.events("view=topic&topic=new") as new:
            assert new.next()[0] == "topic"


def test_a_document_that_cannot_be_made_does_not_end_the_rounds(watched: Watched) -> None:
    with watched.admin.events("view=topics") as events:
        events.next()
        entry = topic_entry("t", e2e_processing_latency={"count": 1, "percentiles": [{"quantile": 1, "value": 1e999}]})
        watched.nsqd.answers["/stats"] = {"topics": [entry]}
        watched.advance(seconds=2)
        assert events.next()[1]["topics"][0]["e2e_p99"] is None


def test_those_who_look_are_sent_away_at_the_end() -> None:
    with Watched() as watched, watched.admin.events("view=topics") as events:
        events.next()
        watched.admin.__exit__()
        events.expect_end()
        watched.admin = AdminThread(nsqd_http_address=(watched.nsqd.address,))
        watched.admin.__enter__()


def test_whoever_looks_for_long_has_to_come_again(watched: Watched) -> None:
    with watched.admin.events("view=topics") as events:
        events.next()
        watched.advance(seconds=601)
        events.expect_end()


def test_so_many_may_look_and_no_more(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "MAX_STREAMS", 2)
    with watched.admin.events("view=topics") as first, watched.admin.events("view=topics") as second:
        first.next()
        second.next()
        assert watched.admin.get("/api/live?view=topics").error == (503, "TOO_MANY_VIEWERS")


def test_so_many_views_are_looked_at_and_no_more(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "MAX_VIEWS", 1)
    with watched.admin.events("view=topics") as events:
        events.next()
        assert watched.admin.get("/api/live?view=nodes").error == (503, "TOO_MANY_VIEWS")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("view=nonsense", "INVALID_ARG_VIEW"),
        ("view=topic", "MISSING_ARG_TOPIC"),
        ("view=channel&topic=t", "MISSING_ARG_CHANNEL"),
        ("view=node", "MISSING_ARG_NODE"),
        ("view=%", "INVALID_REQUEST"),
    ],
)
def test_what_is_not_a_view_is_refused(watched: Watched, query: str, message: str) -> None:
    assert watched.admin.get(f"/api/live?{query}").error == (400, message)
    assert watched.admin.get(f"/api/view?{query}").error == (400, message)


# The documents, from a real cluster


@pytest.fixture
def filled(cluster: EmbeddedThread) -> EmbeddedThread:
    for node in (0, 1):
        create(cluster, "t", "c", node=node)
        publish(cluster, "t", b"one", node=node)
    return cluster


def document(admin: AdminThread, query: str) -> dict[str, Any]:
    """The document of a view, which is the same as an event and by itself."""
    alone: dict[str, Any] = admin.get(f"/api/view?{query}").json()
    with admin.events(query) as events:
        name, sent = events.next()
        assert f"view={name}" in query
    for shown in (alone, sent):
        assert shown.pop("message") == ""
        assert shown.pop("time") > 1_700_000_000
    assert alone.keys() == sent.keys()
    return alone


def test_every_topic_in_a_line(admin: AdminThread, filled: EmbeddedThread) -> None:
    admin.post("/api/topics", {"topic": "idle"})
    topics = document(admin, "view=topics")
    assert [topic["topic_name"] for topic in topics["topics"]] == ["idle", "t"]
    topic = topics["topics"][1]
    assert {key: topic[key] for key in ("channel_depth", "message_count", "channel_count", "node_count")} == {
        "channel_depth": 2,
        "message_count": 2,
        "channel_count": 1,
        "node_count": 2,
    }
    assert topics["node_count"] == 2


def test_the_views_hold_what_the_api_answers(admin: AdminThread, filled: EmbeddedThread) -> None:
    node = filled.nsqd_http_addresses[0]
    views = {
        "view=topic&topic=t": ("/api/topics/t", {"topic", "channels", "finished", "nodes"}),
        "view=channel&topic=t&channel=c": ("/api/topics/t/c", {"channel", "finished", "nodes"}),
        f"view=node&node={node}": (f"/api/nodes/{node}", {"total", "finished", "topics"}),
        "view=counter": ("/api/counter", {"total", "finished"}),
    }
    for query, (path, rates) in views.items():
        shown, answered = document(admin, query), admin.get(path).json()
        answered.pop("message")
        for part in answered.get("nodes", ()) if path.endswith("/c") else ():
            part["clients"] = None  # in the view only the channel itself has them
        assert {key: shown[key] for key in answered} == answered
        assert set(shown["rates"]) == rates


def test_a_node_shows_its_memory(admin: AdminThread, filled: EmbeddedThread) -> None:
    memory = document(admin, f"view=node&node={filled.nsqd_http_addresses[0]}")["memory"]
    assert memory["heap_in_use_bytes"] > 0


@pytest.mark.parametrize(
    ("search", "count", "first"),
    [("", 3, "client-0"), ("CLIENT-1 host", 1, "client-1"), ("none", 0, None)],
)
def test_of_many_clients_the_first_that_match_are_shown(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, search: str, count: int, first: str | None
) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 2)
    clients = [{"client_id": f"client-{number}", "hostname": "host"} for number in range(3)]
    channel = channel_entry("c", clients=clients, client_count=3)
    watched.nsqd.answers["/stats"] = {"topics": [topic_entry("t", channel)]}
    shown = watched.admin.get(f"/api/view?view=channel&topic=t&channel=c&search={quote(search)}").json()
    assert (shown["client_count"], shown["clients_matching"]) == (3, count)
    assert [client["client_id"] for client in shown["clients"] or ()][:1] == ([first] if first else [])
    assert len(shown["clients"] or ()) == min(count, 2)
    assert [part["clients"] for part in shown["nodes"]] == [None]


def test_very_many_counters_are_told_by_channel(
    admin: AdminThread, filled: EmbeddedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "MAX_COUNTERS", 1)
    assert document(admin, "view=counter")["stats"] == {
        "t:c:*": {"node": "*", "topic_name": "t", "channel_name": "c", "message_count": 2}
    }


def test_nodes_show_what_they_have_to_do(admin: AdminThread, filled: EmbeddedThread) -> None:
    nodes = document(admin, "view=nodes")["nodes"]
    assert {node["node"] for node in nodes} == set(filled.nsqd_http_addresses)
    for node in nodes:
        assert (node["depth"], node["message_count"], node["client_count"], node["topic_count"]) == (1, 1, 0, 1)
        assert (node["registered_count"], node["tombstoned_count"], node["topics"]) == (1, 0, None)


def test_a_cluster_without_an_nsqd_is_empty_and_well() -> None:
    with EmbeddedThread(nsqd_count=0) as nsq, of_cluster(nsq) as admin:
        assert document(admin, "view=topics")["topics"] == []


def test_a_warning_comes_with_the_document(filled: EmbeddedThread) -> None:
    with AdminThread(lookupd_http_address=(*filled.lookupd_http_addresses, DEAD)) as admin:
        assert admin.get("/api/view?view=topics").json()["message"].startswith(f'WARNING: Get "http://{DEAD}/nodes"')
    with AdminThread(lookupd_http_address=(DEAD,)) as admin:
        assert admin.get("/api/view?view=topics").status == 502


def test_what_is_looked_at_once_may_be_missing(admin: AdminThread) -> None:
    assert admin.get("/api/view?view=topic&topic=nope").error == (404, "TOPIC_NOT_FOUND")
    assert admin.get("/api/view?view=node&node=nope").error == (404, "NODE_NOT_FOUND")


def test_there_are_no_pipelines_until_one_reports(watched: Watched) -> None:
    with watched.admin.events("view=pipelines") as events:
        assert events.next()[1]["pipelines"] == []


def test_how_fast_consumers_work_follows_from_two_looks(watched: Watched) -> None:
    def has_finished(count: int) -> None:
        client = {"client_id": "w", "remote_address": "10.0.0.7:5000", "connect_ts": 1, "in_flight_count": 1}
        figures = {"finish_count": count, "message_count": count + 1}
        channel = channel_entry("c", client_count=1, clients=[client | figures])
        watched.nsqd.answers["/stats"] = {"topics": [topic_entry("t", channel)]}

    has_finished(2)
    with watched.admin.events("view=channel&topic=t&channel=c") as events:
        (pace,) = events.next()[1]["paces"].values()
        assert pace["finish_rate"] is None
        has_finished(12)
        watched.advance(seconds=2)
        paces = events.next()[1]["paces"]
        assert paces == {
            "nsqd.example:4151 10.0.0.7:5000": {
                "finish_rate": 5.0,
                "requeue_rate": 0.0,
                "message_ns": 200_000_000,
                "timeout_count": 0,
                "last_finish": 1_700_000_002.0,
            }
        }
