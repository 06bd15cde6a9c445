"""What pipelines report, and what is kept of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.cluster import pipeline_feed as module
from emberq.cluster.pipeline_feed import MAX_REPORT_BYTES, PipelineFeed

REPORT = {"name": "clicks", "id": "1", "batchId": 7, "inputRowsPerSecond": 100.5}


@pytest.fixture
def feed() -> PipelineFeed:
    return PipelineFeed(clock=ManualClock())


def reports(feed: PipelineFeed) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = feed.document()["pipelines"]
    return shown


def test_the_last_report_of_each_query_is_kept(feed: PipelineFeed) -> None:
    feed.read(json.dumps(REPORT | {"name": "views"}).encode())
    feed.read(json.dumps(REPORT).encode())
    feed.read(json.dumps(REPORT | {"batchId": 8}).encode())
    assert [(report["name"], report["batchId"]) for report in reports(feed)] == [("clicks", 8), ("views", 7)]
    assert reports(feed)[0]["received"] == 1_700_000_000.0


def test_a_query_without_a_name_is_known_by_its_id(feed: PipelineFeed) -> None:
    feed.read(b'{"name": null, "id": "abc"}')
    assert [report["name"] for report in reports(feed)] == ["abc"]


NO_REPORTS = [
    b"",
    b"text",
    b"[]",
    b"{}",
    b'{"name": 5}',
    b'{"name": "x", "rate": NaN}',
    b'{"name": "x", "rate": 1e999}',
    b"[" * 9999,
    b'{"name": "x", "pad": "' + b"x" * MAX_REPORT_BYTES + b'"}',
]


@pytest.mark.parametrize("body", NO_REPORTS)
def test_what_is_no_report_is_passed_over(feed: PipelineFeed, body: bytes) -> None:
    feed.read(body)
    assert reports(feed) == []


def test_so_many_queries_are_kept_and_no_more(feed: PipelineFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PIPELINES", 2)
    for name in ("a", "b", "a", "c"):
        feed.read(json.dumps({"name": name}).encode())
    assert [report["name"] for report in reports(feed)] == ["a", "c"]
