"""Where handlers run: event loop, thread, process.

A `HandlerRunner` (slot) has room for one handler at a time; a consumer has as many slots as `concurrency` says.

    coroutine function              in the event loop
    plain function                  in a thread, or in a process: `HandlersIn`
    plain function that returns     called in a thread, then awaited in the event loop; not in a process
    an awaitable

Nothing that a thread or a process does holds up the event loop, so heartbeats are answered and messages touched. A
thread shares Python's interpreter lock with the loop: work that keeps the CPU busy for long belongs into processes.

What happens when a handler takes longer than `timeout_s`, besides `HandlerTimeoutError` being raised:

    coroutine     it is cancelled; the timeout counts when it has ended, so that no two work on one message. One that
                  refuses to end keeps its slot and its message, until nsqd takes the message back.
    thread        cannot be stopped, so it is left behind and a new one takes its slot. What it still does with its
                  message is ignored. No more than one thread per slot is left behind: if all slots have hung twice,
                  they wait for threads to come back.
    process       is killed; the slot gets a new one with the next message.

Threads are no executor's: a thread of an executor that hangs keeps its place there, and is waited for when the program
ends. A `WorkerThread` can be left behind. It ends when its function returns, if it ever does, and does not keep the
program from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVarTuple, Unpack

from emberq.client.argument import check_callable, discard, is_coroutine_function
from emberq.client.config import HandlersIn
from emberq.client.error import HandlerTimeoutError, RemoteError
from emberq.client.message import Message, MessageSnapshot
from emberq.client.verdict import settle

if TYPE_CHECKING:
    from emberq.client.worker_process import WorkerProcess

_Arguments = TypeVarTuple("_Arguments")


# A thread for blocking functions


class Returned(NamedTuple):
    """A function returned this."""

    value: object


Outcome: TypeAlias = "asyncio.Future[BaseException | Returned]"
"""What a function raised or returned. Not as the exception of the future: some (StopIteration) cannot be that."""


class _Call(NamedTuple):
    function: Callable[..., object]
    arguments: tuple[Any, ...]
    context: contextvars.Context
    outcome: Outcome


class WorkerThread:
    """Calls blocking functions, one after the other, for one event loop. It is started by its first call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emberq-handler", daemon=True)

    def call(self, function: Callable[[Unpack[_Arguments]], object], *arguments: *_Arguments) -> Outcome:
        """Let the thread call the function, behind whatever it was asked to do before.

        The function sees the context variables of the caller. Cancelling the outcome takes nothing back.
        """
        outcome: Outcome = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, arguments, contextvars.copy_context(), outcome))
        if self._thread.ident is None:
            self._thread.start()
        return outcome

    def end(self) -> None:
        """Let the thread end when it has done what it was asked to do."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            result = _result_of(call)
            try:
                call.outcome.get_loop().call_soon_threadsafe(_settle, call.outcome, result)
            except RuntimeError:
                return  # the loop is closed: no task is left that could want to know, or ask for more
            del call, result  # a message must not live until the next one comes


def _result_of(call: _Call) -> BaseException | Returned:
    try:
        return Returned(call.context.run(call.function, *call.arguments))
    except BaseException as error:  # noqa: BLE001 - it is not ours to judge; the caller gets it
        return error


def _settle(outcome: Outcome, result: BaseException | Returned) -> None:
    if not outcome.done():
        outcome.set_result(result)
    elif isinstance(result, Returned):
        discard(result.value)


# Slots

MAX_COROUTINES = 1000
MAX_THREADS = 32
"""Of one consumer that does not say otherwise. Threads cost memory; coroutines cost little, but each has a message."""

Handler: TypeAlias = Callable[[Message], Any] | Callable[[MessageSnapshot], Any]
"""A coroutine function or a plain function of a message; one that runs in a process gets a `MessageSnapshot`. What it
may return is told in `verdict`."""


class HandlerRunner(Protocol):
    """Used by one task, which calls `recover` after a `HandlerTimeoutError`."""

    @property
    def run(self) -> Callable[[Message], Awaitable[Any]]:
        """Handles a message and returns what is left to be settled (see `verdict`); raises what the handler raises,
        `HandlerTimeoutError`, or `WorkerCrashedError`."""
        ...

    async def recover(self) -> None:
        """Return when the next handler can be run."""

    async def close(self) -> None:
        """Give back what it holds. Not while `run` runs."""


def default_concurrency(handler: Handler, handlers_in: HandlersIn, *, max_in_flight: int) -> int:
    """How many messages are handled at the same time unless the user says so."""
    if is_coroutine_function(handler):
        most = MAX_COROUTINES
    elif handlers_in == HandlersIn.THREADS:
        most = MAX_THREADS
    else:
        most = os.cpu_count() or 1
    return max(1, min(max_in_flight, most))


def make_slots(handler: Any, handlers_in: HandlersIn, *, count: int, timeout_s: float | None) -> list[HandlerRunner]:
    """Slots for a handler; ValueError if it cannot run there, TypeError if it can run nowhere."""
    check_callable("handler", handler)
    if handlers_in == HandlersIn.PROCESSES:
        return _process_slots(handler, count=count, timeout_s=timeout_s)
    if is_coroutine_function(handler):
        return [CoroutineSlot(handler, timeout_s=timeout_s) for _ in range(count)]
    left_behind: set[Outcome] = set()
    return [ThreadSlot(handler, timeout_s=timeout_s, left_behind=left_behind, max_left=count) for _ in range(count)]


def _process_slots(handler: Any, *, count: int, timeout_s: float | None) -> list[HandlerRunner]:
    # Imported here because it brings in multiprocessing, which few consumers need and all would wait for.
    from emberq.client.worker_process import WorkerProcess, pickled_handler

    if is_coroutine_function(handler):
        raise ValueError(f"{handler!r} is a coroutine function; those run in the event loop, not in processes")
    pickled = pickled_handler(handler)
    return [ProcessSlot(pickled, start_worker=WorkerProcess.start, timeout_s=timeout_s) for _ in range(count)]


class CoroutineSlot:
    """Runs handlers in the task that uses it."""

    def __init__(self, handler: Callable[[Message], Awaitable[Any]], *, timeout_s: float | None) -> None:
        self._handler = handler
        # Without a limit, nothing stands in between.
        self.run = handler if timeout_s is None else partial(self._run_in_time, timeout_s)

    async def _run_in_time(self, timeout_s: float, message: Message) -> None:
        began_s = asyncio.get_running_loop().time()
        await _settle_in_time(message, self._handler(message), began_s=began_s, timeout_s=timeout_s)

    async def recover(self) -> None:
        pass  # it has ended

    async def close(self) -> None:
        pass  # it has nothing


class ThreadSlot:
    """Runs handlers in a thread of its own, which lives as long as the slot unless it is left behind."""

    def __init__(
        self,
        handler: Callable[[Message], Any],
        *,
        timeout_s: float | None,
        left_behind: set[Outcome],
        max_left: int,
    ) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        self._left_behind = left_behind
        """What the threads that were left behind still do, of all slots of a consumer."""
        self._max_left = max_left
        self._thread = WorkerThread()

    async def run(self, message: Message) -> object:
        began_s = asyncio.get_running_loop().time()
        outcome = self._thread.call(self._handler, message)
        if not await _comes_in_time(outcome, self._timeout_s):
            self._left_behind.add(outcome)
            outcome.add_done_callback(self._left_behind.discard)
            raise _took_too_long(self._timeout_s)
        value = _value_of(outcome)
        if self._timeout_s is None or not inspect.isawaitable(value):
            return value
        await _settle_in_time(message, value, began_s=began_s, timeout_s=self._timeout_s)
        return None

    async def recover(self) -> None:
        self._thread.end()
        while len(self._left_behind) > self._max_left:
            await asyncio.wait(self._left_behind, return_when=asyncio.FIRST_COMPLETED)
        self._thread = WorkerThread()

    async def close(self) -> None:
        self._thread.end()


class ProcessSlot:
    """Runs handlers in a process of its own. A thread waits for it, so that the event loop need not."""

    def __init__(
        self, handler: bytes, *, start_worker: Callable[[bytes], WorkerProcess], timeout_s: float | None
    ) -> None:
        self._handler = handler
        self._start_worker = start_worker
        self._timeout_s = timeout_s
        self._thread = WorkerThread()
        self._worker: WorkerProcess | None = None
        self._is_cancelled = False
        """The worker that is being started is no longer wanted."""

    async def run(self, message: Message) -> None:
        worker = await self._ready_worker()
        outcome = self._thread.call(worker.handle, MessageSnapshot.of(message))
        try:
            is_in_time = await _comes_in_time(outcome, self._timeout_s)
        except asyncio.CancelledError:
            worker.kill()
            raise
        if not is_in_time:
            worker.kill()
            await outcome  # which is that it was killed
            raise _took_too_long(self._timeout_s)
        _value_of(outcome)

    async def recover(self) -> None:
        pass  # the next message finds no worker that is ready, and starts one

    async def close(self) -> None:
        await self._thread.call(self._stop_worker)
        self._thread.end()

    async def _ready_worker(self) -> WorkerProcess:
        """The worker, or a new one, which takes a while that is not the handler's."""
        while self._worker is None or not self._worker.is_ready:
            starting = self._thread.call(self._replace_worker)
            try:
                await starting
            except asyncio.CancelledError:
                self._is_cancelled = True
                if self._worker is not None:
                    self._worker.kill()
                raise
            _value_of(starting)
        return self._worker

    # In the thread

    def _replace_worker(self) -> None:
        self._stop_worker()
        self._worker = self._start_worker(self._handler)
        if self._is_cancelled:
            self._worker.kill()
        self._worker.wait_until_ready()

    def _stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


async def _comes_in_time(outcome: Outcome, timeout_s: float | None) -> bool:
    """Whether the outcome is there; False after `timeout_s`."""
    if timeout_s is None:
        await outcome
    else:
        await asyncio.wait([outcome], timeout=timeout_s)
    return outcome.done()


async def _settle_in_time(message: Message, value: object, *, began_s: float, timeout_s: float) -> None:
    """Await what a handler returned and see whether the message is done; its time began at `began_s`."""
    try:
        async with asyncio.timeout_at(began_s + timeout_s) as limit:
            await settle(message, value)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the handler's own
        raise _took_too_long(timeout_s) from error
    if limit.expired():
        raise _took_too_long(timeout_s)  # it was cancelled and would not say so


def _value_of(outcome: Outcome) -> object:
    """What the function returned; raises what it raised.

    What would end the event loop, or look like its own doing (`SystemExit`, `CancelledError`), ended nothing where it
    was raised, and becomes a `RemoteError` here.
    """
    result = outcome.result()
    if isinstance(result, Exception):
        raise result
    if isinstance(result, BaseException):
        raise RemoteError(f"the handler raised {type(result).__qualname__} in its thread") from result
    return result.value


def _took_too_long(timeout_s: float | None) -> HandlerTimeoutError:
    return HandlerTimeoutError(f"the handler took longer than {timeout_s} s")
