"""Threads that work for an event loop and can be left behind."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from emberq.client.worker import Returned, WorkerThread
from tests.support.handler_threads import handler_threads
from tests.support.waiting import PATIENCE_S, until

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")


def raises(error: BaseException) -> None:
    raise error


async def test_calls_are_made_one_after_the_other_in_one_thread() -> None:
    thread = WorkerThread()
    called: list[tuple[int, int]] = []
    outcomes = [thread.call(lambda number: called.append((number, threading.get_ident())), n) for n in range(5)]
    assert await asyncio.gather(*outcomes) == [Returned(None)] * 5
    assert [number for number, _ in called] == list(range(5))
    assert len({ident for _, ident in called} - {threading.get_ident()}) == 1
    thread.end()


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(), SystemExit(3)])
async def test_whatever_is_raised_is_the_outcome_and_the_thread_goes_on(error: BaseException) -> None:
    thread = WorkerThread()
    assert await thread.call(raises, error) is error
    assert await thread.call(lambda: None) == Returned(None)
    thread.end()


async def test_the_function_sees_the_context_of_its_caller() -> None:
    thread = WorkerThread()
    seen: list[str] = []
    variable.set("here")
    await thread.call(lambda: seen.append(variable.get()))
    assert seen == ["here"]
    thread.end()


async def test_a_thread_that_is_told_to_end_is_gone_when_its_work_is_done() -> None:
    before = handler_threads()
    thread, release = WorkerThread(), threading.Event()
    waiting = thread.call(release.wait, PATIENCE_S)
    thread.end()
    waiting.cancel()
    (started,) = handler_threads() - before
    release.set()
    await until(lambda: not started.is_alive())


def test_a_thread_that_hangs_does_not_keep_the_program_from_ending() -> None:
    program = """
import asyncio, time
from emberq.client.worker import Returned, WorkerThread

async def main():
    WorkerThread().call(time.sleep, 600)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
