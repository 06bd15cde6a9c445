"""What becomes of a message when a function of the user is done with it: its handler, or the hook for giving up.

    returns None or True      the message is done
    returns False             it has failed and comes again (`HandlerDeclinedError`)
    returns an awaitable      it is awaited, and what comes of it is judged in its place
    returns anything else     it comes again (`BadReturnValueError`): whether the work was done cannot be known
    raises                    it comes again

`SystemExit` and `KeyboardInterrupt` in the main thread end the program, as everywhere in Python: a signal may have
raised them, in the midst of any function. The message is not finished. In any other thread nothing would end but a part
of the client, so there they are failures like all others.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from emberq.client.argument import describe, discard
from emberq.client.error import BadReturnValueError, HandlerDeclinedError
from emberq.client.message import Message

MAX_AWAITS = 3
"""A coroutine function that forgets an `await` returns an awaitable, and so may the function that it called. What still
is one after these will never be anything else."""


async def settle(message: Message, value: object, *, function: str = "the handler") -> None:
    """Judge what a function returned for a message: return if it is done, which may take a while if `value` can be
    awaited; raise if it has failed. A message that has been answered needs no judgement."""
    for _ in range(MAX_AWAITS):
        if not inspect.isawaitable(value):
            break
        value = await value
    if not message.is_answered:
        check_returned(value, function=function)
    else:
        discard(value)


def check_returned(value: object, *, function: str = "the handler") -> None:
    """Raise unless the message is done."""
    if value is None or value is True:
        return
    if value is False:
        raise HandlerDeclinedError(f"{function} returned False")
    discard(value)
    raise BadReturnValueError(
        f"{function} returned {describe(value)}; return None or True when the message is done, and False, or raise, "
        "when it should come again"
    )


def is_end_of(task: asyncio.Task[Any] | None, error: BaseException) -> bool:
    """Whether the error ends the task, be it cancelled or dropped by a loop that has ended, and is not the function's.

    What a handler awaited may have been cancelled while the handler was not, and a handler can raise all of these.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit) and _current_task() is not task


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None
