"""Where handlers run, and what becomes of those that take too long."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import HandlersIn
from emberq.client.error import HandlerTimeoutError, WorkerCrashedError
from emberq.client.message import Message
from emberq.client.worker import HandlerRunner, default_concurrency, make_slots
from tests.client.test_handler_inbox import messages
from tests.support.handler_threads import handler_threads
from tests.support.loop import advance
from tests.support.process_handlers import SlowToImport, obey, write_down
from tests.support.waiting import PATIENCE_S, until

THREADS, PROCESSES = HandlersIn.THREADS, HandlersIn.PROCESSES


async def coroutine(message: Message) -> None:
    pass


def plain(message: Message) -> None:
    pass


@asynccontextmanager
async def slot_for(
    handler: Any, handlers_in: HandlersIn = THREADS, *, timeout_s: float | None = None
) -> AsyncIterator[HandlerRunner]:
    """A slot for a handler that must not leave a thread behind."""
    before = handler_threads()
    (slot,) = make_slots(handler, handlers_in, count=1, timeout_s=timeout_s)
    yield slot
    await slot.close()
    await until(lambda: handler_threads() <= before)


def one(body: bytes = b"body") -> Message:
    return messages(body)[0]


def test_there_are_fewer_processes_than_threads_than_coroutines_and_always_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert default_concurrency(coroutine, THREADS, max_in_flight=500) == 500
    assert default_concurrency(plain, THREADS, max_in_flight=500) == 32
    assert default_concurrency(plain, PROCESSES, max_in_flight=500) == 4
    assert default_concurrency(plain, PROCESSES, max_in_flight=0) == 1


@pytest.mark.parametrize("handler", [coroutine, lambda message: None])
def test_what_cannot_run_in_a_process_is_refused(handler: Any) -> None:
    with pytest.raises(ValueError, match=r"process"):
        make_slots(handler, PROCESSES, count=1, timeout_s=None)


# Coroutines


async def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    ended: list[str] = []

    async def handle(message: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async with slot_for(handle, timeout_s=0.01) as slot:
        with pytest.raises(HandlerTimeoutError, match=r"0\.01 s"):
            await slot.run(one())
        assert ended == ["cancelled"]
        await slot.recover()


async def test_a_coroutine_that_swallows_its_cancellation_has_still_taken_too_long() -> None:
    async def handle(message: Message) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async with slot_for(handle, timeout_s=0.01) as slot:
        with pytest.raises(HandlerTimeoutError):
            await slot.run(one())


async def test_a_timeout_of_the_handler_s_own_is_an_error_like_any_other() -> None:
    async def handle(message: Message) -> None:
        raise TimeoutError("a database")

    async with slot_for(handle, timeout_s=60) as slot:
        with pytest.raises(TimeoutError, match="a database") as raised:
            await slot.run(one())
        assert not isinstance(raised.value, HandlerTimeoutError)


# Threads


async def test_a_thread_that_takes_too_long_is_left_behind_and_its_slot_given_back() -> None:
    began, release = threading.Event(), threading.Event()
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"hang":
            began.set()
            assert release.wait(PATIENCE_S)
        handled.append(message.body)

    async with slot_for(handle, timeout_s=60) as slot:
        running = asyncio.ensure_future(slot.run(one(b"hang")))
        await until(began.is_set)
        advance(60)
        with pytest.raises(HandlerTimeoutError):
            await running
        await slot.recover()
        await slot.run(one(b"next"))
        assert handled == [b"next"]
        release.set()


async def test_slots_wait_when_too_many_threads_have_been_left_behind() -> None:
    release = threading.Event()

    def handle(message: Message) -> None:
        assert release.wait(PATIENCE_S)

    async with slot_for(handle, timeout_s=0.001) as slot:
        for _ in range(2):
            with pytest.raises(HandlerTimeoutError):
                await slot.run(one())
            recovering = asyncio.create_task(slot.recover())
            await asyncio.sleep(0)
        assert not recovering.done()
        release.set()
        await recovering


# Processes


async def test_a_process_handles_messages_and_is_used_again(tmp_path: Path) -> None:
    async with slot_for(functools.partial(write_down, str(tmp_path)), PROCESSES) as slot:
        await slot.run(one(b"first"))
        await slot.run(one(b"second"))
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("body", [b"exit", b"be killed"])
async def test_a_process_that_crashes_is_replaced(body: bytes) -> None:
    async with slot_for(obey, PROCESSES) as slot:
        with pytest.raises(WorkerCrashedError):
            await slot.run(one(body))
        await slot.run(one(b"next"))


async def test_a_process_that_takes_too_long_is_killed_and_replaced(tmp_path: Path) -> None:
    async with slot_for(functools.partial(write_down, str(tmp_path)), PROCESSES, timeout_s=60) as slot:
        running = asyncio.ensure_future(slot.run(one(b"hang")))
        await until((tmp_path / "hang").exists)
        advance(60)
        with pytest.raises(HandlerTimeoutError):
            await running
        assert not _is_running((tmp_path / "hang").read_text())
        await slot.recover()
        await slot.run(one(b"next"))


async def test_a_process_is_killed_when_its_consumer_stops_waiting(tmp_path: Path) -> None:
    async with slot_for(functools.partial(write_down, str(tmp_path)), PROCESSES) as slot:
        running = asyncio.ensure_future(slot.run(one(b"hang")))
        await until((tmp_path / "hang").exists)
        running.cancel()
        await asyncio.wait([running])
    assert not _is_running((tmp_path / "hang").read_text())


async def test_a_process_that_has_not_come_up_yet_is_not_waited_for() -> None:
    async with slot_for(SlowToImport(), PROCESSES) as slot:
        running = asyncio.ensure_future(slot.run(one()))
        await until(lambda: bool(multiprocessing.active_children()))
        running.cancel()
        await asyncio.wait([running])
    assert multiprocessing.active_children() == []


def _is_running(pid: str) -> bool:
    return Path("/proc", pid).exists()
