"""Work for other threads, and its results back in the loop's."""

from __future__ import annotations

import asyncio
import threading

import pytest

from emberq.nsqd.daemon import JournalThreads


def test_without_a_loop_work_is_done_at_once() -> None:
    threads, done = JournalThreads(), list[str]()
    threads.start(lambda: done.append("work"))
    threads.hand_back(lambda: done.append("result"))
    assert done == ["work", "result"]


async def test_work_runs_in_another_thread_and_comes_back_to_the_loop() -> None:
    threads = JournalThreads()
    loop = asyncio.get_running_loop()
    threads.use(loop)
    ran_in: asyncio.Future[tuple[str, int]] = loop.create_future()

    def work() -> None:
        worker = threading.current_thread().name
        threads.hand_back(lambda: ran_in.set_result((worker, threading.get_ident())))

    threads.start(work)
    worker, handed_back_to = await ran_in
    assert worker.startswith("emberq-journal")
    assert handed_back_to == threading.get_ident()
    threads.close()


async def test_close_returns_when_all_work_is_done() -> None:
    threads, done = JournalThreads(), list[int]()
    threads.use(asyncio.get_running_loop())
    for number in range(20):
        threads.start(lambda number=number: done.append(number))  # type: ignore[misc]
    threads.close()
    assert sorted(done) == list(range(20))
    threads.start(lambda: done.append(20))
    assert done[-1] == 20


async def test_a_defect_in_the_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    threads = JournalThreads()
    threads.use(asyncio.get_running_loop())

    def work() -> None:
        raise ZeroDivisionError

    threads.start(work)
    threads.close()
    assert "a journal thread failed: ZeroDivisionError()" in caplog.text
