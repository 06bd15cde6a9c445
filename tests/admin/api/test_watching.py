"""Pipelines through nsqadmin: reports published to real nsqds."""

from __future__ import annotations

import json

from emberq.cluster.pipeline_feed import TOPIC
from emberq.embedded import EmbeddedThread
from tests.admin.rig import AdminThread, of_nsqds
from tests.cluster.rig import create, http, publish
from tests.waiting import wait_until

REPORT = {"name": "clicks", "id": "1", "batchId": 7, "inputRowsPerSecond": 100.5}


def topics_of(cluster: EmbeddedThread, node: int) -> list[str]:
    stats = http(cluster.nsqd_http_addresses[node]).get("/stats?format=json").json()
    return [topic["topic_name"] for topic in stats["topics"]]


def test_reports_are_read_from_all_nodes_that_have_the_topic(admin: AdminThread, cluster: EmbeddedThread) -> None:
    assert admin.get("/api/pipelines").json()["pipelines"] == []
    create(cluster, TOPIC, node=0)
    publish(cluster, TOPIC, json.dumps(REPORT).encode(), node=0)
    wait_until(lambda: len(admin.get("/api/pipelines").json()["pipelines"]) == 1)
    create(cluster, TOPIC, node=1)
    publish(cluster, TOPIC, json.dumps(REPORT | {"name": "views"}).encode(), node=1)
    wait_until(lambda: len(admin.get("/api/pipelines").json()["pipelines"]) == 2)
    assert admin.get("/api/view?view=pipelines").json()["pipelines"][1]["name"] == "views"


def test_looking_for_pipelines_does_not_create_the_topic(cluster: EmbeddedThread) -> None:
    with of_nsqds(cluster) as admin:
        assert admin.get("/api/pipelines").status == 200
    assert topics_of(cluster, 0) == []
