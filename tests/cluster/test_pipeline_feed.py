"""What pipelines report, and what is kept of it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from emberq.base.clock import ManualClock, SystemClock
from emberq.cluster import pipeline_feed as module
from emberq.cluster.pipeline_feed import MAX_FAILURES, MAX_REPORT_BYTES, MAX_SAMPLE_CHARACTERS, PipelineFeed
from emberq.cluster.topology import ClusterNode
from emberq.embedded import EmbeddedThread
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.cluster_rig import NODE
from tests.support.pipeline_report import HEARTBEAT, REPORT
from tests.support.waiting import until


@pytest.fixture
def feed(clock: ManualClock) -> PipelineFeed:
    return PipelineFeed(clock=clock)


def take(feed: PipelineFeed, *reports: dict[str, Any]) -> None:
    for report in reports:
        feed.read(json.dumps(report).encode())


def shown(feed: PipelineFeed) -> list[dict[str, Any]]:
    queries: list[dict[str, Any]] = feed.document()["pipelines"]
    return queries


def test_the_last_report_of_each_query_is_kept(feed: PipelineFeed) -> None:
    take(feed, REPORT | {"query": "views"}, REPORT, REPORT | {"batch": 43}, REPORT | {"pipeline": "archive"})
    assert [(query["pipeline"], query["query"], query["batch"]) for query in shown(feed)] == [
        ("archive", "counts", 42),
        ("clickstream", "counts", 43),
        ("clickstream", "views", 42),
    ]


def test_all_that_a_query_says_is_passed_on_with_when_it_was_heard(feed: PipelineFeed, clock: ManualClock) -> None:
    take(feed, REPORT)
    clock.advance(seconds=5)
    (query,) = shown(feed)
    assert {key: value for key, value in REPORT.items() if key != "samples"}.items() <= query.items()
    assert "samples" not in query
    assert query["received"] == 1_700_000_000.0


def test_the_last_batches_are_kept_and_heartbeats_are_none(feed: PipelineFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT_COUNT", 2)
    take(feed, *[REPORT | {"duration_ms": duration} for duration in (10, 20, 30)], HEARTBEAT)
    (query,) = shown(feed)
    assert [batch["duration_ms"] for batch in query["recent"]] == [20, 30]
    assert query["recent"][0] == {
        "time": "2026-11-15T06:10:00.000Z",
        "duration_ms": 20,
        "rows_in_per_second": 800.1,
        "rows_out_per_second": 24.7,
        "lag": 12,
    }
    assert query["lag"] == 0


def test_rows_and_bad_records_are_summed_up(feed: PipelineFeed) -> None:
    take(feed, REPORT, REPORT | {"rows": 100, "bad": {"clicks": 1, "views": 2}}, HEARTBEAT)
    (query,) = shown(feed)
    assert (query["row_count"], query["bad_count"]) == (1300, 6)


def test_failed_rules_and_bad_records_are_counted_with_samples_that_are_told_apart(feed: PipelineFeed) -> None:
    later = "2026-11-15T06:12:00.000Z"
    more = {"failed_rules": {"clicks.has_user": 3, "clicks.sane": 0}, "samples": {"clicks.has_user": ["x" * 600, 7]}}
    take(feed, REPORT, HEARTBEAT, REPORT | more | {"time": later, "bad": {}})
    (query,) = shown(feed)
    first = REPORT["time"]
    assert query["failures"] == [
        {"name": "clicks", "count": 3, "since": first, "last": first},
        {"name": "clicks.has_user", "count": 5, "since": first, "last": later},
    ]
    told = {failure["name"]: failure["samples"] for failure in feed.samples("clickstream", "counts")["failures"]}
    assert told == {
        "clicks": REPORT["samples"]["clicks"],
        "clicks.has_user": [*REPORT["samples"]["clicks.has_user"], "x" * MAX_SAMPLE_CHARACTERS],
    }
    assert feed.samples("clickstream", "other") == {"failures": []}


def test_what_is_made_up_about_failures_is_bounded(feed: PipelineFeed) -> None:
    many = {f"s.rule{number}": 1 for number in range(2 * MAX_FAILURES)}
    odd = {"bad": ["clicks"], "failed_rules": many | {"y" * 1000: 1}, "samples": {"s.rule0": "text"}}
    take(feed, REPORT | odd, REPORT | {"samples": [], "failed_rules": {"s.rule0": "many"}})
    failures = feed.samples("clickstream", "counts")["failures"]
    assert len(failures) == MAX_FAILURES
    assert all(failure["samples"] == [] for failure in failures)


def test_the_last_error_stays_when_the_query_runs_again(feed: PipelineFeed) -> None:
    take(feed, REPORT)
    assert shown(feed)[0]["last_error"] is None
    failed = {"state": "failed", "error": "disk full", "time": "2026-11-15T06:11:00.000Z"}
    take(feed, HEARTBEAT | failed, REPORT)
    (query,) = shown(feed)
    assert (query["state"], query["error"]) == ("running", "")
    assert query["last_error"] == {"error": "disk full", "time": "2026-11-15T06:11:00.000Z"}


NO_REPORTS = [
    b"",
    b"text",
    b"[]",
    b"{}",
    b'{"pipeline": "x"}',
    b'{"pipeline": "x", "query": ""}',
    b'{"pipeline": "x", "query": 5}',
    b'{"pipeline": "x", "query": "y", "rate": NaN}',
    b'{"pipeline": "x", "query": "y", "rate": 1e999}',
    b"[" * 9999,
    b'{"pipeline": "x", "query": "y", "pad": "' + b"x" * MAX_REPORT_BYTES + b'"}',
]


@pytest.mark.parametrize("body", NO_REPORTS)
def test_what_is_no_report_is_passed_over(feed: PipelineFeed, body: bytes) -> None:
    feed.read(body)
    assert shown(feed) == []


@pytest.mark.parametrize("wrong", ["many", None, -1, True, {"clicks": "many"}, [1]])
def test_counts_that_are_none_count_as_nothing(feed: PipelineFeed, wrong: Any) -> None:
    take(feed, REPORT | {"rows": wrong, "bad": wrong, "duration_ms": wrong})
    (query,) = shown(feed)
    assert (query["row_count"], query["bad_count"], query["recent"]) == (0, 0, [])


def test_so_many_queries_are_kept_and_no_more(feed: PipelineFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUERIES", 2)
    take(feed, *[REPORT | {"query": name} for name in ("a", "b", "a", "c")])
    assert [query["query"] for query in shown(feed)] == ["a", "c"]


@pytest.mark.loop("uvloop")
async def test_each_nsqd_is_shown_what_is_meant_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """Any nsqd can register, have the topic, and demand a secret."""
    with ExitStack() as running:
        servers = [running.enter_context(AuthServer(grant(entry()))) for _ in range(2)]
        ours, other = (
            running.enter_context(EmbeddedThread(with_lookupd=False, auth_http_address=(server.address,)))
            for server in servers
        )
        nodes = [_node(nsq) for nsq in (ours, other)]
        feed = PipelineFeed(
            clock=SystemClock(), secret_for={nodes[0].http_address: b"s3cret", nodes[1].http_address: b""}.__getitem__
        )
        feed.follow(nodes, [node.node for node in nodes])
        await until(lambda: bool(servers[0].questions))
        await until(lambda: f"cannot consume from nsqd {nodes[1].tcp_address}" in caplog.text)
        await feed.stop()
        assert {question.params["secret"][0] for question in servers[0].questions} == {"s3cret"}
        assert servers[1].questions == []


def _node(nsq: EmbeddedThread) -> ClusterNode:
    tcp_port, http_port = (
        int(address.rpartition(":")[2]) for address in (nsq.nsqd_tcp_addresses[0], nsq.nsqd_http_addresses[0])
    )
    return replace(NODE, broadcast_address="127.0.0.1", tcp_port=tcp_port, http_port=http_port)


def test_counts_that_no_query_can_have_are_not_added_up(feed: PipelineFeed) -> None:
    most = 10**4299 * 9  # as long as JSON may be read; twice as much could not be written
    take(feed, *[REPORT | {"rows": most, "bad": {"clicks": most}}] * 2)
    (query,) = shown(feed)
    assert (query["row_count"], query["bad_count"]) == (0, 0)
    assert json.dumps(query)


def test_a_batch_that_is_kept_is_small(feed: PipelineFeed) -> None:
    take(feed, REPORT | {"time": "x" * 30_000, "rows_in_per_second": [0] * 5000, "duration_ms": 5})
    (query,) = shown(feed)
    assert query["recent"] == [
        {"time": None, "duration_ms": 5, "rows_in_per_second": None, "rows_out_per_second": 24.7, "lag": 12}
    ]


def test_a_report_that_is_nested_too_deeply_is_passed_over(feed: PipelineFeed) -> None:
    feed.read(b'{"pipeline":"p","query":"q","x":' + b"[" * 500 + b"]" * 500 + b"}")
    assert shown(feed) == []
