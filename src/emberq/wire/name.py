"""Names of topics and channels, and how they look inside an error text."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_NAME_BYTES = 64
EPHEMERAL_SUFFIX = "#ephemeral"

_VALID = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
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
    return None if _VALID.fullmatch(raw) is None else raw.decode("ascii")


def is_valid_name(name: str) -> bool:
    """Whether a topic or channel may be called `name`."""
    return name.isascii() and parse_name(name.encode("ascii")) is not None


def is_ephemeral(name: str) -> bool:
    """Whether the name asks for a topic or channel that lives in memory alone and goes with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)


def quote(raw: bytes) -> bytes:
    """`raw` in double quotes with everything unprintable escaped, as error texts show names."""
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
