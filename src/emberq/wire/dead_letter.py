"""A dead letter: a message that was given up, with a note of where it came from and why.

It is itself a message, of a dead-letter topic. Its body is JSON:

    {
      "emberq_dead_letter": 1,                    the version of this layout
      "topic": "orders", "channel": "billing",    where no consumer finished it
      "id": "0a1b2c3d4e5f6071",
      "attempts": 5,
      "timestamp_ns": 1700000000000000000,        when it was published
      "reason": "not finished in 5 attempts",
      "body": "..."                               if it is text, else "body_base64"
    }

Text that the escapes of JSON would blow up is in base64 too: a letter is at most twice as long as its body, apart from
the other members. If a letter would be larger than the largest message, there is none, and the bare body is published.

A dead letter goes back to the topic that it names, without the envelope (`target_of`).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from emberq.wire.parameter import is_valid_name, parse_body

MARK = "emberq_dead_letter"
VERSION = 1
MAX_GROWTH = 2
"""How many times longer than the body its text in a letter may be."""

_MARK_BYTES = f'"{MARK}"'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up: where, after how many attempts, and why."""

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
    """The body of the message in the dead-letter topic; None if it would be too long."""
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
    """The dead letter in the body of a message; None if the message is none."""
    if _MARK_BYTES not in data:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get(MARK) != VERSION:
        return None
    known: dict[str, Any] = {name: document.get(name) for name in _FIELD_TYPES}
    body = parse_body(document)
    if body is None or any(type(known[name]) is not expected for name, expected in _FIELD_TYPES.items()):
        return None
    return DeadLetter(body=body, **known)


class RedriveTarget(NamedTuple):
    """What is published where."""

    topic: str
    body: bytes


def target_of(body: bytes, *, to: str | None) -> RedriveTarget | None:
    """Where a message of a dead-letter topic goes: to the topic `to`, else to the one that its envelope names.

    None if there is neither. A message without an envelope goes as it is, to `to` alone.
    """
    letter = decode_dead_letter(body)
    if letter is None or not letter.body:
        return None if to is None else RedriveTarget(to, body)
    topic = letter.topic if to is None else to
    return RedriveTarget(topic, letter.body) if is_valid_name(topic) else None
