"""A dead letter: a message that was given up, with a note of where it came from and why.

It is itself a message, of a dead-letter topic. Its body is JSON:

    {
      "emberq_dead_letter": 1,                    the version of this layout
      "topic": "orders", "channel": "billing",    where nobody finished it
      "id": "0a1b2c3d4e5f6071",
      "attempts": 5,
      "timestamp_ns": 1700000000000000000,        when it was published
      "reason": "not finished in 5 attempts",
      "body": "..."                               if it is text, else "body_base64"
    }

Text that JSON would blow up by its escapes is in base64 too: a letter is at most twice as long as its body, apart from
the note. If that is more than the largest message allowed there can be no letter, and the bare body has to do.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

MARK = "emberq_dead_letter"
VERSION = 1
MAX_GROWTH = 2
"""How many times longer than the body its text in a letter may be."""

_MARK_BYTES = f'"{MARK}"'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """What a dead letter tells."""

    topic: str
    channel: str
    id: str
    attempts: int
    timestamp_ns: int
    reason: str
    body: bytes


_FIELD_TYPES: dict[str, type] = {
    "topic": str,
    "channel": str,
    "id": str,
    "attempts": int,
    "timestamp_ns": int,
    "reason": str,
}


def encode_dead_letter(letter: DeadLetter, *, max_bytes: int) -> bytes | None:
    """The body of the message that tells of it; None if that would be too long."""
    document: dict[str, Any] = {MARK: VERSION, **{name: getattr(letter, name) for name in _FIELD_TYPES}}
    note = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    for body in (_body_as_text(letter.body), _body_as_base64(letter.body)):
        if body is not None and len(note) + len(body) + 1 <= max_bytes:
            return b"%b,%b}" % (note[:-1], body)
    return None


def _body_as_text(body: bytes) -> bytes | None:
    try:
        text = json.dumps(body.decode("utf-8"), ensure_ascii=False).encode()
    except UnicodeError:
        return None
    return b'"body":' + text if len(text) <= MAX_GROWTH * len(body) + 2 else None


def _body_as_base64(body: bytes) -> bytes:
    return b'"body_base64":"%b"' % base64.b64encode(body)


def decode_dead_letter(data: bytes) -> DeadLetter | None:
    """The dead letter that the body of a message is; None if it is none."""
    if _MARK_BYTES not in data:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get(MARK) != VERSION:
        return None
    known: dict[str, Any] = {name: document.get(name) for name in _FIELD_TYPES}
    body = _decode_body(document)
    if body is None or any(type(known[name]) is not expected for name, expected in _FIELD_TYPES.items()):
        return None
    return DeadLetter(body=body, **known)


def _decode_body(document: dict[str, Any]) -> bytes | None:
    text, encoded = document.get("body"), document.get("body_base64")
    try:
        if isinstance(text, str):
            return text.encode("utf-8")
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except (UnicodeError, binascii.Error):
        return None
