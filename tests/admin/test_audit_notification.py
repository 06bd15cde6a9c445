"""Notifications, as an endpoint gets them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import basic
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create
from tests.support.threaded_http import Reply, ThreadedHttp
from tests.support.waiting import wait_until


class Endpoint(ThreadedHttp):
    """Remembers what is posted to it."""

    def __init__(self) -> None:
        super().__init__(lambda _request: Reply())
        self.url = f"http://{self.address}/told"

    def expect(self, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.received) >= count)
        assert all(request.headers["Content-Type"] == "application/json" for request in self.received)
        return [json.loads(request.body) for request in self.received]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


@pytest.mark.conformance(245)
def test_creating_a_channel_is_told_as_two_actions(
    start_admin: StartAdmin, cluster: EmbeddedThread, endpoint: Endpoint
) -> None:
    create(cluster, "t")
    admin = start_admin(notification_http_endpoint=endpoint.url, base_path="/nsq")
    asked = admin.post(
        "/nsq/api/topics",
        {"topic": "t", "channel": "ch"},
        Authorization=basic("joe", "secret"),
        Host="admin.example:4171",
        User_Agent="test/1",
    )
    assert asked.status == 200
    first, second = endpoint.expect(2)
    assert (first["action"], second["action"]) == ("create_topic", "create_channel")
    assert "channel" not in first
    for told in (first, second):
        assert told["topic"] == "t"
        assert told["user"] == "joe"
        assert told["url"] == "http://admin.example:4171/nsq/api/topics"
        assert told["via"] == socket.gethostname()
        assert told["user_agent"] == "test/1"
        assert told["remote_ip"].startswith("127.0.0.1:")
        assert told["timestamp"] > 1_700_000_000
        assert "node" not in told
    assert second["channel"] == "ch"


def test_every_action_is_told(start_admin: StartAdmin, cluster: EmbeddedThread, endpoint: Endpoint) -> None:
    create(cluster, "t", "ch")
    admin = start_admin(notification_http_endpoint=endpoint.url)
    for path in ("/api/topics/t", "/api/topics/t/ch"):
        for action in ("pause", "unpause", "empty"):
            assert admin.post(path, {"action": action}, X_Scheme="https").status == 200
    policy = {"action": "set_policy", "max_attempts": 5, "dead_letter_topic": "t.dead"}
    assert admin.post("/api/topics/t/ch", policy).status == 200
    assert admin.post("/api/topics/t/ch", {"action": "clear_policy"}).status == 200
    assert admin.delete("/api/topics/t/ch").status == 200
    node = cluster.nsqd_http_addresses[0]
    assert admin.delete(f"/api/nodes/{node}", {"topic": "t"}).status == 200
    told = endpoint.expect(10)
    assert [each["action"] for each in told] == [
        "pause_topic",
        "unpause_topic",
        "empty_topic",
        "pause_channel",
        "unpause_channel",
        "empty_channel",
        "set_channel_policy",
        "clear_channel_policy",
        "delete_channel",
        "tombstone_topic_producer",
    ]
    assert told[0]["url"].startswith("https://")
    assert "user" not in told[0]
    assert told[-1]["node"] == node


def test_a_failed_pause_is_told_and_a_failed_deletion_is_not(start_admin: StartAdmin, endpoint: Endpoint) -> None:
    admin = start_admin(notification_http_endpoint=endpoint.url)
    assert admin.delete("/api/topics/nope").status == 502
    assert admin.post("/api/topics/nope", {"action": "pause"}).status == 502
    (told,) = endpoint.expect(1)
    assert (told["action"], told["topic"]) == ("pause_topic", "nope")


def test_an_endpoint_that_cannot_be_reached_harms_nobody(start_admin: StartAdmin) -> None:
    admin = start_admin(notification_http_endpoint=f"http://{DEAD}/")
    for _ in range(3):
        assert admin.post("/api/topics", {"topic": "t"}).status == 200
