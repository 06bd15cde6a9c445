"""The types of what users set, checked where they set it.

A setting of the wrong type would be noticed late, far away, or never: `max_in_flight="10"` in the first comparison, a
`snappy="no"` not at all. So every config checks its fields when it is made, and every class its arguments.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from emberq.client.verdict import describe
from emberq.wire.name import is_valid_name

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
    if not is_valid_name(name):
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
