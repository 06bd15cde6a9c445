"""A thread that calls blocking functions, one after the other, for a task of an event loop.

Why not an executor: a thread of an executor that hangs keeps its place there, and is waited for when the program ends.
A `WorkerThread` can be left behind: whoever is tired of waiting ends it and takes a new one. The old one goes when its
function returns, if it ever does, and does not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVarTuple, Unpack

from emberq.client.argument import discard

_Arguments = TypeVarTuple("_Arguments")


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
    """Belongs to one event loop. It is started by its first call."""

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
