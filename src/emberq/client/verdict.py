"""What becomes of a message when a function of the user is done with it: its handler, or the hook for giving up.

    returns None or True      the message is done
    returns False             it has failed and comes again (`HandlerDeclined`)
    returns an awaitable      it is awaited, and what comes of it is judged in its place
    returns anything else     it comes again (`BadReturnValue`): whether the work was done cannot be known
    raises                    it comes again

`SystemExit` and `KeyboardInterrupt` in the main thread end the program, as everywhere in Python: a signal may have
raised them, in the midst of any function. The message is not finished. In any other thread nothing would end but a part
of the client, so there they are failures like all others.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from emberq.client.error import BadReturnValue, HandlerDeclined

if TYPE_CHECKING:
    from emberq.client.message import Message

MAX_AWAITS = 3
"""A coroutine function that forgets an `await` returns an awaitable, and so may the function that it called. What still
is one after these will never be anything else."""
MAX_TEXT = 80
"""What a handler returns may be the whole message; the beginning is enough to recognise it."""


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
        raise HandlerDeclined(f"{function} returned False")
    discard(value)
    raise BadReturnValue(
        f"{function} returned {describe(value)}; return None or True when the message is done, and False, or raise, "
        "when it should come again"
    )


def describe(value: object) -> str:
    """The type and, as far as it tells something, the value. A function of the user's makes the text, and may raise."""
    if value is None:
        return "None"
    kind = type(value).__qualname__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    if not isinstance(value, str | bytes | int | float):
        return f"{article} {kind}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a subclass
        return f"{article} {kind}"
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def describe_error(error: BaseException) -> str:
    """Type and text, as at the end of a traceback; also of an exception whose text cannot be made."""
    return "".join(traceback.format_exception_only(error)).rstrip()


def discard(value: object) -> None:
    """Let go of a coroutine that will not run, so that Python does not complain about it elsewhere."""
    if inspect.iscoroutine(value):
        value.close()


def ends_program(error: BaseException) -> bool:
    """Whether it is not ours to hold back."""
    is_exit = isinstance(error, SystemExit | KeyboardInterrupt)
    return is_exit and threading.current_thread() is threading.main_thread()


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


# Functions, before they are called


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Also for objects that can be called, and for partials of both."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_callable(name: str, function: object, *, arguments: tuple[str, ...] = ("message",)) -> None:
    """TypeError if `function`, given as `name`, cannot be called with such arguments, or would not run if it were."""
    if inspect.iscoroutine(function):
        discard(function)
        raise TypeError(f"{name} is what calling a coroutine function returned; give the function itself, without ()")
    if not callable(function):
        raise TypeError(f"{name} is {describe(function)}; it must be a function")
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    for each in (target, type(target).__call__):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise TypeError(f"{name} is a generator function: calling it does nothing, because of its yield")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions of compiled modules do not tell
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{name} must take {' and '.join(arguments)}: {error}") from error


def check_plain_function(name: str, function: Callable[..., Any], *, arguments: tuple[str, ...]) -> None:
    """The same where nothing is awaited."""
    check_callable(name, function, arguments=arguments)
    if is_coroutine_function(function):
        raise TypeError(f"{name} is a coroutine function; it must be a plain one")
