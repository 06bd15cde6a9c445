"""Policies of channels through nsqadmin, on real nsqds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, basic, of_nsqds, user_file
from tests.support.embedded import create, http_of

POLICY = {"max_attempts": 5, "dead_letter_topic": "t.dead"}
SET = {"action": "set_policy", **POLICY}
CLEAR = {"action": "clear_policy"}


def policies(cluster: EmbeddedThread, channel: str = "ch") -> list[Any]:
    """What each nsqd says of the channel."""
    target = f"/channel/policy?topic=t&channel={channel}"
    return [http_of(address).get(target).json() for address in cluster.nsqd_http_addresses]


def test_a_policy_is_set_and_cleared_on_every_node(admin: AdminThread, cluster: EmbeddedThread) -> None:
    for node in (0, 1):
        create(cluster, "t", "ch", node=node)
    answer = admin.post("/api/topics/t/ch", SET)
    assert (answer.status, answer.json()) == (200, {"message": ""})
    assert policies(cluster) == [POLICY, POLICY]
    assert admin.post("/api/topics/t/ch", CLEAR).json() == {"message": ""}
    assert policies(cluster) == [{}, {}]


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"dead_letter_topic": "t.dead"}, "INVALID_MAX_ATTEMPTS"),
        ({**POLICY, "max_attempts": 0}, "INVALID_MAX_ATTEMPTS"),
        ({**POLICY, "max_attempts": 65536}, "INVALID_MAX_ATTEMPTS"),
        ({**POLICY, "max_attempts": "5"}, "max_attempts must be a whole number"),
        ({"max_attempts": 5}, "INVALID_DEAD_LETTER_TOPIC"),
        ({**POLICY, "dead_letter_topic": "*"}, "INVALID_DEAD_LETTER_TOPIC"),
        ({**POLICY, "dead_letter_topic": "t.dead#ephemeral"}, "INVALID_DEAD_LETTER_TOPIC"),
        ({**POLICY, "dead_letter_topic": "t"}, "DEAD_LETTER_CYCLE"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(
    admin: AdminThread, cluster: EmbeddedThread, body: dict[str, Any], refusal: str
) -> None:
    create(cluster, "t", "ch")
    assert admin.post("/api/topics/t/ch", {"action": "set_policy"} | body).error == (400, refusal)


def test_a_channel_that_only_some_nodes_have_gets_its_policy_there(cluster: EmbeddedThread) -> None:
    create(cluster, "t", node=1)
    create(cluster, "t", "ch", node=0)
    with of_nsqds(cluster) as admin:
        answer = admin.post("/api/topics/t/ch", SET)
        assert answer.status == 200
        assert answer.json()["message"].startswith("WARNING: ")
        assert "CHANNEL_NOT_FOUND" in answer.json()["message"]
        assert policies(cluster)[0] == POLICY
        assert admin.post("/api/topics/t/nope", SET).error == (404, "CHANNEL_NOT_FOUND")


def test_it_is_told_and_only_those_who_may_can_do_it(
    start_admin: StartAdmin, cluster: EmbeddedThread, tmp_path: Path
) -> None:
    create(cluster, "t", "ch")
    users = {"vie": ("viewer", "1"), "ope": ("operator", "2")}
    log = tmp_path / "audit.log"
    admin = start_admin(user_file=str(user_file(tmp_path, users)), audit_log_file=str(log))
    assert admin.post("/api/topics/t/ch", SET).status == 401
    assert admin.post("/api/topics/t/ch", SET, authorization=basic("vie", "1")).status == 403
    elsewhere = {"authorization": basic("ope", "2"), "origin": "http://elsewhere.example"}
    assert admin.post("/api/topics/t/ch", SET, **elsewhere).status == 403
    assert admin.post("/api/topics/t/ch", SET, authorization=basic("ope", "2")).status == 200
    assert admin.post("/api/topics/t/ch", CLEAR, authorization=basic("ope", "2")).status == 200
    done = [deed for deed in map(json.loads, log.read_text().splitlines()) if deed["outcome"] == "done"]
    assert [(deed["user"], deed["action"], deed["channel"]) for deed in done] == [
        ("ope", "set_channel_policy", "ch"),
        ("ope", "clear_channel_policy", "ch"),
    ]
    assert done[0]["detail"] == "5 attempts, then t.dead"
