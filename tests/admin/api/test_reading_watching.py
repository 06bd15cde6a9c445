"""What pages follow, through nsqadmin on real nsqds: pipelines, the history of a node, a search for consumers."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.pipeline_feed import TOPIC
from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread, of_nsqds
from tests.support.embedded import create, http_of, publish
from tests.support.pipeline_report import HEARTBEAT, REPORT
from tests.support.raw_client import Client
from tests.support.waiting import wait_until


def topics_of(cluster: EmbeddedThread, node: int) -> list[str]:
    stats = http_of(cluster.nsqd_http_addresses[node]).get("/stats?format=json").json()
    return [topic["topic_name"] for topic in stats["topics"]]


def pipelines(admin: AdminThread) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = admin.get("/api/pipelines").json()["pipelines"]
    return shown


def test_reports_are_read_from_all_nodes_that_have_the_topic(admin: AdminThread, cluster: EmbeddedThread) -> None:
    assert pipelines(admin) == []
    create(cluster, TOPIC, node=0)
    publish(cluster, TOPIC, json.dumps(REPORT).encode(), node=0)
    wait_until(lambda: len(pipelines(admin)) == 1)
    create(cluster, TOPIC, node=1)
    publish(cluster, TOPIC, json.dumps(REPORT | {"query": "views"}).encode(), node=1)
    wait_until(lambda: len(pipelines(admin)) == 2)
    assert admin.get("/api/view?view=pipelines").json()["pipelines"][1]["query"] == "views"


def test_what_a_query_reports_is_shown_with_what_it_reported_before(
    admin: AdminThread, cluster: EmbeddedThread
) -> None:
    create(cluster, TOPIC)
    failed = {"state": "failed", "error": "disk full"}
    for report in (REPORT, REPORT | {"batch": 43, "duration_ms": 500}, HEARTBEAT | failed):
        publish(cluster, TOPIC, json.dumps(report).encode())
    wait_until(lambda: [query["state"] for query in pipelines(admin)] == ["failed"])
    (query,) = pipelines(admin)
    assert {key: value for key, value in (HEARTBEAT | failed).items() if key != "samples"}.items() <= query.items()
    assert [batch["duration_ms"] for batch in query["recent"]] == [1263, 500]
    assert (query["row_count"], query["bad_count"]) == (2400, 6)
    assert query["last_error"] == {"error": "disk full", "time": REPORT["time"]}
    assert [(failure["name"], failure["count"]) for failure in query["failures"]] == [
        ("clicks", 6),
        ("clicks.has_user", 4),
    ]
    answer = admin.get("/api/pipelines/samples?pipeline=clickstream&query=counts").json()
    assert [failure["samples"] for failure in answer["failures"]] == list(REPORT["samples"].values())


def test_reports_are_what_spark_queries_publish() -> None:
    """The format has one home; this fails when it moves on and the pages do not."""
    pytest.importorskip("pyspark")
    from emberq.spark.pipeline.progress import QueryProgress

    assert list(REPORT) == [field.name for field in dataclasses.fields(QueryProgress)]


def test_looking_for_pipelines_does_not_create_the_topic(cluster: EmbeddedThread) -> None:
    with of_nsqds(cluster) as admin:
        assert admin.get("/api/pipelines").status == 200
    assert topics_of(cluster, 0) == []


def test_the_history_of_a_node_has_its_memory(cluster: EmbeddedThread) -> None:
    node = cluster.nsqd_http_addresses[0]
    create(cluster, "t", "ch")
    publish(cluster, "t", b"one")
    with of_nsqds(cluster, history_duration_ns=60 * NS_PER_SECOND, history_interval_ns=NS_PER_SECOND) as admin:
        target = f"/api/history?node={node}"
        wait_until(lambda: bool(admin.get(target).json()["points"]))
        answer = admin.get(target).json()
    assert (answer["interval"], answer["message"]) == (1.0, "")
    point = answer["points"][-1]
    assert point["heap_in_use_bytes"] > 1_000_000
    assert point["depth"] == 1


def test_the_history_of_a_node_that_nobody_knows_is_empty(admin: AdminThread) -> None:
    assert admin.get("/api/history?node=127.0.0.1:1").json()["points"] == []


def test_consumers_are_searched_for_by_the_server(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    host, _, port = cluster.nsqd_tcp_addresses[0].partition(":")
    with closing(Client((host, int(port)))) as first, closing(Client((host, int(port)))) as second:
        for client, name in ((first, "early"), (second, "late")):
            client.identify(client_id=name)
            client.sub("t", "ch")
        shown = admin.get("/api/view?view=channel&topic=t&channel=ch&search=LATE").json()
    assert [client["client_id"] for client in shown["clients"]] == ["late"]
    assert (shown["client_count"], shown["clients_matching"]) == (2, 1)
