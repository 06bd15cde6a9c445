"""POST /channel/… and GET /channel/peek. What the reference knows of it too is in the conformance tests."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from emberq.nsqd.api import channel
from emberq.nsqd.api.channel import ChannelApi
from emberq.storage.error import MetadataError
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode, answer_of, refusal_of, request


@pytest.fixture
def api(rig: Rig) -> ChannelApi:
    return ChannelApi(RigNode(rig))


def peek(api: ChannelApi, arguments: str = "") -> list[dict[str, Any]]:
    """The messages that peeking into the channel `c` of topic `t` shows."""
    answer = json.loads(api.peek(request(f"topic=t&channel=c{arguments}")).body)
    assert list(answer) == ["messages"]
    messages: list[dict[str, Any]] = answer["messages"]
    return messages


def test_a_pause_that_cannot_be_saved_is_a_failure(rig: Rig) -> None:
    node = RigNode(rig)
    node.metadata_failure = MetadataError("open nsqd.dat: read-only file system")
    rig.channel()
    api = ChannelApi(node)
    assert refusal_of(api.pause, request("topic=t&channel=c")) == (500, "INTERNAL_ERROR")
    assert refusal_of(api.unpause, request("topic=t&channel=c")) == (500, "INTERNAL_ERROR")


def test_a_channel_is_emptied_or_deleted_when_that_is_answered(rig: Rig) -> None:
    node = RigNode(rig)
    api = ChannelApi(node)
    channel = rig.channel()
    rig.publish(b"abc")
    answer_of(api.empty, request("topic=t&channel=c"))
    assert (channel.depth, node.removed_count) == (0, 1)
    answer_of(api.delete, request("topic=t&channel=c"))
    assert (rig.topic().find_channel("c"), node.removed_count) == (None, 2)


def test_every_verb_checks_names_before_it_looks_for_them(rig: Rig, api: ChannelApi) -> None:
    rig.topic("t")
    for handler in (api.delete, api.empty, api.pause, api.unpause, api.peek):
        assert refusal_of(handler, request("topic=a$")) == (400, "INVALID_ARG_TOPIC")
        assert refusal_of(handler, request("topic=none&channel=a$")) == (400, "INVALID_ARG_CHANNEL")
        assert refusal_of(handler, request("topic=none&channel=c")) == (404, "TOPIC_NOT_FOUND")
        assert refusal_of(handler, request("topic=t&channel=none")) == (404, "CHANNEL_NOT_FOUND")


def test_peeking_shows_the_next_messages_and_takes_none(rig: Rig, api: ChannelApi) -> None:
    rig.channel()
    rig.publish(b"first", b"second")
    first, second = peek(api)
    assert (first["body"], second["body"]) == ("first", "second")
    assert peek(api) == [first, second]
    assert (rig.stats().depth, rig.stats().in_flight_count) == (2, 0)


def test_a_peeked_message_is_the_one_that_is_delivered(rig: Rig, api: ChannelApi) -> None:
    rig.channel()
    rig.publish("grüße".encode())
    (shown,) = peek(api)
    delivered = rig.consumer(rdy=1).take_one()
    assert shown == {
        "id": delivered.id.decode(),
        "timestamp": delivered.timestamp_ns,
        "attempts": 0,
        "body": "grüße",
    }


def test_a_requeued_message_shows_its_attempts(rig: Rig, api: ChannelApi) -> None:
    consumer = rig.consumer(rdy=1)
    rig.publish(b"again")
    consumer.ready(0)
    consumer.requeue(consumer.take_one())
    assert [message["attempts"] for message in peek(api)] == [1]


def test_a_body_that_is_no_text_is_shown_in_base64(rig: Rig, api: ChannelApi) -> None:
    rig.channel()
    rig.publish(b"\xff\x00")
    (message,) = peek(api)
    assert "body" not in message
    assert base64.b64decode(message["body_base64"]) == b"\xff\x00"


def test_messages_on_disk_can_be_peeked_at() -> None:
    with Rig(mem_queue_size=1) as rig:
        rig.channel()
        rig.publish(b"in memory", b"on disk")
        assert [message["body"] for message in peek(ChannelApi(RigNode(rig)))] == ["in memory", "on disk"]


@pytest.mark.parametrize(("arguments", "count"), [("", 10), ("&count=1", 1), ("&count=100", 100)])
def test_peeking_shows_ten_messages_unless_told_otherwise(
    rig: Rig, api: ChannelApi, arguments: str, count: int
) -> None:
    rig.channel()
    rig.publish(*[b"%d" % number for number in range(200)])
    assert [message["body"] for message in peek(api, arguments)] == [str(number) for number in range(count)]


@pytest.mark.parametrize("count", ["0", "-1", "101", "x", ""])
def test_peeking_is_for_one_to_a_hundred_messages(rig: Rig, api: ChannelApi, count: str) -> None:
    rig.channel()
    assert refusal_of(api.peek, request(f"topic=t&channel=c&count={count}")) == (400, "INVALID_ARG_COUNT")


def test_peeking_at_an_empty_channel_shows_nothing(rig: Rig, api: ChannelApi) -> None:
    rig.channel()
    assert peek(api) == []


def test_peeking_at_large_messages_shows_fewer_of_them(
    rig: Rig, api: ChannelApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_PEEK_BYTES", 10)
    rig.channel()
    rig.publish(b"12345", b"12345", b"1")
    assert len(peek(api)) == 2


def test_the_first_message_is_shown_however_large_it_is(
    rig: Rig, api: ChannelApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_PEEK_BYTES", 10)
    rig.channel()
    rig.publish(b"12345678901", b"1")
    assert len(peek(api)) == 1
