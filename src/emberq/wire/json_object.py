"""A JSON object from the network, read as leniently and as strictly as the reference reads it.

Lenient: keys match whatever their case, unknown ones are ignored, null counts as absent (for the whole object too),
the last of equal keys counts, and what is no UTF-8 is replaced.

Strict: a known value of another type than its field's makes the whole object undecodable, even if an equal key behind
it would have replaced it. Numbers have no fraction and fit 64 bits; NaN and Infinity, which Python would take, are no
JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_INT64_LIMIT = 1 << 63
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""JSON can spell half a character, `"\\ud800"`, which cannot be sent on as UTF-8."""


class UndecodableError(ValueError):
    """The bytes are no such object; the text says why."""


def parse_object(body: bytes, field_types: Mapping[str, type]) -> dict[str, Any]:
    """The values of the fields that `body` has, by their names in lower case; or UndecodableError."""
    document = _parse(body)
    if document is None:
        return {}
    if not isinstance(document, _Members):
        raise UndecodableError("no JSON object")
    known: dict[str, Any] = {}
    for key, value in document:
        name = key.lower()
        expected = field_types.get(name)
        if expected is not None and value is not None:
            known[name] = _checked(value, expected)
    return known


class _Members(list[tuple[str, Any]]):
    """A JSON object as it was written: a key may occur twice, and both values are judged."""


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "replace"), object_pairs_hook=_Members, parse_constant=_refuse)
    except (ValueError, RecursionError) as wrong:
        raise UndecodableError(str(wrong)) from wrong


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _checked(value: Any, expected: type) -> Any:
    if type(value) is not expected:  # a bool is an int to isinstance
        raise UndecodableError(f"{type(value).__name__} where {expected.__name__} belongs")
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise UndecodableError("number beyond 64 bits")
    return _LONE_SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value
