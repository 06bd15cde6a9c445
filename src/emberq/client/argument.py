"""Types and values of arguments and settings, checked where users give them.

A setting of the wrong type would be noticed late, far away, or never: `max_in_flight="10"` in the first comparison, a
`snappy="no"` not at all. So every config checks its fields when it is made, and every class its arguments.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, SupportsFloat

from emberq.wire.parameter import is_valid_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "an int"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "True or False"),
    "str": ((str,), "a str"),
    "bytes": ((bytes,), "bytes; encode it: .encode()"),
}
"""By the annotation of a field: what it may be, and how that is told."""

_is_valid_name = lru_cache(maxsize=1024)(is_valid_name)
"""A producer asks for every message, mostly of the same few topics."""


def check_field_types(config: DataclassInstance) -> None:
    """TypeError if a field that is annotated with a plain type holds something else. The value of a secret is not told:
    it is a field that `repr` leaves out."""
    for each in fields(config):
        kind = _KINDS.get(each.type)
        if kind is not None:
            allowed, told = kind
            _check(each.name, getattr(config, each.name), allowed, told, is_shown=each.repr)


def check_int(name: str, value: object, *, at_least: int) -> None:
    """TypeError or ValueError unless an argument is a whole number from `at_least` on."""
    _check(name, value, (int,), "an int", is_shown=True)
    if isinstance(value, int) and value < at_least:
        raise ValueError(f"{name} is {value}; it must be at least {at_least}")


def check_name(kind: str, name: object) -> None:
    """TypeError or ValueError unless it can be the name of a topic or channel, as `kind` says."""
    if not isinstance(name, str):
        raise TypeError(f"the {kind} is {describe(name)}; it must be a str")
    if not _is_valid_name(name):
        raise ValueError(f"{name!r} is not a valid {kind} name: 1 to 64 of . _ - a-z A-Z 0-9, perhaps with #ephemeral")


def check_instance(name: str, value: object, kind: type, *, hint: str = "") -> None:
    """TypeError unless an argument is None or of this class of ours."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is {describe(value)}; it must be a {kind.__name__}{hint}")


def _check(name: str, value: Any, allowed: tuple[type, ...], told: str, *, is_shown: bool) -> None:
    is_flag = bool not in allowed and isinstance(value, bool)  # True is an int, but not meant as one
    if is_flag or not isinstance(value, allowed):
        shown = describe(value) if is_shown else f"of type {type(value).__qualname__}"
        raise TypeError(f"{name} is {shown}; it must be {told}")


MAX_TEXT = 80
"""What a handler returns may be the whole message; the beginning is enough to recognise it."""


def describe(value: object) -> str:
    """The type and, as far as it tells something, the value. Its `repr` may be the user's, and may raise."""
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


def discard(value: object) -> None:
    """Let go of a coroutine that will not run, so that Python does not complain about it elsewhere."""
    if inspect.iscoroutine(value):
        value.close()


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; also for objects that can be called, and for partials."""
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
    """`check_callable`, and TypeError for a coroutine function: what it returns would not be awaited."""
    check_callable(name, function, arguments=arguments)
    if is_coroutine_function(function):
        raise TypeError(f"{name} is a coroutine function; it must be a plain one")


def in_seconds(name: str, delay: object) -> float:
    """The seconds that `delay`, the argument or result called `name`, stands for: a number, or a `timedelta`.

    TypeError for anything else, ValueError for NaN.
    """
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, SupportsFloat):
        discard(delay)
        raise TypeError(f"{name} is {describe(delay)}; it must be a number of seconds, or a timedelta")
    seconds = float(delay)
    if math.isnan(seconds):
        raise ValueError(f"{name} is NaN; it must be a number of seconds, or a timedelta")
    return seconds


def delay_in_seconds(name: str, delay: object) -> float:
    """`in_seconds` for a time that lies ahead: ValueError if it is below 0 or infinite."""
    seconds = in_seconds(name, delay)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} is {seconds} s; it must be finite and not below 0")
    return seconds
