"""What an observer hears of."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.error import BadRequestError, ConnectionLostError, MessageTooLargeError
from emberq.client.message import Message
from emberq.client.observer import ObservedChannel, Observer, Publication, tell
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.publishing import NEVER_AGAIN
from tests.support.waiting import until

CONFIG = ConsumerConfig(max_in_flight=5, concurrency=1, backoff_unit_s=0.01, default_requeue_delay_s=0)

inside: contextvars.ContextVar[bytes] = contextvars.ContextVar("inside", default=b"")


class Listener(Observer):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.publications: list[Publication] = []
        self.durations_s: list[float] = []

    def connected(self, address: str) -> None:
        self.heard.append(("connected", address))

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        self.heard.append(("disconnected", address, type(failure)))

    def published(self, publication: Publication, *, duration_s: float) -> None:
        self.heard.append(("published", publication.topic))
        self.publications.append(publication)
        self.durations_s.append(duration_s)

    def publish_failed(self, publication: Publication, error: BaseException, *, duration_s: float) -> None:
        self.heard.append(("publish_failed", publication.topic, type(error)))
        self.durations_s.append(duration_s)

    def received(self, messages: Sequence[Message], source: ObservedChannel) -> None:
        self.heard.append(("received", [message.body for message in messages], source))

    def handling(self, message: Message, source: ObservedChannel) -> AbstractContextManager[object]:
        return self._handling(message)

    @contextmanager
    def _handling(self, message: Message) -> Iterator[None]:
        token = inside.set(message.body)
        try:
            yield
        finally:
            inside.reset(token)

    def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:
        self.heard.append(("handled", message.body, source))
        self.durations_s.append(duration_s)

    def failed(self, message: Message, source: ObservedChannel, error: BaseException, *, duration_s: float) -> None:
        self.heard.append(("failed", message.body, source, type(error)))
        self.durations_s.append(duration_s)

    def requeued(self, message: Message, source: ObservedChannel) -> None:
        self.heard.append(("requeued", message.body, source))

    def gave_up(self, message: Message, source: ObservedChannel) -> None:
        self.heard.append(("gave up", message.body, source))

    def backoff_changed(self, source: ObservedChannel, *, level: int, pause_s: float) -> None:
        self.heard.append(("backoff", source, level, pause_s))


SOURCE = ObservedChannel("t", "c")


async def test_an_observer_follows_a_message_through_its_handler() -> None:
    listener = Listener()

    async def handle(message: Message) -> None:
        assert inside.get() == message.body
        if message.body == b"bad":
            raise ValueError("as told")

    async with ScriptedNsqd() as nsqd:
        consumer = Consumer(
            "t",
            "c",
            handle,
            nsqd_addresses=[nsqd.address],
            config=CONFIG,
            client_config=ClientConfig(observer=listener),
        )
        async with consumer:
            nsqd.send(b"bad")
            await until(lambda: "RDY 1" in nsqd.commands)
            nsqd.send(b"good")
            await until(lambda: nsqd.commands[-1] == "FIN")
    assert listener.heard == [
        ("connected", nsqd.address),
        ("received", [b"bad"], SOURCE),
        ("failed", b"bad", SOURCE, ValueError),
        ("backoff", SOURCE, 1, 0.02),
        ("requeued", b"bad", SOURCE),
        ("received", [b"good"], SOURCE),
        ("handled", b"good", SOURCE),
        ("backoff", SOURCE, 0, 0.0),
        ("disconnected", nsqd.address, type(None)),
    ]
    assert all(0 <= duration_s < 10 for duration_s in listener.durations_s)


async def test_an_observer_hears_of_messages_that_are_given_up_and_of_lost_connections() -> None:
    listener = Listener()
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer(
            "t",
            "c",
            print,
            nsqd_addresses=[nsqd.address],
            config=replace(CONFIG, max_attempts=1),
            client_config=ClientConfig(observer=listener),
        )
        async with consumer:
            nsqd.send(b"tired", attempts=2)
            await until(lambda: ("gave up", b"tired", SOURCE) in listener.heard)
            nsqd.drop_connections()
            await until(lambda: ("disconnected", nsqd.address, ConnectionLostError) in listener.heard)
            await until(lambda: listener.heard.count(("connected", nsqd.address)) >= 2)


async def test_a_handler_in_a_thread_is_inside_what_surrounds_it() -> None:
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(inside.get())
        message.requeue(0, backoff=False)

    listener = Listener()
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer(
            "t", "c", handle, nsqd_addresses=[nsqd.address], client_config=ClientConfig(observer=listener)
        )
        async with consumer:
            nsqd.send(b"x")
            await until(lambda: nsqd.commands[-1] == "REQ")
            assert seen == [b"x"]
            await until(lambda: ("handled", b"x", SOURCE) in listener.heard)
            assert ("requeued", b"x", SOURCE) in listener.heard


async def test_an_observer_hears_of_all_that_a_producer_publishes() -> None:
    listener = Listener()
    async with Embedded(with_lookupd=False, max_msg_size=10) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        config = ClientConfig(observer=listener)
        async with Producer(address, config, reconnect_delay=NEVER_AGAIN) as producer:
            await producer.publish("a", b"123")
            await producer.publish_many("b", [b"1", b"22", b"333"])
            await producer.publish_deferred("c", b"12345", delay_s=1)
            with pytest.raises(MessageTooLargeError):
                await producer.publish("d", b"much too long")
            with pytest.raises(BadRequestError):
                await producer.publish_deferred("d", b"1", delay_s=100_000)
            await until(lambda: listener.heard[-1] == ("connected", address))
    assert listener.heard[:-1] == [
        ("connected", address),
        ("published", "a"),
        ("published", "b"),
        ("published", "c"),
        ("publish_failed", "d", MessageTooLargeError),
        ("publish_failed", "d", BadRequestError),
        ("disconnected", address, BadRequestError),
        ("connected", address),
    ]
    assert listener.publications == [
        Publication("a", address, 1, 3),
        Publication("b", address, 3, 6),
        Publication("c", address, 1, 5),
    ]
    assert all(0 <= duration_s < 10 for duration_s in listener.durations_s)


@pytest.mark.parametrize("error", [KeyError("the observer"), asyncio.CancelledError(), GeneratorExit()])
async def test_an_observer_that_fails_is_logged_and_harms_nobody(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def received(self, messages: Sequence[Message], source: ObservedChannel) -> None:
            raise error

    with caplog.at_level(logging.ERROR):
        async with ScriptedNsqd() as nsqd:
            consumer = Consumer(
                "t", "c", print, nsqd_addresses=[nsqd.address], client_config=ClientConfig(observer=Broken())
            )
            async with consumer:
                nsqd.send(b"x")
                await nsqd.expect("RDY 100", "FIN")
    assert "Broken.received" in caplog.text


async def test_an_observer_need_not_care_about_anything() -> None:
    config = ClientConfig(observer=Observer())
    async with Embedded(with_lookupd=False) as nsq, Producer(nsq.nsqd_tcp_addresses, config) as producer:
        await producer.publish("t", b"x")
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            handled.append(message.body)

        async with Consumer("t", "c", handle, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=config):
            await until(lambda: handled == [b"x"])


def test_arguments_are_passed_on() -> None:
    heard: list[tuple[int, str]] = []

    def hook(number: int, *, name: str) -> None:
        heard.append((number, name))

    tell(hook, 1, name="x")
    assert heard == [(1, "x")]
