"""Running handlers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from emberq.base.clock import ManualClock, SystemClock
from emberq.client.config import HandlersIn
from emberq.client.error import HandlerTimeoutError
from emberq.client.handler import HandlerPool, Inbox
from emberq.client.message import Message
from emberq.client.worker import HandlerRunner, make_slots
from tests.client.test_handler_inbox import messages
from tests.client.test_message import Recorder
from tests.support.waiting import PATIENCE_S, until


def slots(handler: Any, *, count: int = 1) -> list[HandlerRunner]:
    return make_slots(handler, HandlersIn.THREADS, count=count, timeout_s=None)


async def test_handlers_run_at_the_same_time_but_no_more_than_allowed() -> None:
    running = most = 0
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    inbox, source = Inbox(ManualClock()), Recorder()
    pool = HandlerPool(slots(handle, count=3), inbox, clock=ManualClock())
    pool.start()
    inbox.put(messages(*[b"x"] * 7, source=source))
    await until(lambda: running == 3)
    release.set()
    await until(lambda: len(source.answers) == 7)
    assert most == 3
    await pool.stop()


async def test_a_handler_that_never_waits_leaves_the_loop_its_turns() -> None:
    clock, source = ManualClock(), Recorder()
    handled_at_turn: list[int] = []

    async def handle(message: Message) -> None:
        clock.advance(ms=4)
        handled_at_turn.append(turn)

    turn = 0
    inbox = Inbox(clock)
    pool = HandlerPool(slots(handle), inbox, clock=clock)
    pool.start()
    inbox.put(messages(*[b"x"] * 9, source=source))
    while len(source.answers) < 9:
        turn += 1
        await asyncio.sleep(0)
    assert len(set(handled_at_turn)) == 3
    await pool.stop()


async def test_a_retry_policy_that_fails_leaves_the_default_delay() -> None:
    def policy(message: Message, error: BaseException) -> float:
        raise KeyError("the policy")

    def handle(message: Message) -> None:
        raise OSError("the handler")

    inbox, source = Inbox(SystemClock()), Recorder()
    pool = HandlerPool(slots(handle), inbox, clock=SystemClock(), retry_delay_s=policy)
    pool.start()
    inbox.put(messages(b"x", source=source))
    await until(lambda: source.answers == [("REQ", b"x", None, True)])
    await pool.stop()


async def test_a_handler_that_takes_too_long_has_failed_and_the_next_message_is_handled() -> None:
    seen: list[type[BaseException]] = []

    def policy(message: Message, error: BaseException) -> float:
        seen.append(type(error))
        return 7.0

    async def handle(message: Message) -> None:
        if message.body == b"hang":
            await asyncio.Event().wait()

    inbox, source = Inbox(SystemClock()), Recorder()
    hurried = make_slots(handle, HandlersIn.THREADS, count=1, timeout_s=0.1)
    pool = HandlerPool(hurried, inbox, clock=SystemClock(), retry_delay_s=policy)
    pool.start()
    inbox.put(messages(b"hang", b"next", source=source))
    await until(lambda: source.answers == [("REQ", b"hang", 7.0, True), ("FIN", [b"next"])])
    assert seen == [HandlerTimeoutError]
    await pool.stop()


async def test_what_a_thread_says_about_its_message_after_it_took_too_long_is_ignored() -> None:
    release, answered = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        assert release.wait(PATIENCE_S)
        message.finish()
        answered.set()

    inbox, source = Inbox(SystemClock()), Recorder()
    pool = HandlerPool(make_slots(handle, HandlersIn.THREADS, count=1, timeout_s=0.01), inbox, clock=SystemClock())
    pool.start()
    inbox.put(messages(b"slow", source=source))
    await until(lambda: source.answers == [("REQ", b"slow", None, True)])
    release.set()
    await until(answered.is_set)
    await pool.stop()
    assert source.answers == [("REQ", b"slow", None, True)]
