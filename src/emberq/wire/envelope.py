"""Headers around the body of a message, for producers and consumers that have agreed on them.

NSQ's messages have no headers. Those that should have some (the context of a trace, the type of the content) carry them
in front of the body:

    00 4e 53 51 48 01        a NUL, "NSQH" and the version of this layout
    00 00 00 47              how long the headers are: uint32, big-endian
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", ...}
                             the headers: a JSON object of texts, in UTF-8
    ...                      the body, to the end of the message

No text and no JSON begins with a NUL, so messages with headers and without can be in one topic, and are told apart.
What begins like headers and is none is a body. To nsqd all of it is the message; so it is to a consumer that knows
nothing of headers.

Names of headers are those of HTTP, in lower case. `traceparent` and `tracestate` are W3C's Trace Context,
`content-type` is a media type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MARK = b"\x00NSQH\x01"
LENGTH_BYTES = 4
MAX_HEADER_BYTES = 64 * 1024
"""More than servers take for the headers of an HTTP request, and little beside the largest message."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Enveloped(NamedTuple):
    """A message taken apart."""

    headers: Mapping[str, str]
    body: bytes


def encode(headers: Mapping[str, str], body: bytes) -> bytes:
    """The message with its headers; TypeError or ValueError if they cannot be headers."""
    for name, value in headers.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"header {name!r} is {value!r}; names and values of headers are texts")
    document = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")).encode()
    if len(document) > MAX_HEADER_BYTES:
        raise ValueError(f"the headers take {len(document)} bytes; they must not take more than {MAX_HEADER_BYTES}")
    return b"".join((MARK, len(document).to_bytes(LENGTH_BYTES), document, body))


def decode(message: bytes) -> Enveloped:
    """Headers and body of a message; one that is not in an envelope is all body, and its headers are `NO_HEADERS`."""
    start = len(MARK) + LENGTH_BYTES
    if not message.startswith(MARK) or len(message) < start:
        return Enveloped(NO_HEADERS, message)
    size_bytes = int.from_bytes(message[len(MARK) : start])
    end = start + size_bytes
    if size_bytes > MAX_HEADER_BYTES or end > len(message):
        return Enveloped(NO_HEADERS, message)
    headers = _headers_in(message[start:end])
    return Enveloped(NO_HEADERS, message) if headers is None else Enveloped(headers, message[end:])


def _headers_in(document: bytes) -> dict[str, str] | None:
    try:
        headers: Any = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        return None
    return headers
