"""Topics and channels made, changed and deleted over HTTP (rows 179-186), and the HTTP half of row 128."""

from __future__ import annotations

import pytest

from tests.conformance.disk_files import read_metadata
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient


def expect_empty(answer: Answer) -> None:
    """Success, and nothing to say."""
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "content-type" not in answer.headers


@pytest.mark.conformance(179)
def test_topics_and_channels_can_be_made(nsqd: NsqdHarness, http: HttpClient) -> None:
    expect_empty(http.post("/topic/create?topic=t"))
    assert nsqd.has_topic("t")
    expect_empty(http.post("/channel/create?topic=t&channel=c%23ephemeral"))
    assert nsqd.has_channel("t", "c#ephemeral")
    expect_empty(http.post("/channel/create?topic=t&channel=c%23ephemeral"))


@pytest.mark.conformance(180)
@pytest.mark.parametrize("verb", ["pause", "unpause"])
def test_pausing_needs_a_topic_that_exists(http: HttpClient, verb: str) -> None:
    assert http.post(f"/topic/{verb}").error == (400, "MISSING_ARG_TOPIC")
    assert http.post(f"/topic/{verb}?topic=t").error == (404, "TOPIC_NOT_FOUND")


@pytest.mark.conformance(181)
def test_topics_and_channels_can_be_paused(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    expect_empty(http.post("/topic/pause?topic=t"))
    assert nsqd.topic("t").paused
    expect_empty(http.post("/topic/unpause?topic=t"))
    assert not nsqd.topic("t").paused
    expect_empty(http.post("/channel/pause?topic=t&channel=c"))
    assert nsqd.channel("t", "c").paused
    expect_empty(http.post("/channel/unpause?topic=t&channel=c"))
    assert not nsqd.channel("t", "c").paused


@pytest.mark.conformance(115, 181)
def test_a_paused_topic_keeps_its_messages(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    http.post("/topic/pause?topic=t")
    http.post("/pub?topic=t", b"x")
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (1, 0)
    http.post("/topic/unpause?topic=t")
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 1)


@pytest.mark.conformance(128)
def test_a_pause_is_on_disk_when_it_is_answered(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    http.post("/channel/pause?topic=t&channel=c")
    assert read_metadata(nsqd.data_path) == {"t": {"c": True}}
    http.post("/channel/unpause?topic=t&channel=c")
    assert read_metadata(nsqd.data_path) == {"t": {"c": False}}


@pytest.mark.conformance(128)
def test_a_paused_topic_is_paused_after_a_restart(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_topic("t")
    http.post("/topic/pause?topic=t")
    nsqd.restart()
    assert nsqd.topic("t").paused


@pytest.mark.conformance(117, 118, 182)
def test_topics_and_channels_can_be_deleted(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    expect_empty(http.post("/channel/delete?topic=t&channel=c"))
    assert not nsqd.has_channel("t", "c")
    http.post("/pub?topic=t", b"waits for a channel")
    assert nsqd.topic("t").depth == 1
    expect_empty(http.post("/topic/delete?topic=t"))
    assert not nsqd.has_topic("t")


@pytest.mark.conformance(124)
def test_deleting_a_channel_disconnects_its_consumers(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    http.post("/channel/delete?topic=t&channel=c")
    consumer.expect_eof()


@pytest.mark.conformance(183)
def test_a_topic_can_be_deleted_once(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_topic("t")
    assert http.post("/topic/delete?topic=t").status == 200
    assert http.post("/topic/delete?topic=t").error == (404, "TOPIC_NOT_FOUND")
    assert http.post("/topic/delete").error == (400, "MISSING_ARG_TOPIC")


@pytest.mark.conformance(184)
def test_a_topic_can_be_emptied(nsqd: NsqdHarness, http: HttpClient) -> None:
    http.post("/mpub?topic=t", b"1\n2\n3\n")
    assert http.post("/topic/empty").error == (400, "MISSING_ARG_TOPIC")
    assert http.post("/topic/empty?topic=a$").error == (400, "INVALID_TOPIC")
    assert http.post("/topic/empty?topic=none").error == (404, "TOPIC_NOT_FOUND")
    assert nsqd.topic("t").depth == 3
    expect_empty(http.post("/topic/empty?topic=t"))
    assert nsqd.topic("t").depth == 0


@pytest.mark.conformance(185)
def test_a_channel_can_be_emptied(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    http.post("/mpub?topic=t", b"1\n2\n3\n")
    assert http.post("/channel/empty").error == (400, "MISSING_ARG_TOPIC")
    assert http.post("/channel/empty?topic=t").error == (400, "MISSING_ARG_CHANNEL")
    assert http.post("/channel/empty?topic=none&channel=c").error == (404, "TOPIC_NOT_FOUND")
    assert http.post("/channel/empty?topic=t&channel=none").error == (404, "CHANNEL_NOT_FOUND")
    assert nsqd.channel("t", "c").depth == 3
    expect_empty(http.post("/channel/empty?topic=t&channel=c"))
    assert nsqd.channel("t", "c").depth == 0


@pytest.mark.conformance(186)
def test_a_channel_is_not_made_without_its_topic(nsqd: NsqdHarness, http: HttpClient) -> None:
    assert http.post("/channel/create?topic=t&channel=c").error == (404, "TOPIC_NOT_FOUND")
    assert not nsqd.has_topic("t")


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "pause", "unpause"])
@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("channel=c", "MISSING_ARG_TOPIC"),
        ("topic=a$&channel=c", "INVALID_ARG_TOPIC"),
        ("topic=t", "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=a$", "INVALID_ARG_CHANNEL"),
    ],
)
def test_channel_endpoints_complain_in_order(http: HttpClient, verb: str, query: str, complaint: str) -> None:
    assert http.post(f"/channel/{verb}?{query}").error == (400, complaint)


def test_a_channel_can_be_peeked_into(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    http.post("/mpub?topic=t", b"one\ntwo")
    shown = http.get("/channel/peek?topic=t&channel=c&count=1").json()["messages"]
    assert [message["body"] for message in shown] == ["one"]
    consumer = nsqd.consumer("t", "c", rdy=2)
    delivered = consumer.read_messages(2)
    assert [message.body for message in delivered] == [b"one", b"two"]
    assert shown[0]["id"] == delivered[0].id.decode()
