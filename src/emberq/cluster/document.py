"""Reading the JSON of daemons of any version.

What an older daemon leaves out, or any daemon says is null, has the value that says nothing: 0, "", false, an empty
list. What is there but of the wrong type makes the whole answer one not to be trusted: MalformedDocument.

Daemons before 1.0 wrap their answers: `{"status_code": 200, "status_txt": "OK", "data": {…}}`.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

Document = dict[str, Any]


class MalformedDocument(Exception):
    """An answer that is JSON, but not what was asked for."""


def as_document(answer: Any) -> Document:
    """The object that the answer is, without an old daemon's wrapping."""
    if not isinstance(answer, dict):
        raise MalformedDocument("the answer is not a JSON object")
    wrapped = answer.get("data")
    return wrapped if isinstance(wrapped, dict) and "status_code" in answer else answer


def integer(document: Document, key: str) -> int:
    """A whole number; one written as `1e6` or `2.0` counts."""
    value = document.get(key)
    if type(value) is int:  # nearly always, and a bool is none
        return value
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _wrong(key)


class Integers:
    """Reads several whole numbers, two or more, in the time of one or two: for what an answer has thousands of."""

    def __init__(self, *keys: str) -> None:
        self._keys = keys
        self._all_of = itemgetter(*keys)

    def of(self, document: Document) -> tuple[int, ...]:
        """The numbers, in the order of the keys."""
        values: tuple[Any, ...]
        try:
            values = self._all_of(document)
        except KeyError:
            values = ()
        if _ONLY_INTEGERS.issuperset(map(type, values)) and values:
            return values
        return tuple(integer(document, key) for key in self._keys)


_ONLY_INTEGERS = frozenset({int})


def number(document: Document, key: str) -> float:
    """Any number."""
    value = document.get(key)
    if value is None:
        return 0.0
    if type(value) in (int, float):
        return float(value)
    raise _wrong(key)


def text(document: Document, key: str) -> str:
    """A string."""
    value = document.get(key)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise _wrong(key)


def flag(document: Document, key: str) -> bool:
    """True or false."""
    value = document.get(key)
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    raise _wrong(key)


def texts(document: Document, key: str) -> list[str]:
    """A list of strings."""
    return _list_of(str, document, key)


def flags(document: Document, key: str) -> list[bool]:
    """A list of booleans."""
    return _list_of(bool, document, key)


def objects(document: Document, key: str) -> list[Document]:
    """A list of objects."""
    return _list_of(dict, document, key)


def _list_of(kind: type, document: Document, key: str) -> list[Any]:
    values = document.get(key)
    if values is None:
        return []
    if isinstance(values, list) and {kind}.issuperset(map(type, values)):
        return values
    raise _wrong(key)


def _wrong(key: str) -> MalformedDocument:
    return MalformedDocument(f"{key} in the answer is not of the expected type")
