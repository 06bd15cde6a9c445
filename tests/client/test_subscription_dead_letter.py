"""Messages that came too often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from emberq.client.config import ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.message import Message
from emberq.client.subscription import OnGivingUp
from tests.client.scripted_nsqd import ERROR, ScriptedNsqd, frame

MAX_ATTEMPTS = 2


@asynccontextmanager
async def consuming(
    handled: list[bytes], *, hook: OnGivingUp | None = None, dead_letter_topic: str = "", **told: int
) -> AsyncIterator[tuple[ScriptedNsqd, Consumer]]:
    """A consumer whose handler writes down what it gets."""

    async def handle(message: Message) -> None:
        handled.append(message.body)

    config = ConsumerConfig(max_in_flight=5, max_attempts=MAX_ATTEMPTS, dead_letter_topic=dead_letter_topic)
    async with (
        ScriptedNsqd(**told) as nsqd,
        Consumer("t", "c", handle, nsqd_addresses=[nsqd.address], config=config, on_giving_up=hook) as consumer,
    ):
        yield nsqd, consumer


async def test_a_message_is_given_up_after_its_last_attempt_and_not_before() -> None:
    handled: list[bytes] = []
    async with consuming(handled) as (nsqd, consumer):
        nsqd.send(b"tired", attempts=MAX_ATTEMPTS + 1)
        nsqd.send(b"last attempt", attempts=MAX_ATTEMPTS)
        await nsqd.expect("RDY 5", "FIN", "FIN")
        assert (handled, consumer.statistics().given_up) == ([b"last attempt"], 1)


async def test_the_hook_hears_of_it_and_the_body_goes_to_the_dead_letter_topic_before_the_fin() -> None:
    given_up: list[bytes] = []

    async def hook(message: Message) -> None:
        given_up.append(message.body)

    async with consuming([], hook=hook, dead_letter_topic="t.dead") as (nsqd, _):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "PUB t.dead", "FIN")
        assert given_up == [b"tired"]


async def test_a_dead_letter_that_is_too_large_for_nsqd_by_now_does_not_cost_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with consuming([], dead_letter_topic="t.dead", max_msg_size=4, max_body_size=100) as (nsqd, consumer):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "REQ")
        assert consumer.statistics().addresses == (nsqd.address,)
    assert "a message of 5 bytes was not sent" in caplog.text


async def test_a_message_that_the_hook_answered_is_left_alone() -> None:
    def hook(message: Message) -> None:
        message.requeue(0, backoff=False)

    async with consuming([], hook=hook, dead_letter_topic="t.dead") as (nsqd, _):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "REQ")


async def test_a_message_comes_again_when_the_hook_fails() -> None:
    def hook(message: Message) -> None:
        raise OSError("the disk is full")

    async with consuming([], hook=hook, dead_letter_topic="t.dead") as (nsqd, consumer):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "REQ")
        assert consumer.statistics().given_up == 0


async def test_a_message_is_not_finished_when_its_dead_letter_is_refused() -> None:
    async with consuming([], dead_letter_topic="t.dead") as (nsqd, consumer):
        nsqd.replies["PUB"] = frame(ERROR, b"E_PUB_FAILED PUB failed exiting")
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "PUB t.dead", "IDENTIFY", "SUB", "RDY 5")
        assert consumer.statistics().given_up == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), StopIteration()])
async def test_a_message_comes_again_whatever_the_hook_raises(error: BaseException) -> None:
    def hook(message: Message) -> None:
        raise error

    async with consuming([], hook=hook) as (nsqd, consumer):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "REQ")
        assert consumer.statistics().given_up == 0


@pytest.mark.parametrize(("value", "answer"), [(None, "FIN"), (True, "FIN"), (False, "REQ"), ("saved", "REQ")])
@pytest.mark.parametrize("is_awaitable", [True, False])
async def test_what_the_hook_returns_means_what_it_means_for_a_handler(
    value: Any, answer: str, is_awaitable: bool
) -> None:
    async def later() -> Any:
        return value

    async with consuming([], hook=lambda message: later() if is_awaitable else value) as (nsqd, _):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", answer)


async def test_a_message_whose_giving_up_is_cut_off_by_the_end_goes_back() -> None:
    begun = asyncio.Event()

    async def hook(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with consuming([], hook=hook) as (nsqd, consumer):
        nsqd.send(b"tired", attempts=3)
        await begun.wait()
        await consumer.stop(drain_timeout_s=0)
        await nsqd.expect("RDY 5", "RDY 0", "REQ")
        assert consumer.statistics().given_up == 0


@pytest.mark.parametrize(("value", "shows_where"), [(False, False), ("saved", False), (OSError("disk full"), True)])
async def test_the_log_shows_where_a_hook_failed_but_not_where_it_declined(
    value: Any, shows_where: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(message: Message) -> Any:
        if isinstance(value, OSError):
            raise value
        return value

    async with consuming([], hook=hook) as (nsqd, _):
        nsqd.send(b"tired", attempts=3)
        await nsqd.expect("RDY 5", "REQ")
    (record,) = (record for record in caplog.records if "could not be given up" in record.message)
    assert bool(record.exc_info) == shows_where
