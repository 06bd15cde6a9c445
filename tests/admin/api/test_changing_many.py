"""One action on many topics and channels, or on one node of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, basic, user_file
from tests.support.embedded import create, http_of, publish


def paused(cluster: EmbeddedThread, topic: str, channel: str = "") -> list[bool]:
    """On each nsqd that has it."""
    found = []
    for address in cluster.nsqd_http_addresses:
        for entry in http_of(address).get(f"/stats?format=json&topic={topic}").json()["topics"] or ():
            channels = [each for each in entry["channels"] if each["channel_name"] == channel]
            found += [each["paused"] for each in (channels if channel else [entry])]
    return found


def act(admin: AdminThread, action: str, *targets: dict[str, Any], **headers: str) -> Any:
    return admin.post("/api/actions", {"action": action, "targets": list(targets)}, **headers)


@pytest.fixture
def filled(cluster: EmbeddedThread) -> EmbeddedThread:
    """Two topics with a channel each, on both nsqds."""
    for topic in ("a", "b"):
        for node in (0, 1):
            create(cluster, topic, "ch", node=node)
            publish(cluster, topic, b"message", node=node)
    return cluster


def test_many_channels_are_paused_and_emptied_at_once(admin: AdminThread, filled: EmbeddedThread) -> None:
    targets = ({"topic": "a", "channel": "ch"}, {"topic": "b", "channel": "ch"})
    assert act(admin, "pause", *targets).json() == {"done": 2, "failed": [], "message": ""}
    assert paused(filled, "a", "ch") + paused(filled, "b", "ch") == [True] * 4
    assert act(admin, "unpause", targets[0]).json()["done"] == 1
    assert paused(filled, "a", "ch") + paused(filled, "b", "ch") == [False, False, True, True]
    assert act(admin, "empty", *targets).json()["done"] == 2
    assert [admin.get(f"/api/topics/{topic}/ch").json()["depth"] for topic in ("a", "b")] == [0, 0]


def test_a_channel_or_a_topic_is_paused_on_one_node(admin: AdminThread, filled: EmbeddedThread) -> None:
    node = filled.nsqd_http_addresses[1]
    act(admin, "pause", {"topic": "a", "channel": "ch", "node": node}, {"topic": "b", "node": node})
    assert paused(filled, "a", "ch") == [False, True]
    assert paused(filled, "a") == [False, False]
    assert paused(filled, "b") == [False, True]


def test_what_cannot_be_done_does_not_keep_the_rest_from_it(admin: AdminThread, filled: EmbeddedThread) -> None:
    node = filled.nsqd_http_addresses[0]
    answer = act(
        admin, "pause", {"topic": "a", "channel": "none", "node": node}, {"topic": "a", "channel": "ch"}
    ).json()
    assert answer["done"] == 1
    (failed,) = answer["failed"]
    assert (failed["channel"], failed["node"]) == ("none", node)
    assert "CHANNEL_NOT_FOUND" in failed["message"]
    assert paused(filled, "a", "ch") == [True, True]


def test_if_none_can_be_done_it_is_an_error(admin: AdminThread, filled: EmbeddedThread) -> None:
    assert act(admin, "pause", {"topic": "a", "node": "127.0.0.1:1"}).error == (404, "NODE_NOT_FOUND")
    status, message = act(admin, "pause", {"topic": "none", "node": filled.nsqd_http_addresses[0]}).error
    assert (status, "TOPIC_NOT_FOUND" in message) == (502, True)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"action": "delete", "targets": [{"topic": "a"}]}, "INVALID_ACTION"),
    ({"action": "pause"}, "INVALID_TARGETS"),
    ({"action": "pause", "targets": [{"topic": "a"}] * 101}, "INVALID_TARGETS"),
    ({"action": "pause", "targets": ["a"]}, "targets must be a list of objects"),
    ({"action": "pause", "targets": [{"topic": "*"}]}, "INVALID_TOPIC"),
    ({"action": "pause", "targets": [{"topic": "a", "channel": "$"}]}, "INVALID_CHANNEL"),
    ({"action": "pause", "targets": [{"topic": "a", "node": 5}]}, "INVALID_TARGETS"),
]


def test_what_makes_no_sense_is_refused(admin: AdminThread) -> None:
    for body, message in REFUSED:
        assert admin.post("/api/actions", body).error == (400, message)


def test_the_role_and_the_audit_log(start_admin: StartAdmin, filled: EmbeddedThread, tmp_path: Path) -> None:
    users = user_file(tmp_path, {"ada": ("admin", "a"), "olga": ("operator", "o"), "tom": ("viewer", "t")})
    log = tmp_path / "audit"
    admin = start_admin(user_file=str(users), audit_log_file=str(log))
    targets = ({"topic": "a", "channel": "ch"}, {"topic": "b"})
    assert act(admin, "pause", *targets, Authorization=basic("tom", "t")).status == 403
    assert act(admin, "pause", *targets, Authorization=basic("olga", "o")).json()["done"] == 2
    assert act(admin, "empty", *targets, Authorization=basic("olga", "o")).status == 403
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    told = [(line["user"], line["action"], line.get("topic"), line["outcome"]) for line in lines]
    assert told == [
        ("tom", "pause", None, "refused"),
        ("olga", "pause_channel", "a", "done"),
        ("olga", "pause_topic", "b", "done"),
        ("olga", "empty_many", None, "refused"),
    ]
