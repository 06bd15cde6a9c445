"""POST /pub and /mpub where the broker refuses, and the order of the checks. The rest is in the conformance tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from emberq.http.message import Response
from emberq.nsqd.api.publish import PublishApi
from tests.broker.rig import Consumer, Rig
from tests.nsqd.api.rig import answer_of, batcher_of, refusal_of, request
from tests.support.raw_client import mpub_body


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(mem_queue_size=2) as rig:
        yield rig


@pytest.fixture
def api(rig: Rig) -> PublishApi:
    return PublishApi(rig.broker, batcher_of(rig), max_msg_size=100, max_body_size=1000, max_req_timeout_ms=1000)


def test_a_full_disk_refuses_a_message(rig: Rig, api: PublishApi) -> None:
    rig.disk.room["t"] = 0
    for _ in range(2):
        assert answer_of(api.publish_one, request("topic=t", b"in memory")).body == b"OK"
    assert refusal_of(api.publish_one, request("topic=t", b"on disk")) == (503, "EXITING")
    assert rig.topic_stats().message_count == 2


async def test_what_is_published_in_one_turn_is_one_batch(rig: Rig, api: PublishApi) -> None:
    consumer = Consumer(rig.channel(), rdy=10)
    api.publish_one(request("topic=t", b"the first makes the topic known"))
    answers = [api.publish_one(request("topic=t", b"%d" % number)) for number in range(3)]
    assert [(await answer).body for answer in answers if not isinstance(answer, Response)] == [b"OK"] * 3
    assert consumer.deliveries == [1, 3]


def test_a_full_disk_refuses_a_batch_but_keeps_what_was_stored_before(rig: Rig, api: PublishApi) -> None:
    rig.disk.room["t"] = 0
    assert refusal_of(api.publish_many, request("topic=t", b"1\n2\n3\n")) == (503, "EXITING")
    assert rig.topic_stats().message_count == 2


def test_nothing_is_published_while_the_broker_closes(rig: Rig, api: PublishApi) -> None:
    rig.topic("old")
    rig.broker.close()
    for topic in ("old", "new"):
        assert refusal_of(api.publish_one, request(f"topic={topic}", b"x")) == (503, "EXITING")
        assert refusal_of(api.publish_one, request(f"topic={topic}&defer=10", b"x")) == (503, "EXITING")
        assert refusal_of(api.publish_many, request(f"topic={topic}", b"x")) == (503, "EXITING")


def test_an_empty_message_is_seen_before_a_malformed_query(api: PublishApi) -> None:
    assert refusal_of(api.publish_one, request("%zz")) == (400, "MSG_EMPTY")
    assert refusal_of(api.publish_one, request("%zz", b"x")) == (400, "INVALID_REQUEST")


def test_the_topic_is_made_before_the_delay_is_looked_at(rig: Rig, api: PublishApi) -> None:
    assert refusal_of(api.publish_one, request("topic=t&defer=x", b"x")) == (400, "INVALID_DEFER")
    assert rig.broker.find_topic("t") is not None


def test_the_topic_is_made_before_a_batch_is_looked_at(rig: Rig, api: PublishApi) -> None:
    assert refusal_of(api.publish_many, request("topic=t&binary=1", b"x")) == (413, "BAD_BODY")
    assert rig.broker.find_topic("t") is not None


def test_a_delay_of_zero_is_none(rig: Rig, api: PublishApi) -> None:
    rig.channel()
    api.publish_one(request("topic=t&defer=%2B0", b"x"))
    assert (rig.stats().depth, rig.stats().deferred_count) == (1, 0)


def test_a_delay_may_be_as_long_as_the_limit(rig: Rig, api: PublishApi) -> None:
    rig.channel()
    api.publish_one(request("topic=t&defer=1000", b"x"))
    assert refusal_of(api.publish_one, request("topic=t&defer=1001", b"x")) == (400, "INVALID_DEFER")
    rig.advance(ms=999)
    assert rig.stats().depth == 0
    rig.advance(ms=1)
    assert rig.stats().depth == 1


@pytest.mark.parametrize("word", ["", "yes", "True", "2"])
def test_an_unknown_word_for_binary_means_binary_and_is_logged(
    rig: Rig, api: PublishApi, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="emberq"):
        answer_of(api.publish_many, request(f"topic=t&binary={word}", mpub_body([b"one", b"two"])))
    assert rig.topic_stats().depth == 2
    assert f"'{word}'" in caplog.text


def test_a_batch_may_be_larger_than_the_broker_keeps_in_one_piece(rig: Rig) -> None:
    api = PublishApi(rig.broker, batcher_of(rig), max_msg_size=100, max_body_size=1_000_000, max_req_timeout_ms=1000)
    answer_of(api.publish_many, request("topic=t", b"12345\n" * 100_000))
    stats = rig.topic_stats()
    assert (stats.message_count, stats.message_bytes) == (100_000, 500_000)
