"""Which channels need attention, and the one search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from emberq.admin import attention as module
from emberq.admin.attention import channels_view, dead_letters_view, reasons_of, search_view
from emberq.admin.history import History
from emberq.admin.view import Look
from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.survey import Rates, Survey, Total
from emberq.embedded import EmbeddedThread
from tests.support.admin_rig import AdminThread, of_cluster
from tests.support.cluster_rig import channel_entry, seen, topic_entry
from tests.support.embedded import create, publish
from tests.support.raw_client import Client

QUIET = Rates(came=0, left=0)
BUSY = Rates(came=10, left=10)


@pytest.mark.parametrize(
    ("figures", "rates", "expected"),
    [
        ({}, QUIET, []),
        ({"depth": 5, "client_count": 1}, BUSY, []),
        ({"depth": 5}, None, ["no_consumers"]),
        ({"depth": 5, "client_count": 1}, Rates(came=5, left=0), ["stuck", "growing"]),
        ({"depth": 5, "client_count": 1}, Rates(came=12, left=10), ["growing"]),
        ({"depth": 5, "client_count": 1}, Rates(came=1000, left=995), []),
        ({"depth": 0, "client_count": 1}, Rates(came=10, left=10, dead_lettered=9), ["dead_letters"]),
        ({"depth": 3, "client_count": 1}, Rates(came=10, left=10, requeued=2), ["requeued"]),
    ],
)
def test_the_reasons(figures: dict[str, Any], rates: Rates | None, expected: list[str]) -> None:
    assert reasons_of(Total(**figures), rates, is_paused=False) == expected


def test_what_is_paused_does_what_it_was_told() -> None:
    channel = Total(depth=5, client_count=1)
    assert reasons_of(channel, Rates(came=5, left=0), is_paused=True) == ["paused"]


class Recorded:
    """Looks at a topic with two channels, every ten seconds: `calm` is worked off, `grows` has no consumers."""

    def __init__(self) -> None:
        self.history = History(interval_ns=10 * NS_PER_SECOND, duration_ns=60 * NS_PER_SECOND)
        self.survey: Survey | None = None
        self._now_s = 0

    def look(self, count: int, **fields: Any) -> Look:
        self._now_s += 10
        calm = channel_entry("calm", message_count=count, client_count=2)
        grows = channel_entry("grows", message_count=count, depth=count)
        self.survey = seen(before=self.survey, at_s=self._now_s, a=[topic_entry("t", calm, grows, **fields)])
        look = Look(self.survey, names=("idle", "t"), taken_ns=self._now_s * NS_PER_SECOND)
        self.history.record(look, now_ns=self._now_s * NS_PER_SECOND)
        return look

    def channels(self, look: Look) -> dict[str, dict[str, Any]]:
        return {each["channel_name"]: each for each in channels_view(look, self.history)["channels"]}


def test_every_channel_is_told_and_what_is_worst_counts_most() -> None:
    recorded = Recorded()
    recorded.look(0)
    found = recorded.channels(recorded.look(30))
    assert found["grows"]["reasons"] == ["no_consumers", "growing"]
    assert found["calm"]["reasons"] == []
    assert found["grows"]["attention"] > found["calm"]["attention"] == 0
    assert (found["grows"]["in_rate"], found["grows"]["finish_rate"]) == (3.0, 0.0)
    assert (found["calm"]["topic_name"], found["calm"]["client_count"], found["calm"]["node_count"]) == ("t", 2, 1)


def test_a_channel_of_a_paused_topic_says_so() -> None:
    found = Recorded()
    channels = found.channels(found.look(5, paused=True))
    assert [each["reasons"] for each in channels.values()] == [["paused"], ["no_consumers", "paused"]]


def test_the_age_of_the_oldest_message_is_what_the_nsqds_tell() -> None:
    history = History(interval_ns=10 * NS_PER_SECOND, duration_ns=60 * NS_PER_SECOND)

    def told(*ages_ms: int | None) -> tuple[Any, Any]:
        fields = [{} if age_ms is None else {"oldest_age_ms": age_ms} for age_ms in ages_ms]
        here, there = ([topic_entry("t", channel_entry("c", depth=1, **each))] for each in fields)
        (channel,) = channels_view(Look(seen(a=here, b=there)), history)["channels"]
        return channel["oldest_s"], channel["is_reckoned"]

    assert told(2500, 90_000) == (90.0, False)
    assert told(2500, None) == (None, False)  # what waits on the other node may be older, and there is no history


def test_dead_letters_are_listed_with_the_places_where_they_wait() -> None:
    history = History(interval_ns=10 * NS_PER_SECOND, duration_ns=60 * NS_PER_SECOND)
    policy = {"max_attempts": 3, "dead_letter_topic": "dead"}

    def cluster(count: int) -> dict[str, Any]:
        failing = channel_entry("mail", dead_letter_count=count, message_count=count, policy=policy)
        here = [
            topic_entry("orders", failing, channel_entry("calm")),
            topic_entry("dead", channel_entry("review", depth=count, oldest_age_ms=5000), channel_entry("store")),
        ]
        other = {"max_attempts": 3, "dead_letter_topic": "unread"}
        there = [
            topic_entry("users", channel_entry("mail", policy=other), channel_entry("old", dead_letter_count=7)),
            topic_entry("unread", depth=4),
        ]
        return {"a": here, "b": there}

    before = seen(**cluster(10))
    lines = dead_letters_view(Look(seen(before=before, at_s=11, **cluster(30))), history)["dead_letters"]
    shown = ("topic_name", "channel_name", "dead_letter_count", "dead_letter_rate", "dead_letter_topic", "place")
    assert [tuple(line[name] for name in (*shown, "waiting", "oldest_s")) for line in lines] == [
        ("orders", "mail", 30, 2.0, "dead", "review", 30, 5.0),
        ("orders", "mail", 30, 2.0, "dead", "store", 0, None),
        ("users", "mail", 0, 0, "unread", "", 4, None),  # no channel takes them
        ("users", "old", 7, 0, "", "", 0, None),  # its policy was cleared
    ]


def test_the_age_of_the_oldest_message_follows_from_what_came_in() -> None:
    recorded = Recorded()
    ages = [recorded.channels(recorded.look(count))["grows"] for count in (10, 10, 40, 50)]
    # Ten were there when the history began, so the oldest is as old as the history, or older.
    assert [(each["oldest_s"], each["is_older"]) for each in ages[1:]] == [(20.0, True), (30.0, True), (40.0, True)]
    assert recorded.history.waiting_s("t", "grows", 10) == (10.0, False)
    assert recorded.history.waiting_s("t", "grows", 25) == (15.0, False)
    assert recorded.history.waiting_s("t", "grows", 0) == (None, False)
    assert recorded.history.waiting_s("t", "other", 10) == (None, False)


def test_the_last_depths_are_told_by_topic_and_channel() -> None:
    recorded = Recorded()
    for count in (1, 2, 3):
        recorded.look(count)
    assert recorded.history.recent_depths()["channels"] == {"t": {"calm": [0, 0, 0], "grows": [1, 2, 3]}}


def test_more_channels_than_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHANNEL_LINES", 1)
    recorded = Recorded()
    document = channels_view(recorded.look(1), recorded.history)
    assert len(document["channels"]) == 1
    assert "1 channels are shown, and there may be more" in document["message"]


def test_a_search_finds_topics_channels_and_nodes() -> None:
    look = Recorded().look(4)
    found = search_view(look, "T GROWS")
    assert [each["channel_name"] for each in found["channels"]] == ["grows"]
    assert found["topics"] == []
    assert [each["topic_name"] for each in search_view(look, "idle")["topics"]] == ["idle"]
    by_host = search_view(look, "HOST")
    assert [each["node"] for each in by_host["nodes"]] == ["a:4151"]
    assert by_host["nodes"][0]["depth"] == 4
    assert by_host["counts"] == {"topics": 0, "channels": 0, "nodes": 1}
    assert search_view(look, "t")["channels"] == []  # the channels of a topic are on its page


@pytest.fixture(scope="module")
def nsq() -> Iterator[EmbeddedThread]:
    with EmbeddedThread(nsqd_count=2) as nsq:
        yield nsq


@pytest.fixture(scope="module")
def admin(nsq: EmbeddedThread) -> Iterator[AdminThread]:
    with of_cluster(nsq) as admin:
        yield admin


def test_a_search_of_a_real_cluster_finds_consumers_on_every_node(nsq: EmbeddedThread, admin: AdminThread) -> None:
    create(nsq, "orders", "billing")
    publish(nsq, "orders", b"1")
    clients = []
    for address in nsq.nsqd_tcp_addresses:
        host, _, port = address.partition(":")
        client = Client((host, int(port)))
        client.identify(client_id="worker-7", hostname="web-3.example")
        client.sub("orders", "billing")
        clients.append(client)
    found = admin.get("/api/search/consumers?q=web-3").json()
    assert found["count"] == 2
    assert {each["node"] for each in found["consumers"]} == set(nsq.nsqd_http_addresses)
    assert {(each["topic_name"], each["channel_name"], each["client_id"]) for each in found["consumers"]} == {
        ("orders", "billing", "worker-7")
    }
    assert admin.get("/api/search/consumers?q=web-4").json()["count"] == 0
    shown = admin.get("/api/search?q=bill").json()
    assert [each["channel_name"] for each in shown["channels"]] == ["billing"]
    assert admin.get("/api/view?view=channels").json()["channels"][0]["channel_name"] == "billing"
    for client in clients:
        client.close()


@pytest.mark.parametrize("path", ["/api/search", "/api/search/consumers?q=", "/api/search?q=%20"])
def test_a_search_for_nothing_is_refused(admin: AdminThread, path: str) -> None:
    answer = admin.get(path)
    assert (answer.status, answer.json()["message"]) == (400, "MISSING_ARG_Q")
