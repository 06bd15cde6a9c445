"""Large documents as JSON, in pieces.

While a document is encoded nothing else runs, not even in another thread: it is one call into the interpreter. So long
lists are encoded some rows at a time, and between two pieces others get their turn. The result is the same.
"""

from __future__ import annotations

from typing import Any

from emberq.http.message import encode_json

ROWS_PER_PIECE = 250
"""Some hundred kilobytes, which take a few milliseconds."""


def encode_in_pieces(document: dict[str, Any]) -> bytes:
    """The same as `encode_json`; long lists in the document itself are taken apart, those further inside are not."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode_json(name), _encoded(value)) for name, value in document.items())


def _encoded(value: Any) -> bytes:
    if not isinstance(value, list) or len(value) <= ROWS_PER_PIECE:
        return encode_json(value)
    starts = range(0, len(value), ROWS_PER_PIECE)
    return b"[%b]" % b",".join(encode_json(value[start : start + ROWS_PER_PIECE])[1:-1] for start in starts)
