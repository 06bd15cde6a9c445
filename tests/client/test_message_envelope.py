"""Headers of messages: there for those who agreed on envelopes, and no trace of them elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import cast

import pytest

from emberq import sync
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.message import Answering, Message, MessageSnapshot, OpenedMessage
from emberq.client.observer import Observer
from emberq.client.producer import Producer
from emberq.embedded import Embedded, EmbeddedThread
from emberq.wire.envelope import encode

ENVELOPE = ClientConfig(envelope=True)
JSON = {"content-type": "application/json"}


async def read(
    nsq: Embedded, topic: str, *, config: ClientConfig, count: int = 1
) -> list[tuple[Mapping[str, str], bytes]]:
    async with Consumer(topic, "c", nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=config) as consumer:
        got = []
        async for message in consumer:
            got.append((message.headers, message.body))
            message.finish()
            if len(got) == count:
                return got
    raise AssertionError


async def test_headers_reach_a_consumer_that_opens_envelopes() -> None:
    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses, ENVELOPE) as producer:
        await producer.publish("one", b"{}", headers=JSON)
        assert await read(nsq, "one", config=ENVELOPE) == [(JSON, b"{}")]
        await producer.publish_many("many", [b"1", b"2"], headers=JSON)
        assert sorted(await read(nsq, "many", config=ENVELOPE, count=2), key=str) == [(JSON, b"1"), (JSON, b"2")]
        await producer.publish_deferred("later", b"3", delay_s=0.01, headers=JSON)
        assert await read(nsq, "later", config=ENVELOPE) == [(JSON, b"3")]


async def test_a_consumer_that_opens_envelopes_takes_bare_messages_as_they_are() -> None:
    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses) as producer:
        await producer.publish("t", b"bare")
        assert await read(nsq, "t", config=ENVELOPE) == [({}, b"bare")]


async def test_who_does_not_use_envelopes_sees_the_bytes_of_nsqd() -> None:
    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses) as producer:
        body = encode(JSON, b"{}")
        await producer.publish("t", body)
        assert await read(nsq, "t", config=ClientConfig()) == [({}, body)]


async def test_headers_without_an_envelope_are_refused() -> None:
    producer = Producer("127.0.0.1:1")
    for publishing in (
        producer.publish("t", b"1", headers={}),
        producer.publish_many("t", [b"1"], headers=JSON),
        producer.publish_deferred("t", b"1", delay_s=1, headers=JSON),
    ):
        with pytest.raises(ValueError, match=r"only in an envelope: ClientConfig\(envelope=True\), on both sides"):
            await publishing


async def test_a_dead_letter_keeps_its_headers() -> None:
    given_up = ConsumerConfig(max_attempts=1, dead_letter_topic="dead", max_backoff_s=0, default_requeue_delay_s=0)

    def fail(message: Message) -> bool:
        return False

    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses, ENVELOPE) as producer:
        await producer.publish("t", b"{}", headers=JSON)
        async with Consumer(
            "t", "c", fail, nsqd_addresses=nsq.nsqd_tcp_addresses, config=given_up, client_config=ENVELOPE
        ):
            assert await read(nsq, "dead", config=ENVELOPE) == [(JSON, b"{}")]


class Source:
    """What messages are answered to, and is not needed here."""

    address = "nsqd:4150"


def opened(body: bytes) -> OpenedMessage:
    return OpenedMessage((17, 1, b"0123456789abcdef", body), cast(Answering, Source()), 0)


def test_a_handler_in_another_process_gets_the_headers() -> None:
    snapshot = pickle.loads(pickle.dumps(MessageSnapshot.of(opened(encode(JSON, b"{}")))))
    assert snapshot.headers == JSON
    assert snapshot.body == b"{}"


@pytest.mark.parametrize(
    "published", [b"bare", encode({}, b"{}"), encode(JSON, b"{}"), encode({}, encode(JSON, b"{}"))]
)
def test_a_message_can_be_passed_on_as_it_was_published(published: bytes) -> None:
    assert opened(published).as_published == published


async def test_an_observer_adds_headers_and_its_failure_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Adding(Observer):
        def message_headers(self, topic: str) -> dict[str, str]:
            if topic == "broken":
                raise OSError
            return {"from": topic, "content-type": "text/plain"}

    config = ClientConfig(envelope=True, observer=Adding())
    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses, config) as producer:
        await producer.publish("t", b"1", headers=JSON)
        assert await read(nsq, "t", config=ENVELOPE) == [({"from": "t", **JSON}, b"1")]
        await producer.publish("broken", b"2", headers=JSON)
        assert await read(nsq, "broken", config=ENVELOPE) == [(JSON, b"2")]
    assert "an observer failed" in caplog.text


def test_code_that_blocks_uses_envelopes_too(nsq: EmbeddedThread) -> None:
    address = nsq.nsqd_tcp_addresses[0]
    with sync.Producer(address, ENVELOPE) as producer:
        producer.publish("t", b"1", headers=JSON)
        producer.publish_many("t", [b"2"], headers=JSON)
        producer.publish_deferred("t", b"3", delay_s=0.01, headers=JSON)
    with sync.Consumer("t", "c", nsqd_addresses=[address], client_config=ENVELOPE) as consumer:
        got = []
        for message in consumer:
            got.append((message.headers, message.body))
            message.finish()
            if len(got) == 3:
                break
    assert sorted(got, key=str) == [(JSON, b"1"), (JSON, b"2"), (JSON, b"3")]
