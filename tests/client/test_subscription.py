"""Answers as nsqd gets them, from whatever thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.client.config import ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.message import Message
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.waiting import until

CONFIG = ConsumerConfig(default_requeue_delay_s=1.0015, max_requeue_delay_s=3, max_backoff_s=0)


@asynccontextmanager
async def one_message(*, attempts: int = 1) -> AsyncIterator[tuple[ScriptedNsqd, Consumer, Message]]:
    """A consumer that has taken one message."""
    async with (
        ScriptedNsqd() as nsqd,
        Consumer("t", "c", nsqd_addresses=[nsqd.address], config=CONFIG) as consumer,
    ):
        nsqd.send(attempts=attempts)
        yield nsqd, consumer, await anext(consumer)


@pytest.mark.parametrize(
    ("attempts", "delay_s", "sent_ms"),
    [(1, None, 1001), (2, None, 2003), (5, None, 3000), (1, 0.5, 500), (1, 99, 3000), (1, -1, 0)],
)
async def test_a_requeue_delay_grows_with_the_attempts_within_its_limits(
    attempts: int, delay_s: float | None, sent_ms: int
) -> None:
    async with one_message(attempts=attempts) as (nsqd, _, message):
        message.requeue(delay_s)
        await until(lambda: nsqd.lines[-1] == f"REQ {message.id.decode()} {sent_ms}", show=lambda: nsqd.lines)


@pytest.mark.parametrize("answer", ["finish", "requeue", "touch", "abandon"])
async def test_answers_may_be_given_in_another_thread(answer: str) -> None:
    async with one_message() as (nsqd, consumer, message):
        await asyncio.to_thread(getattr(message, answer))
        if answer != "abandon":
            sent = {"finish": "FIN", "requeue": "REQ", "touch": "TOUCH"}[answer]
            await nsqd.expect("RDY 100", sent)
        message.finish()
        await until(lambda: consumer.statistics().in_flight == 0)


async def test_answers_leave_in_the_order_in_which_they_were_given() -> None:
    async with one_message() as (nsqd, consumer, first):
        nsqd.send()
        nsqd.send()
        second, third = await anext(consumer), await anext(consumer)
        first.finish()
        second.requeue(0)
        third.finish()
        await nsqd.expect("RDY 100", "FIN", "REQ", "FIN")
        ids = [line.split()[1] for line in nsqd.lines[3:]]
        assert ids == [message.id.decode() for message in (first, second, third)]


async def test_a_message_that_is_finished_right_before_the_end_is_finished() -> None:
    async with one_message() as (nsqd, consumer, message):
        message.finish()
        assert consumer.statistics().in_flight == 0
        await consumer.stop(drain_timeout_s=0)
        await until(lambda: "FIN" in nsqd.commands, show=lambda: nsqd.commands)


async def test_a_finish_that_the_connection_does_not_live_to_send_is_dropped() -> None:
    async with one_message() as (nsqd, consumer, message):
        nsqd.drop_connections()
        message.finish()
        await until(lambda: nsqd.commands.count("SUB") >= 2)
        assert consumer.statistics().in_flight == 0


async def test_a_touch_moves_the_deadline() -> None:
    async with one_message() as (_, _, message):
        before_ns = message.deadline_ns
        message.touch()
        assert message.deadline_ns > before_ns
        message.finish()


async def test_messages_of_a_lost_connection_cannot_be_answered_any_more() -> None:
    async with one_message() as (nsqd, consumer, message):
        nsqd.drop_connections()
        await until(lambda: message.is_answered)
        message.finish()
        message.requeue()
        await until(lambda: nsqd.commands.count("SUB") >= 2)
        assert not {"FIN", "REQ"} & set(nsqd.commands)
        assert consumer.statistics().in_flight == 0


async def test_a_consumer_with_all_its_rdy_in_flight_is_starved() -> None:
    async with one_message() as (_, consumer, message):
        assert not consumer.is_starved
        consumer.set_max_in_flight(1)
        assert consumer.is_starved
        message.finish()
        assert not consumer.is_starved


async def test_a_message_that_is_held_for_long_is_touched_if_asked_for() -> None:
    clock = ManualClock()
    async with (
        ScriptedNsqd(msg_timeout_ms=40) as nsqd,
        Consumer(
            "t", "c", nsqd_addresses=[nsqd.address], config=replace(CONFIG, auto_touch=True), clock=clock
        ) as consumer,
    ):
        nsqd.send()
        message = await anext(consumer)
        clock.advance(ms=30)
        await until(lambda: "TOUCH" in nsqd.commands, show=lambda: nsqd.commands)
        assert message.deadline_ns == clock.monotonic_ns() + 40 * NS_PER_MS
        message.finish()
        await until(lambda: "FIN" in nsqd.commands, show=lambda: nsqd.commands)


@pytest.mark.parametrize("answer", ["finish", "requeue"])
async def test_stopping_waits_for_the_answer_to_the_last_message(answer: str) -> None:
    async with one_message() as (nsqd, consumer, message):
        stopping = asyncio.create_task(consumer.stop(drain_timeout_s=60))
        await until(lambda: "CLS" in nsqd.commands, show=lambda: nsqd.commands)
        assert not stopping.done()
        getattr(message, answer)()
        await stopping
        sent = {"finish": "FIN", "requeue": "REQ"}[answer]
        await until(lambda: sent in nsqd.commands, show=lambda: nsqd.commands)


async def test_a_message_that_is_finished_ends_the_backoff_that_another_began() -> None:
    config = ConsumerConfig(max_in_flight=5, backoff_unit_s=0.01)
    async with (
        ScriptedNsqd() as nsqd,
        Consumer("t", "c", nsqd_addresses=[nsqd.address], config=config) as consumer,
    ):
        nsqd.send()
        (await anext(consumer)).requeue(0)
        await nsqd.expect("RDY 5", "RDY 0", "REQ", "RDY 1")
        nsqd.send()
        (await anext(consumer)).finish()
        await nsqd.expect("RDY 5", "RDY 0", "REQ", "RDY 1", "RDY 5", "FIN")
