"""Policies and redrive over real sockets, and what /stats tells of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.waiting import wait_until

POLICY = {"max_attempts": 2, "dead_letter_topic": "t.dead"}
CHANNEL = "/channel/policy?topic=t&channel=c"


@pytest.fixture(params=[False, True], ids=["classic", "journaled"])
def nsqd(start_nsqd: StartNsqd, request: pytest.FixtureRequest) -> NsqdHarness:
    nsqd = start_nsqd(journal=request.param)
    nsqd.create_channel("t", "c")
    return nsqd


def set_policy(http: HttpClient, policy: Any = POLICY) -> None:
    answer = http.post(CHANNEL, json.dumps(policy).encode())
    assert (answer.status, answer.json()) == (200, policy)


def kill(nsqd: NsqdHarness, http: HttpClient, *bodies: bytes) -> None:
    """Have messages die, and their letters wait in the channel `r`."""
    nsqd.create_channel("t.dead", "r")
    set_policy(http)
    http.post("/mpub?topic=t", b"\n".join(bodies))
    consumer = nsqd.consumer("t", "c", rdy=len(bodies))
    for _ in range(2 * len(bodies)):
        consumer.req(consumer.read_message())

    def are_dead() -> bool:
        nsqd.advance(ms=1)
        return nsqd.channel("t.dead", "r").depth == len(bodies)

    wait_until(are_dead)
    consumer.close()


def channel_stats(http: HttpClient, topic: str, channel: str) -> dict[str, Any]:
    document = http.get(f"/stats?format=json&topic={topic}&channel={channel}").json()
    stats: dict[str, Any] = document["topics"][0]["channels"][0]
    return stats


# Policies.


def test_a_policy_can_be_set_read_changed_and_removed(http: HttpClient) -> None:
    assert http.get(CHANNEL).json() == {}
    set_policy(http)
    assert http.get(CHANNEL).json() == POLICY
    set_policy(http, {**POLICY, "max_attempts": 65535})
    assert http.get(CHANNEL).json()["max_attempts"] == 65535
    set_policy(http, {})
    assert http.get(CHANNEL).json() == {}
    set_policy(http)
    assert http.post(CHANNEL).json() == {}
    assert http.get(CHANNEL).json() == {}


def test_a_policy_outlives_a_restart(nsqd: NsqdHarness, http: HttpClient) -> None:
    set_policy(http)
    nsqd.restart()
    assert HttpClient(nsqd.http_address).get(CHANNEL).json() == POLICY


def test_the_messages_of_a_journaled_topic_do_not_die_into_one_that_is_not(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal_topic=("^t$",))
    nsqd.create_channel("t", "c")
    nsqd.create_channel("t.dead", "r")
    http = HttpClient(nsqd.http_address)
    refused = http.post(CHANNEL, json.dumps(POLICY).encode())
    assert (refused.status, refused.json()) == (400, {"message": "DEAD_LETTER_TOPIC_NOT_JOURNALED"})
    made = http.post("/channel/create?topic=t&channel=new&max_attempts=2&dead_letter_topic=t.dead")
    assert (made.status, made.json()) == (400, {"message": "DEAD_LETTER_TOPIC_NOT_JOURNALED"})
    assert http.post("/topic/delete?topic=t.dead").status == 200
    set_policy(http)
    nsqd.create_channel("t.dead", "r")
    assert [topic["is_journaled"] for topic in http.get("/stats?format=json").json()["topics"]] == [True, True]


def test_a_channel_can_be_made_with_a_policy(http: HttpClient) -> None:
    made = http.post("/channel/create?topic=t&channel=new&max_attempts=2&dead_letter_topic=t.dead")
    assert (made.status, made.body) == (200, b"")
    assert http.get("/channel/policy?topic=t&channel=new").json() == POLICY
    http.post("/channel/create?topic=t&channel=new")
    assert http.get("/channel/policy?topic=t&channel=new").json() == POLICY


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"max_attempts": 2}, "INVALID_DEAD_LETTER_TOPIC"),
        ({"dead_letter_topic": "d"}, "INVALID_MAX_ATTEMPTS"),
        ({"max_attempts": 0, "dead_letter_topic": "d"}, "INVALID_MAX_ATTEMPTS"),
        ({"max_attempts": 65536, "dead_letter_topic": "d"}, "INVALID_MAX_ATTEMPTS"),
        ({"max_attempts": "2", "dead_letter_topic": "d"}, "INVALID_MAX_ATTEMPTS"),
        ({"max_attempts": True, "dead_letter_topic": "d"}, "INVALID_MAX_ATTEMPTS"),
        ({"max_attempts": 2, "dead_letter_topic": "no name"}, "INVALID_DEAD_LETTER_TOPIC"),
        ({"max_attempts": 2, "dead_letter_topic": "d#ephemeral"}, "INVALID_DEAD_LETTER_TOPIC"),
        ({"max_attempts": 2, "dead_letter_topic": 7}, "INVALID_DEAD_LETTER_TOPIC"),
        ({"max_attempts": 2, "dead_letter_topic": "t"}, "DEAD_LETTER_CYCLE"),
        ({"max_attempt": 2}, "INVALID_POLICY"),
        ([], "INVALID_POLICY"),
        ("x", "INVALID_POLICY"),
    ],
)
def test_a_wrong_policy_is_refused_and_the_old_one_holds(http: HttpClient, policy: Any, message: str) -> None:
    set_policy(http)
    assert http.post(CHANNEL, json.dumps(policy).encode()).error == (400, message)
    assert http.get(CHANNEL).json() == POLICY


def test_what_is_no_json_is_no_policy(http: HttpClient) -> None:
    assert http.post(CHANNEL, b"{").error == (400, "INVALID_POLICY")
    assert http.post(CHANNEL, b" " * 5000).error == (413, "INVALID_POLICY")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("max_attempts=2", "INVALID_DEAD_LETTER_TOPIC"),
        ("dead_letter_topic=d", "INVALID_MAX_ATTEMPTS"),
        ("max_attempts=x&dead_letter_topic=d", "INVALID_MAX_ATTEMPTS"),
        ("max_attempts=2&dead_letter_topic=t", "DEAD_LETTER_CYCLE"),
    ],
)
def test_no_channel_is_made_with_a_wrong_policy(
    nsqd: NsqdHarness, http: HttpClient, arguments: str, message: str
) -> None:
    assert http.post(f"/channel/create?topic=t&channel=new&{arguments}").error == (400, message)
    assert not nsqd.has_channel("t", "new")


@pytest.mark.parametrize(("method", "path"), [("GET", "policy"), ("POST", "policy"), ("POST", "redrive")])
def test_the_channel_has_to_exist(http: HttpClient, method: str, path: str) -> None:
    assert http.request(method, f"/channel/{path}?channel=c").error == (400, "MISSING_ARG_TOPIC")
    assert http.request(method, f"/channel/{path}?topic=x&channel=c").error == (404, "TOPIC_NOT_FOUND")
    assert http.request(method, f"/channel/{path}?topic=t&channel=x").error == (404, "CHANNEL_NOT_FOUND")


def test_stats_tell_of_a_policy_and_of_what_it_did(nsqd: NsqdHarness, http: HttpClient) -> None:
    assert channel_stats(http, "t", "c").keys().isdisjoint({"policy", "dead_letter_count", "redriven_count"})
    kill(nsqd, http, b"1", b"2")
    stats = channel_stats(http, "t", "c")
    assert (stats["policy"], stats["dead_letter_count"]) == (POLICY, 2)
    assert b'nsqd_channel_dead_letters_total{topic="t",channel="c"} 2' in http.get("/metrics").body


# Redrive.


def test_dead_letters_are_moved_back(nsqd: NsqdHarness, http: HttpClient) -> None:
    kill(nsqd, http, b"1", b"2")
    answer = http.post("/channel/redrive?topic=t.dead&channel=r")
    assert (answer.status, answer.json()) == (200, {"moved": 2, "left": 0})
    consumer = nsqd.consumer("t", "c", rdy=2)
    assert sorted(consumer.read_message().body for _ in range(2)) == [b"1", b"2"]
    assert channel_stats(http, "t.dead", "r")["redriven_count"] == 2
    assert http.post("/channel/redrive?topic=t.dead&channel=r").json() == {"moved": 0, "left": 0}


def test_dead_letters_are_moved_elsewhere_and_as_many_as_asked(nsqd: NsqdHarness, http: HttpClient) -> None:
    kill(nsqd, http, b"1", b"2", b"3")
    assert http.post("/channel/redrive?topic=t.dead&channel=r&to=else&count=2").json() == {"moved": 2, "left": 0}
    assert nsqd.topic("else").message_count == 2
    assert nsqd.channel("t.dead", "r").depth == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("to=t", "INVALID_ARG_TO"),
        ("to=no%20name", "INVALID_ARG_TO"),
        ("count=0", "INVALID_ARG_COUNT"),
        ("count=x", "INVALID_ARG_COUNT"),
    ],
)
def test_a_wrong_redrive_is_refused(http: HttpClient, arguments: str, message: str) -> None:
    assert http.post(f"/channel/redrive?topic=t&channel=c&{arguments}").error == (400, message)


def test_a_redrive_that_fails_tells_how_far_it_came(nsqd: NsqdHarness, http: HttpClient) -> None:
    kill(nsqd, http, b"1", b"2")
    nsqd.call(lambda: setattr(nsqd.broker.gate, "reason", "disk space low"))
    answer = http.post("/channel/redrive?topic=t.dead&channel=r")
    assert (answer.status, answer.json()) == (503, {"message": "DISK_SPACE_LOW", "moved": 0})
    assert nsqd.channel("t.dead", "r").depth == 2


# Who may.


def test_a_policy_needs_publish_on_its_topic_too(start_nsqd: StartNsqd) -> None:
    with AuthServer(grant(entry(topic="^t$"))) as server:
        nsqd = start_nsqd(auth_http_address=(server.address,), auth_http_api=True)
        nsqd.create_channel("t", "c")
        http = HttpClient(nsqd.http_address)
        secret = {"Authorization": "Bearer secret"}
        made = "/channel/create?topic=t&channel=n&max_attempts=2&dead_letter_topic"
        assert http.request("GET", CHANNEL, headers=secret).status == 200
        assert http.request("POST", f"{made}=other", headers=secret).status == 403
        assert http.request("POST", CHANNEL, b"{}", headers=secret).status == 403
        assert http.request("POST", "/channel/redrive?topic=t&channel=c", headers=secret).status == 403
        assert http.request("POST", f"{made}=t", headers=secret).error == (400, "DEAD_LETTER_CYCLE")
