"""Running handlers."""

from __future__ import annotations

import asyncio
import functools

import pytest

from emberq.base.clock import ManualClock, SystemClock
from emberq.client.handler import HandlerPool, default_concurrency, is_coroutine_function
from emberq.client.inbox import Inbox
from emberq.client.message import Message
from tests.client.eventually import eventually
from tests.client.scripted_nsqd import run
from tests.client.test_inbox import messages
from tests.client.test_message import Recorder


async def coroutine(message: Message) -> None:
    pass


def plain(message: Message) -> None:
    pass


class CallableObject:
    async def __call__(self, message: Message) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (coroutine, True),
        (functools.partial(coroutine), True),
        (CallableObject(), True),
        (plain, False),
        (functools.partial(plain), False),
        (print, False),
    ],
)
def test_coroutine_functions_are_told_from_plain_ones(handler: object, expected: bool) -> None:
    assert is_coroutine_function(handler) is expected  # type: ignore[arg-type]


def test_threads_are_fewer_than_coroutines_and_there_is_always_one() -> None:
    assert default_concurrency(coroutine, max_in_flight=500) == 500
    assert default_concurrency(plain, max_in_flight=500) == 32
    assert default_concurrency(plain, max_in_flight=0) == 1


def test_handlers_run_at_the_same_time_but_no_more_than_allowed() -> None:
    async def work() -> None:
        running = most = 0
        release = asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

        inbox, source = Inbox(ManualClock()), Recorder()
        pool = HandlerPool(handle, inbox, concurrency=3, clock=ManualClock())
        pool.start()
        inbox.put(messages(*[b"x"] * 7, source=source))
        await eventually(lambda: running == 3)
        release.set()
        await eventually(lambda: len(source.answers) == 7)
        assert most == 3
        await pool.stop()

    run(work)


def test_a_handler_that_never_waits_leaves_the_loop_its_turns() -> None:
    async def work() -> None:
        clock, source = ManualClock(), Recorder()
        handled_at_turn: list[int] = []

        async def handle(message: Message) -> None:
            clock.advance(ms=4)
            handled_at_turn.append(turn)

        turn = 0
        inbox = Inbox(clock)
        pool = HandlerPool(handle, inbox, concurrency=1, clock=clock)
        pool.start()
        inbox.put(messages(*[b"x"] * 9, source=source))
        while len(source.answers) < 9:
            turn += 1
            await asyncio.sleep(0)
        assert len(set(handled_at_turn)) == 3
        await pool.stop()

    run(work)


def test_a_retry_policy_that_fails_leaves_the_default_delay() -> None:
    async def work() -> None:
        def policy(message: Message, error: BaseException) -> float:
            raise KeyError("the policy")

        def handle(message: Message) -> None:
            raise OSError("the handler")

        inbox, source = Inbox(SystemClock()), Recorder()
        pool = HandlerPool(handle, inbox, concurrency=1, clock=SystemClock(), retry_delay_s=policy)
        pool.start()
        inbox.put(messages(b"x", source=source))
        await eventually(lambda: source.answers == [("REQ", b"x", None, True)])
        await pool.stop()

    run(work)
