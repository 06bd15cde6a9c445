"""An event loop in a thread: who waits gets an answer, whatever happens."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from emberq.base.task import LoopThread
from emberq.client import ClosedError, RequestTimeoutError
from tests.support.waiting import wait_until


async def nothing() -> None:
    pass


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("loop", closed_error=ClosedError, timeout_error=RequestTimeoutError)
    yield thread
    thread.end(nothing)
    assert "loop" not in [each.name for each in threading.enumerate()]


def test_work_is_done_in_another_thread_and_its_result_brought_back(loop: LoopThread) -> None:
    async def name() -> str:
        return threading.current_thread().name

    assert loop.run(name) == "loop"


def test_what_work_raises_is_raised(loop: LoopThread) -> None:
    async def fail() -> None:
        raise KeyError("as told")

    with pytest.raises(KeyError, match="as told"):
        loop.run(fail)


async def test_work_is_asked_for_from_another_loop_and_from_itself(loop: LoopThread) -> None:
    async def name() -> str:
        assert loop.is_current
        return threading.current_thread().name

    async def ask_again() -> str:
        return await loop.ask(name)

    assert not loop.is_current
    assert (await loop.ask(name), await loop.ask(ask_again)) == ("loop", "loop")


async def test_the_end_cancels_what_was_asked_for_and_refuses_the_rest(loop: LoopThread) -> None:
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    waiting = asyncio.ensure_future(loop.ask(wait))
    await asyncio.to_thread(begun.wait, 10)
    loop.end()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ClosedError):
        await loop.ask(nothing)


def test_a_timeout_of_ones_own_is_told_from_that_of_the_work(loop: LoopThread) -> None:
    async def time_out() -> None:
        raise TimeoutError("mine")

    with pytest.raises(RequestTimeoutError, match="not done within 0 s"):
        loop.run(asyncio.Event().wait, timeout_s=0)
    with pytest.raises(TimeoutError, match="mine"):
        loop.run(time_out, timeout_s=10)


def test_the_last_work_is_done_before_the_end_and_only_once(loop: LoopThread) -> None:
    done = []

    async def last() -> None:
        done.append(threading.current_thread().name)

    loop.run(nothing)
    loop.end(last)
    loop.end(last)
    assert done == ["loop"]
    with pytest.raises(ClosedError):
        loop.run(nothing)


def test_the_end_answers_those_who_wait(loop: LoopThread) -> None:
    is_waiting = threading.Event()

    async def wait() -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(loop.run, wait)
        is_waiting.wait()
        loop.end(nothing)
        with pytest.raises(ClosedError):
            waiting.result()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """SIGINT as a program finds it, whatever the tests of programs have left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_cuts_the_last_work_short(loop: LoopThread) -> None:
    was_cancelled = []

    async def hang() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.append(True)
            raise

    loop.run(nothing)
    with pytest.raises(KeyboardInterrupt):
        loop.end(hang)
    assert was_cancelled == [True]


@contextmanager
def interrupt_at_line(number: int, function: Callable[..., None]) -> Iterator[None]:
    """Raise KeyboardInterrupt before the line of the function that is run as the `number`th, as a signal might."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        if frame.f_code is not function.__code__:
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_an_interrupt_at_any_line_leaves_a_loop_that_can_be_ended() -> None:
    for line in range(1, 100):
        loop = LoopThread("loop")
        loop.run(nothing)
        was_interrupted = False
        try:
            with interrupt_at_line(line, LoopThread.end):
                loop.end(nothing)
        except KeyboardInterrupt:
            was_interrupted = True
        loop.end()
        assert "loop" not in [each.name for each in threading.enumerate()]
        if not was_interrupted:
            break
    assert line > 5, "the function was not traced"


def test_a_forgotten_loop_ends_by_itself(loop: LoopThread) -> None:
    loop.run(nothing)
    loop.end_soon()
    wait_until(lambda: "loop" not in [each.name for each in threading.enumerate()])


def test_a_loop_that_was_never_used_never_began(loop: LoopThread) -> None:
    loop.end_soon()
    assert "loop" not in [each.name for each in threading.enumerate()]
