"""What nsq_to_nsq passes on when it looks into messages, which then must be JSON objects.

    --require-json-field=F                       only if there is a field F
    --require-json-field=F --require-json-value=V    only if F is V: a string equal to V, or a number equal to V if V
                                                 reads as a number; nothing else equals anything
    --whitelist-json-field=F                     only these fields, written anew with their keys in order

What does not pass is dropped. One case is different, as it is in NSQ: a message without the field whose value is
required is taken for a fault that may pass, and comes again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

INTEGRAL_BELOW = 1e21
"""Larger floats are written with an exponent."""


class Dropped(Exception):
    """The message is not to be passed on; the text, if any, is worth a line in the log."""


class FieldMissing(Exception):
    """The field whose value is required is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFilter:
    """Decides what becomes of a message. Names are top-level fields."""

    required_field: str = ""
    required_value: str = ""
    allowed_fields: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it looks at messages at all."""
        return bool(self.required_field or self.allowed_fields)

    def apply(self, body: bytes) -> bytes:
        """The body to pass on; `Dropped` or `FieldMissing` if there is none."""
        document = _parse_object(body)
        if self.required_field:
            self._check(document)
        if not self.allowed_fields:
            return body
        kept = {field: document[field] for field in self.allowed_fields if field in document}
        return _encode(kept)

    def _check(self, document: dict[str, Any]) -> None:
        if self.required_field not in document:
            if self.required_value:
                raise FieldMissing(f"missing field to check required value: {self.required_field}")
            raise Dropped
        if self.required_value and not _equals(document[self.required_field], self.required_value):
            raise Dropped


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Dropped(f"unable to decode JSON: {error}") from error
    if not isinstance(document, dict):
        raise Dropped("unable to decode JSON: not an object")
    return document


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _equals(value: Any, wanted: str) -> bool:
    if isinstance(value, str):
        return value == wanted
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return value == float(wanted)
    except ValueError:
        return False


def _encode(document: dict[str, Any]) -> bytes:
    text = json.dumps(_with_integers(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")  # half of a surrogate pair was written as an escape, and is again


def _with_integers(value: Any) -> Any:
    """The same with integral floats as integers, at any depth."""
    if isinstance(value, float) and value.is_integer() and abs(value) < INTEGRAL_BELOW:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_integers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return value
