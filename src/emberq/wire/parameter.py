"""How names, numbers, producer ids, JSON objects and bodies in JSON are spelled, and which spellings are refused.

Names have 1 to 64 of the characters `.a-zA-Z0-9_-`, and may end in `#ephemeral`.

Numbers are decimal digits alone, and wrap at 64 bits as in the reference.

A producer that numbers its batches (see `negotiation`, and nsqd's HTTP API) has an id of 16 bytes, written as 32
hexadecimal digits; all zeros stand for no producer. The number of a batch is 0 to 2**63 - 1, in digits alone. A wrong
one is refused and never bent into a right one: a batch with the number of another would be taken for stored, and be
lost.

A JSON object from the network is read as leniently and as strictly as the reference reads it:

- lenient: keys match in any case, unknown ones are ignored, null counts as absent (for the whole object too), the last
  of equal keys counts, and bytes that are no UTF-8 are replaced;
- strict: a known value of another type than its field's makes the whole object undecodable, even if an equal key behind
  it would have replaced it. Numbers have no fraction and fit 64 bits. NaN and Infinity, which Python would take, are no
  JSON.

The body of a message is `"body"` in JSON if it is text, else `"body_base64"`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

# Names of topics and channels.

MAX_PEEK_COUNT = 100
"""As many messages as an nsqd shows at a time: enough for a person to see what a channel is about to deliver."""
MAX_NAME_BYTES = 64
EPHEMERAL_SUFFIX = "#ephemeral"

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
_SHORT_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def parse_name(raw: bytes) -> str | None:
    """The name that `raw` spells, or None when it is not a valid topic or channel name."""
    return _parse_short_name(raw) if len(raw) <= MAX_NAME_BYTES else None


@lru_cache(maxsize=4096)  # a busy nsqd sees the same few names in every command
def _parse_short_name(raw: bytes) -> str | None:
    return None if _NAME.fullmatch(raw) is None else raw.decode("ascii")


def is_valid_name(name: str) -> bool:
    """Whether a topic or channel may be called `name`."""
    return name.isascii() and parse_name(name.encode("ascii")) is not None


def is_ephemeral(name: str) -> bool:
    """Whether the name asks for a topic or channel that lives in memory alone and goes with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)


def quote(raw: bytes) -> bytes:
    """`raw` in double quotes, with everything unprintable escaped: so error texts show names."""
    quoted = "".join(_escape(character) for character in raw.decode("utf-8", "surrogateescape"))
    return f'"{quoted}"'.encode()


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape's stand-in for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


# Numbers.

_TWO_64 = 1 << 64
_CHUNK_DIGITS = 18


def parse_int64(raw: bytes) -> int | None:
    """The number that `raw` spells in digits alone, or None.

    No digits at all is 0. A number that does not fit 64 bits wraps, and the upper half of the range is negative: so a
    client that sends 2**64 - 1 is told about -1.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    value = 0
    for start in range(0, len(raw), _CHUNK_DIGITS):  # in chunks: a line of digits must not cost quadratic time
        chunk = raw[start : start + _CHUNK_DIGITS]
        value = (value * 10 ** len(chunk) + int(chunk)) % _TWO_64
    return value - _TWO_64 if value >= _TWO_64 >> 1 else value


# Producers that number their batches.

PRODUCER_ID_BYTES = 16
MAX_SEQUENCE = (1 << 63) - 1

_PRODUCER_ID = re.compile("[0-9a-fA-F]{32}")
_SEQUENCE = re.compile(rb"[0-9]{1,19}")
_NO_PRODUCER_ID = bytes(PRODUCER_ID_BYTES)


class ProducerSequence(NamedTuple):
    """A batch as its producer names it."""

    producer_id: bytes
    sequence: int


NO_PRODUCER = ProducerSequence(_NO_PRODUCER_ID, 0)


def parse_producer_id(text: str) -> bytes | None:
    """The id that these digits spell; None if they spell none."""
    producer_id = bytes.fromhex(text) if _PRODUCER_ID.fullmatch(text) else _NO_PRODUCER_ID
    return None if producer_id == _NO_PRODUCER_ID else producer_id


def parse_sequence(raw: bytes) -> int | None:
    """The number that these digits spell; None if they spell none, or one too large."""
    sequence = int(raw) if _SEQUENCE.fullmatch(raw) else -1
    return sequence if 0 <= sequence <= MAX_SEQUENCE else None


# JSON objects, and bodies in them.

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


def body_members(body: bytes) -> dict[str, str]:
    """A message's body as a member of a JSON object: as text if it is text, else in base64."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}


def parse_body(document: Mapping[str, Any]) -> bytes | None:
    """The body that a JSON object has as `"body"` or `"body_base64"`; None if it has none, or one that is neither."""
    text, encoded = document.get("body"), document.get("body_base64")
    try:
        if isinstance(text, str):
            return text.encode("utf-8")
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except ValueError:  # UnicodeError and binascii.Error are ones
        return None
