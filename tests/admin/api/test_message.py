"""Messages and journals through nsqadmin, on real nsqds."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, of_cluster
from tests.support.embedded import create, publish
from tests.support.recording_daemon import RecordingDaemon


@pytest.fixture
def journaled() -> Iterator[EmbeddedThread]:
    """Two nsqds that journal every topic."""
    with EmbeddedThread(nsqd_count=2, journal=True) as nsq:
        yield nsq


@pytest.fixture
def journal_admin(journaled: EmbeddedThread) -> Iterator[AdminThread]:
    with of_cluster(journaled) as admin:
        yield admin


@pytest.fixture
def foreign() -> Iterator[str]:
    """The address of an nsqd that knows nothing of what emberq added."""
    with RecordingDaemon("nsqd", {}, []) as nsqd:
        nsqd.answers = {
            "/info": {"broadcast_address": "127.0.0.1", "hostname": "go", "http_port": nsqd.port, "version": "1.3.0"},
            "/stats": {"topics": [{"topic_name": "t", "channels": [{"channel_name": "ch"}]}]},
        }
        yield nsqd.address


# Peeking


def test_waiting_messages_of_all_nodes_are_shown(admin: AdminThread, cluster: EmbeddedThread) -> None:
    for node in (0, 1):
        create(cluster, "t", "ch", node=node)
    publish(cluster, "t", b"first", node=0)
    publish(cluster, "t", b"\xff\xfe", node=1)
    publish(cluster, "t", b"</script><b>", node=0)
    answer = admin.get("/api/peek/t/ch?count=3")
    first, second, third = answer.json()["messages"]
    assert first["body"] == "first"
    assert first["nsqd"] == cluster.nsqd_http_addresses[0]
    assert first["attempts"] == 0
    assert base64.b64decode(second["body_base64"]) == b"\xff\xfe"
    assert third["body"] == "</script><b>"
    assert b"<" not in answer.body
    assert admin.get("/api/topics/t/ch").json()["depth"] == 3


@pytest.fixture
def mixed(cluster: EmbeddedThread) -> EmbeddedThread:
    """A channel on both nsqds with JSON, text, bytes and a dead letter."""
    for node in (0, 1):
        create(cluster, "t", "ch", node=node)
    orders = [json.dumps({"order": number, "customer": {"name": "Ada"}, "tags": ["x", None]}) for number in range(12)]
    publish(cluster, "t", *(order.encode() for order in orders), node=0)
    publish(cluster, "t", b"Plain TEXT", b"\xff\xfe", dead_letter('{"order": 99}'), node=1)
    return cluster


PEEKS = {
    "": 15,
    "text=plain": 1,
    "text=ada": 12,
    "path=order": 13,  # in a dead letter, of the message inside
    "path=order=3": 1,
    "path=order=99": 1,
    "path=customer.name=Ada": 12,
    "path=$.customer.name=Ida": 0,
    "path=tags.0=x": 12,
    "path=tags.1=null": 12,
    "path=tags.2": 0,
    "path=order&text=99": 1,
    "min_attempts=1": 0,
    "min_age=0": 15,
    "min_age=1000": 0,
}
"""How many of the messages are meant."""


def test_a_peek_shows_those_that_are_wanted(admin: AdminThread, mixed: EmbeddedThread) -> None:
    for query, matched in PEEKS.items():
        answer = admin.get(f"/api/peek/t/ch?skip=0&{query}").json()
        assert (query, answer["examined"], answer["matched"]) == (query, 15, matched)
        assert len(answer["messages"]) == min(matched, 10)


def test_a_peek_turns_pages(admin: AdminThread, mixed: EmbeddedThread) -> None:
    pages = [admin.get(f"/api/peek/t/ch?skip={skip}&count=6").json()["messages"] for skip in (0, 6, 12, 18)]
    assert list(map(len, pages)) == [6, 6, 3, 0]
    assert len({message["id"] + message["nsqd"] for page in pages for message in page}) == 15


def test_what_is_no_number_is_refused(admin: AdminThread, mixed: EmbeddedThread) -> None:
    for name in ("skip", "min_attempts", "min_age"):
        assert admin.get(f"/api/peek/t/ch?{name}=-1").error == (400, f"INVALID_ARG_{name.upper()}")


def test_at_most_so_many_messages_are_shown_as_asked_for(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    publish(cluster, "t", b"1", b"2", b"3")
    assert len(admin.get("/api/peek/t/ch?count=2").json()["messages"]) == 2
    for count in ("0", "101", "x", "-1", "%C2%B2", "9" * 5000, "000000001" + "0" * 5000):
        assert admin.get(f"/api/peek/t/ch?count={count}").error == (400, "INVALID_ARG_COUNT")


def test_a_channel_that_is_not_there_cannot_be_peeked_into(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    assert admin.get("/api/peek/t/nope").error == (404, "CHANNEL_NOT_FOUND")


# Publishing


def test_a_message_is_published(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch", node=1)
    answer = admin.post("/api/publish/t", {"body": "héllo"})
    assert (answer.status, answer.json()) == (200, {"message": "", "node": cluster.nsqd_http_addresses[1]})
    (message,) = admin.get("/api/peek/t/ch").json()["messages"]
    assert message["body"] == "héllo"


def test_bytes_are_published_to_the_node_asked_for(admin: AdminThread, cluster: EmbeddedThread) -> None:
    for node in (0, 1):
        create(cluster, "t", "ch", node=node)
    body = {"body_base64": base64.b64encode(b"\xff").decode(), "node": cluster.nsqd_http_addresses[1]}
    assert admin.post("/api/publish/t", body).status == 200
    (message,) = admin.get("/api/peek/t/ch").json()["messages"]
    assert message["nsqd"] == cluster.nsqd_http_addresses[1]


def test_a_message_can_be_deferred(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    assert admin.post("/api/publish/t", {"body": "later", "defer_ms": 60_000}).status == 200
    channel = admin.get("/api/topics/t/ch").json()
    assert (channel["depth"], channel["deferred_count"]) == (0, 1)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"body": ""}, (400, "MSG_EMPTY")),
        ({"body_base64": "%"}, (400, "INVALID_MESSAGE")),
        ({"body_base64": "é"}, (400, "INVALID_MESSAGE")),
        ({"body": "\ud800"}, (400, "INVALID_MESSAGE")),
        ({"body": 5}, (400, "body must be a string")),
        ({"body": "x", "defer_ms": -1}, (400, "INVALID_DEFER")),
        ({"body": "x", "defer_ms": True}, (400, "defer_ms must be a whole number")),
        ({"body": "x" * (1024 * 1024 + 1)}, (400, "MSG_TOO_BIG")),
        ({"body": "x", "node": "nope:1"}, (404, "NODE_NOT_FOUND")),
    ],
)
def test_what_cannot_be_published_is_refused(
    admin: AdminThread, cluster: EmbeddedThread, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    create(cluster, "t")
    answer = admin.post("/api/publish/t", body)
    assert (answer.status, answer.json()["message"]) == refusal


# Journals


def test_the_journal_of_each_node_is_shown(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    create(journaled, "t", "ch", node=0)
    create(journaled, "t", node=1)
    publish(journaled, "t", b"one", b"two", node=0)
    answer = journal_admin.get("/api/journal/t").json()
    assert answer["message"] == ""
    by_node = {journal["node"]: journal for journal in answer["nodes"]}
    assert set(by_node) == set(journaled.nsqd_http_addresses)
    journal = by_node[journaled.nsqd_http_addresses[0]]
    assert (journal["first_offset"], journal["next_offset"]) == (0, 2)
    assert journal["channels"] == [{"channel_name": "ch", "low_water": 0, "lag": 2}]
    assert (journal["sync"], journal["retention"]) == (
        "always",
        {"bytes": None, "max_bytes": None, "time_ms": 24 * 3600 * 1000},
    )
    assert journal["oldest"] <= journal["newest"]
    assert journal["problem"] is None
    assert by_node[journaled.nsqd_http_addresses[1]]["oldest"] is None


def test_a_topic_without_a_journal_has_none_to_show(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    assert admin.get("/api/journal/t").json() == {"nodes": [], "message": ""}
    assert admin.get("/api/journal/nope").status == 502


def test_what_no_browser_could_read_of_a_journal_is_not_passed_on(foreign: str) -> None:
    with RecordingDaemon("nsqd", {}, []) as nsqd:
        nsqd.answers = {
            "/info": {"broadcast_address": "127.0.0.1", "hostname": "h", "http_port": nsqd.port, "version": "1.3.0"},
            "/stats": {"topics": [{"topic_name": "t", "channels": [{"channel_name": "ch"}]}]},
            "/journal": {"first_offset": math.nan, "next_offset": math.inf},
            "/channel/seek": {"offset": math.nan},
        }
        with AdminThread(nsqd_http_address=(nsqd.address, foreign)) as admin:
            shown = admin.get("/api/journal/t")
            assert shown.status == 200
            assert "numbers that are none" in shown.json()["message"]
            moved = admin.post("/api/topics/t/ch", {"action": "seek", "to": "earliest"})
            assert moved.status == 200
            assert [set(node) for node in moved.json()["nodes"]] == [{"node"}]


def test_a_place_that_cannot_be_sent_on_is_refused(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    create(journaled, "t", "ch", node=0)
    answer = journal_admin.post("/api/topics/t/ch", b'{"action":"seek","to":"\\ud800"}')
    assert answer.status == 502
    assert "cannot be sent" in answer.json()["message"]


def test_a_channel_is_moved_to_the_end_and_back(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    for node in (0, 1):
        create(journaled, "t", "ch", node=node)
        publish(journaled, "t", b"one", b"two", node=node)
    answer = journal_admin.post("/api/topics/t/ch", {"action": "seek", "to": "latest"})
    assert (answer.status, answer.json()["message"]) == (200, "")
    assert [node["offset"] for node in answer.json()["nodes"]] == [2, 2]
    assert journal_admin.get("/api/topics/t/ch").json()["depth"] == 0
    assert journal_admin.post("/api/topics/t/ch", {"action": "seek", "to": "2020-01-01T00:00:00Z"}).status == 200
    assert journal_admin.get("/api/topics/t/ch").json()["depth"] == 4


def test_what_a_seek_would_do_is_foretold(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    for node in (0, 1):
        create(journaled, "t", "ch", node=node)
        publish(journaled, "t", b"one", b"two", node=node)
    nodes = journaled.nsqd_http_addresses

    def foretold(to: str, node: str = "") -> list[tuple[int, int, int]]:
        answer = journal_admin.get(f"/api/seek/t/ch?to={to}&node={node}")
        assert (answer.status, answer.json()["message"]) == (200, "")
        return [(each["again"], each["skipped"], each["waiting"]) for each in answer.json()["nodes"]]

    assert foretold("latest") == [(0, 2, 0)] * 2
    assert foretold("2099-01-01T00:00:00Z") == [(0, 2, 0)] * 2
    assert foretold("earliest") == [(0, 0, 2)] * 2
    assert foretold("1", nodes[0]) == [(0, 1, 1)]
    assert journal_admin.get("/api/topics/t/ch").json()["depth"] == 4, "nothing was moved"
    assert journal_admin.post("/api/topics/t/ch", {"action": "seek", "to": "latest"}).status == 200
    assert foretold("2020-01-01T00:00:00Z") == [(2, 0, 2)] * 2
    assert foretold("1", nodes[1]) == [(1, 0, 1)]


def test_what_cannot_be_sought_cannot_be_foretold(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    create(journaled, "t", "ch")
    for query, refusal in (("", "INVALID_POSITION"), ("to=tomorrow", "INVALID_ARG_OFFSET"), ("to=99", "OFFSET_AHEAD")):
        assert journal_admin.get(f"/api/seek/t/ch?{query}").error == (400, refusal)
    assert journal_admin.get("/api/seek/t/nope?to=latest").error == (404, "CHANNEL_NOT_FOUND")


def test_an_offset_belongs_to_one_node(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    for node in (0, 1):
        create(journaled, "t", "ch", node=node)
        publish(journaled, "t", b"one", b"two", node=node)
    status, message = journal_admin.post("/api/topics/t/ch", {"action": "seek", "to": "1"}).error
    assert (status, message.partition(":")[0]) == (400, "NODE_REQUIRED")
    body = {"action": "seek", "to": "1", "node": journaled.nsqd_http_addresses[0]}
    assert journal_admin.post("/api/topics/t/ch", body).status == 200
    assert journal_admin.get("/api/topics/t/ch").json()["depth"] == 3
    assert journal_admin.post("/api/topics/t/ch", body | {"node": "nope:1"}).error == (404, "NODE_NOT_FOUND")


def test_a_place_that_is_none_is_refused(journal_admin: AdminThread, journaled: EmbeddedThread) -> None:
    create(journaled, "t", "ch")
    for body, refusal in (
        ({}, "INVALID_POSITION"),
        ({"to": "tomorrow"}, "INVALID_ARG_TO"),
        ({"to": "99"}, "OFFSET_AHEAD"),
    ):
        assert journal_admin.post("/api/topics/t/ch", {"action": "seek"} | body).error == (400, refusal)
    assert journal_admin.post("/api/topics/t/nope", {"action": "seek", "to": "latest"}).error == (
        404,
        "CHANNEL_NOT_FOUND",
    )


def test_a_channel_that_one_node_lacks_is_moved_on_the_others(
    journal_admin: AdminThread, journaled: EmbeddedThread
) -> None:
    create(journaled, "t", node=1)
    create(journaled, "t", "ch", node=0)
    answer = journal_admin.post("/api/topics/t/ch", {"action": "seek", "to": "latest"})
    assert answer.status == 200
    assert "CHANNEL_NOT_FOUND" in answer.json()["message"]
    assert [node["node"] for node in answer.json()["nodes"]] == [journaled.nsqd_http_addresses[0]]


def test_a_channel_without_a_journal_cannot_be_moved(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    status, message = admin.post("/api/topics/t/ch", {"action": "seek", "to": "earliest"}).error
    assert status == 501
    assert message.startswith("NOT_SUPPORTED: ")


# Dead letters


def dead_letter(body: str) -> bytes:
    envelope = {"emberq_dead_letter": 1, "topic": "orders", "channel": "billing", "id": "0" * 16, "attempts": 6}
    return json.dumps(envelope | {"timestamp_ns": 1, "reason": "max_attempts", "body": body}).encode()


def test_dead_letters_go_back_to_where_they_came_from(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "orders", "billing")
    create(cluster, "orders.dead", "ch")
    publish(cluster, "orders.dead", dead_letter("one"), dead_letter("two"))
    answer = admin.post("/api/topics/orders.dead/ch", {"action": "redrive", "count": 1})
    assert (answer.status, answer.json()) == (200, {"moved": 1, "left": 0, "waiting": 1, "message": ""})
    assert admin.get("/api/topics/orders/billing").json()["depth"] == 1
    assert admin.post("/api/topics/orders.dead/ch", {"action": "redrive"}).json()["moved"] == 1
    assert admin.get("/api/topics/orders.dead/ch").json()["depth"] == 0


def test_a_redrive_tells_what_went_what_waits_and_what_could_not(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "orders", "billing")
    create(cluster, "orders.dead", "ch")
    publish(cluster, "orders.dead", b"no envelope", dead_letter("one"), dead_letter("two"), dead_letter("three"))
    answer = admin.post("/api/topics/orders.dead/ch", {"action": "redrive", "count": 2}).json()
    assert answer == {"moved": 2, "left": 1, "waiting": 2, "message": ""}


def test_a_redrive_can_be_foreseen_without_doing_it(admin: AdminThread, cluster: EmbeddedThread) -> None:
    for node in (0, 1):
        create(cluster, "orders.dead", "ch", node=node)
    publish(cluster, "orders.dead", b"no envelope", dead_letter("one"), dead_letter("two"), node=0)
    publish(cluster, "orders.dead", dead_letter("three"), node=1)
    path = "/api/redrive/orders.dead/ch"
    foreseen = {"waiting": 4, "examined": 4, "moved": 3, "left": 1, "topics": {"orders": 3}, "message": ""}
    assert admin.get(path).json() == foreseen
    some = admin.get(f"{path}?count=1").json()
    assert (some["examined"], some["moved"], some["left"]) in [(2, 1, 1), (1, 1, 0)]  # whichever nsqd comes first
    assert admin.get(f"{path}?to=elsewhere").json()["topics"] == {"elsewhere": 4}
    assert admin.get("/api/topics/orders.dead/ch").json()["depth"] == 4
    for wrong in ("count=0", "count=x", "to=*"):
        assert admin.get(f"{path}?{wrong}").status == 400
    assert admin.get("/api/redrive/orders.dead/none").error == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("body", [{"count": 0}, {"count": 10_001}, {"to": "*"}])
def test_a_redrive_that_cannot_be_is_refused(admin: AdminThread, cluster: EmbeddedThread, body: dict[str, Any]) -> None:
    create(cluster, "t", "ch")
    assert admin.post("/api/topics/t/ch", {"action": "redrive"} | body).status == 400


# Others' nsqds


def test_what_another_nsqd_cannot_do_is_said(foreign: str) -> None:
    with AdminThread(nsqd_http_address=(foreign,)) as admin:
        assert admin.get("/api/journal/t").json() == {"nodes": [], "message": ""}
        for answer in (
            admin.get("/api/peek/t/ch"),
            admin.post("/api/topics/t/ch", {"action": "seek", "to": "earliest"}),
            admin.post("/api/topics/t/ch", {"action": "redrive"}),
        ):
            status, message = answer.error
            assert status == 501
            assert message.startswith(f"NOT_SUPPORTED: {foreign} ")


def test_what_one_of_several_nsqds_cannot_do_is_a_warning(foreign: str, journaled: EmbeddedThread) -> None:
    create(journaled, "t", "ch")
    publish(journaled, "t", b"one")
    with AdminThread(nsqd_http_address=(foreign, journaled.nsqd_http_addresses[0])) as admin:
        assert len(admin.get("/api/peek/t/ch").json()["messages"]) == 1
        for answer in (
            admin.get("/api/journal/t"),
            admin.post("/api/topics/t/ch", {"action": "seek", "to": "latest"}),
        ):
            assert answer.status == 200
            assert answer.json()["message"] == f"WARNING: {foreign} cannot do this: only emberq's nsqd can"
            assert len(answer.json()["nodes"]) == 1


def test_the_secret_for_guarded_nsqds_comes_from_a_file(start_admin: StartAdmin, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    assert start_admin(nsqd_secret_file=str(secret)).daemon.cluster.secret == b"open sesame"
