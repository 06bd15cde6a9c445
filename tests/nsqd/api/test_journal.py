"""GET /journal and GET /topic/peek over real sockets, from a real journal; and what /stats tells of it."""

from __future__ import annotations

import base64
import os
import threading
from typing import Any
from uuid import UUID

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import format_moment, parse_moment
from emberq.broker.journaled_topic import JournaledTopic
from emberq.nsqd.api import journal
from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nsqd(journal=True)

MIB = 1024 * 1024


def publish(http: HttpClient, *bodies: bytes) -> None:
    """One batch to topic `t`."""
    assert http.post("/mpub?topic=t", b"\n".join(bodies)).status == 200


def peek(http: HttpClient, arguments: str = "") -> Any:
    answer = http.get(f"/topic/peek?topic=t{arguments}")
    assert answer.status == 200, answer.body
    return answer.json()


def peeked_bodies(http: HttpClient, arguments: str = "") -> list[str]:
    return [message["body"] for message in peek(http, arguments)["messages"]]


# The journal as a whole.


def test_a_journal_tells_where_it_begins_and_ends_and_how_far_its_channels_are(
    nsqd: NsqdHarness, http: HttpClient
) -> None:
    nsqd.create_channel("t", "slow")
    nsqd.create_channel("t", "fast")
    published = format_moment(nsqd.clock.wall_ns())
    publish(http, b"a", b"b", b"c")
    consumer = nsqd.consumer("t", "fast", rdy=3)
    for _ in range(2):
        consumer.fin(consumer.read_message())
    consumer.read_message()
    wait_until(lambda: nsqd.channel("t", "fast").in_flight_count == 1)
    (segment,) = (nsqd.data_path / "t.journal").glob("*.log")
    told = http.get("/journal?topic=t").json()
    assert str(UUID(told["uuid"])) == told["uuid"]
    assert parse_moment(told["created"]) is not None
    assert told == {
        "topic_name": "t",
        "uuid": told["uuid"],
        "created": told["created"],
        "first_offset": 0,
        "next_offset": 3,
        "synced_offset": 3,
        "bytes": segment.stat().st_size,
        "oldest": published,
        "newest": published,
        "sync": "always",
        "segment_bytes": 128 * 1024 * 1024,
        "retention": {"bytes": None, "max_bytes": None, "time_ms": 24 * 3600 * 1000},
        "segments": [{"file": segment.name, "base_offset": 0, "next_offset": 3, "bytes": segment.stat().st_size}],
        "gaps": [],
        "jumps": [],
        "problem": None,
        "channels": [
            {"channel_name": "fast", "low_water": 2, "lag": 1},
            {"channel_name": "slow", "low_water": 0, "lag": 3},
        ],
    }


def test_a_journal_tells_when_its_oldest_and_its_newest_message_were_published(
    nsqd: NsqdHarness, http: HttpClient
) -> None:
    http.post("/topic/create?topic=t")
    empty = http.get("/journal?topic=t").json()
    assert (empty["oldest"], empty["newest"]) == (None, None)
    began_ns = nsqd.clock.wall_ns()
    publish(http, b"a", b"b")
    nsqd.clock.advance(seconds=1)
    publish(http, b"c")
    told = http.get("/journal?topic=t").json()
    assert told["oldest"] == format_moment(began_ns)
    assert told["newest"] == format_moment(began_ns + NS_PER_SECOND)


@pytest.mark.nsqd(
    journal=True,
    journal_sync="interval",
    journal_segment_bytes=2 * MIB,
    journal_retention_bytes=10 * MIB,
    journal_max_bytes=20 * MIB,
    journal_retention_time_ns=0,
)
def test_a_journal_tells_what_it_is_kept_by(http: HttpClient) -> None:
    http.post("/topic/create?topic=t")
    told = http.get("/journal?topic=t").json()
    assert told["sync"] == "interval"
    assert told["segment_bytes"] == 2 * MIB
    assert told["retention"] == {"bytes": 10 * MIB, "max_bytes": 20 * MIB, "time_ms": None}


def test_an_ephemeral_channel_has_no_place_in_the_journal(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c#ephemeral")
    assert http.get("/journal?topic=t").json()["channels"] == []


@pytest.mark.parametrize("path", ["/journal", "/topic/peek"])
@pytest.mark.nsqd(journal_topic=("^t$",))
def test_a_topic_must_be_named_exist_and_be_journaled(http: HttpClient, path: str) -> None:
    http.post("/topic/create?topic=classic")
    assert http.get(path).error == (400, "MISSING_ARG_TOPIC")
    assert http.get(f"{path}?topic=$").error == (400, "INVALID_TOPIC")
    assert http.get(f"{path}?topic=none").error == (404, "TOPIC_NOT_FOUND")
    assert http.get(f"{path}?topic=classic").error == (404, "TOPIC_NOT_JOURNALED")


# Messages, for people.


def test_messages_are_shown_from_the_oldest_on(nsqd: NsqdHarness, http: HttpClient) -> None:
    wall_ns = nsqd.clock.wall_ns()
    publish(http, "grüße".encode(), b"\xff")
    assert peek(http) == {
        "messages": [
            {"offset": 0, "id": "0000000000000000", "timestamp": wall_ns, "body": "grüße"},
            {
                "offset": 1,
                "id": "0000000000000001",
                "timestamp": wall_ns,
                "body_base64": base64.b64encode(b"\xff").decode(),
            },
        ],
        "next_offset": 2,
        "gaps": [],
    }


def test_messages_that_were_finished_are_shown_all_the_same(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a")
    consumer = nsqd.consumer("t", "c", rdy=1)
    message = consumer.read_message()
    consumer.fin(message)
    (shown,) = peek(http)["messages"]
    assert shown["id"] == message.id.decode()


def test_a_deferred_message_shows_when_it_is_due(nsqd: NsqdHarness, http: HttpClient) -> None:
    http.post("/pub?topic=t&defer=5000", b"later")
    (shown,) = peek(http)["messages"]
    assert shown["due"] == shown["timestamp"] + 5000 * 1_000_000


@pytest.mark.parametrize(
    ("arguments", "bodies", "next_offset"),
    [
        ("", [str(number) for number in range(10)], 10),
        ("&count=2", ["0", "1"], 2),
        ("&offset=2&count=3", ["2", "3", "4"], 5),
        ("&offset=11", ["11"], 12),
        ("&offset=12", [], 12),
        ("&offset=earliest&count=1", ["0"], 1),
        ("&offset=latest", [], 12),
    ],
)
def test_a_peek_begins_anywhere_and_tells_where_to_go_on(
    http: HttpClient, arguments: str, bodies: list[str], next_offset: int
) -> None:
    for first in (0, 4, 8):
        publish(http, *(b"%d" % number for number in range(first, first + 4)))
    assert peeked_bodies(http, arguments) == bodies
    assert peek(http, arguments)["next_offset"] == next_offset


def test_a_peek_may_begin_at_a_moment(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"before")
    nsqd.advance(ms=60_000)
    moment = format_moment(nsqd.clock.wall_ns())
    publish(http, b"after")
    assert peeked_bodies(http, f"&offset={moment}") == ["after"]


def test_a_peek_at_large_messages_shows_fewer_of_them(http: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_PEEK_BYTES", 10)
    publish(http, b"12345", b"67890", b"x")
    publish(http, b"a" * 11)
    assert (peeked_bodies(http), peek(http)["next_offset"]) == (["12345", "67890"], 2)
    assert peeked_bodies(http, "&offset=3") == ["a" * 11]


def test_a_peek_shows_what_is_missing(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a" * 100)
    publish(http, b"b")
    (segment,) = (nsqd.data_path / "t.journal").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"aaaa")] ^= 1
    segment.write_bytes(content)
    shown = peek(http)
    assert [message["offset"] for message in shown["messages"]] == [1]
    (gap,) = shown["gaps"]
    assert (gap["first_offset"], gap["next_offset"]) == (0, 1)


def test_a_peek_is_for_a_place_in_the_journal_and_a_few_messages(http: HttpClient) -> None:
    publish(http, b"a")
    assert http.get("/topic/peek?topic=t&offset=x").error == (400, "INVALID_ARG_OFFSET")
    assert http.get("/topic/peek?topic=t&count=0").error == (400, "INVALID_ARG_COUNT")
    assert http.get("/topic/peek?topic=t&count=101").error == (400, "INVALID_ARG_COUNT")
    ahead = http.get("/topic/peek?topic=t&offset=2")
    assert (ahead.status, ahead.json()) == (409, {"message": "OFFSET_AHEAD", "next_offset": 1})


# Statistics.


@pytest.mark.nsqd(journal_topic=("^t$",))
def test_stats_tell_of_journals_and_leave_classic_topics_as_they_are(nsqd: NsqdHarness, http: HttpClient) -> None:
    http.post("/topic/create?topic=classic")
    nsqd.create_channel("t", "c")
    publish(http, b"a", b"b")
    classic, journaled = http.get("/stats?format=json").json()["topics"]
    assert "is_journaled" not in classic
    assert "journal" not in classic
    assert journaled["is_journaled"] is True
    size_bytes = http.get("/journal?topic=t").json()["bytes"]
    assert journaled["journal"] == {
        "first_offset": 0, "next_offset": 2, "synced_offset": 2, "bytes": size_bytes, "lag": 2, "problem": None,
    }  # fmt: skip


def test_metrics_tell_of_journals(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    publish(http, b"a", b"b")
    lines = http.get("/metrics").text.splitlines()
    assert 'nsqd_topic_journal_first_offset{topic="t"} 0' in lines
    assert 'nsqd_topic_journal_next_offset{topic="t"} 2' in lines
    assert 'nsqd_topic_journal_synced_offset{topic="t"} 2' in lines
    assert 'nsqd_topic_journal_lag{topic="t"} 2' in lines
    assert f'nsqd_topic_journal_bytes{{topic="t"}} {http.get("/journal?topic=t").json()["bytes"]}' in lines


# Authorization.


@pytest.mark.parametrize("target", ["/journal?topic=t", "/journal/read?topic=t&offset=0", "/topic/peek?topic=t"])
def test_reading_a_journal_needs_subscribe_on_the_whole_topic(start_nsqd: StartNsqd, target: str) -> None:
    with AuthServer(grant(entry())) as server:
        nsqd = start_nsqd(journal=True, auth_http_address=(server.address,), auth_http_api=True)
        nsqd.create_channel("t", "c")
        http = HttpClient(nsqd.http_address)

        def status_for(secret: str, answer: dict[str, Any]) -> int:
            server.answer = answer
            return http.request("GET", target, headers={"Authorization": f"Bearer {secret}"}).status

        assert http.get(target).error == (401, "UNAUTHORIZED")
        assert status_for("reader", grant(entry(topic="^t$", permissions=["subscribe"]))) == 200
        assert status_for("publisher", grant(entry(permissions=["publish"]))) == 403
        assert status_for("other", grant(entry(topic="^x$"))) == 403
        assert status_for("one channel", grant(entry(channels=["^c$"]))) == 403


def test_seeking_needs_subscribe_on_the_channel(start_nsqd: StartNsqd) -> None:
    target = "/channel/seek?topic=t&channel=c&to=latest"
    with AuthServer(grant(entry(channels=["^c$"], permissions=["subscribe"]))) as server:
        nsqd = start_nsqd(journal=True, auth_http_address=(server.address,), auth_http_api=True)
        nsqd.create_channel("t", "c")
        nsqd.create_channel("t", "x")
        http = HttpClient(nsqd.http_address)
        shown = {"Authorization": "Bearer s"}
        assert http.post(target).error == (401, "UNAUTHORIZED")
        assert http.request("POST", target, headers=shown).status == 200
        assert http.request("POST", target.replace("channel=c", "channel=x"), headers=shown).status == 403


# What takes long.


@pytest.mark.nsqd(journal=True, journal_segment_bytes=MIB)
def test_nothing_is_searched_on_the_loop(nsqd: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    nsqd.create_channel("t", "c")
    for _ in range(20):
        publish(http, b"x" * 100_000)
    loop_thread = nsqd.call(threading.get_ident)
    nsqd.call(lambda: journaled(nsqd).journal.release_files())
    for index in (nsqd.data_path / "t.journal").glob("*.idx"):
        index.unlink()
    readers: set[int] = set()
    pread = os.pread

    def seen_pread(fd: int, length: int, position: int) -> bytes:
        readers.add(threading.get_ident())
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", seen_pread)
    moment = format_moment(nsqd.clock.wall_ns())
    for path in ("/journal?topic=t", "/topic/peek?topic=t&offset=7", "/journal/read?topic=t&offset=7"):
        assert http.get(path).status == 200
    assert http.post(f"/channel/seek?topic=t&channel=c&to={moment}", b"").json() == {"offset": 0}
    assert http.post(f"/channel/create?topic=t&channel=d&from={moment}", b"").status == 200
    assert readers
    assert loop_thread not in readers


def journaled(nsqd: NsqdHarness) -> JournaledTopic:
    topic = nsqd.broker.find_topic("t")
    assert isinstance(topic, JournaledTopic)
    return topic
