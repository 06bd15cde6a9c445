"""Answers made smaller for clients that can undo it.

Only text and JSON are worth it, and only when they are long. The fastest level is used: it takes a page of statistics
to a tenth of its size. What would take milliseconds is done in a thread, so that nobody has to wait for it.
"""

from __future__ import annotations

import asyncio
import zlib

from emberq.http.message import Request, Response

COMPRESS_BYTES = 1400
"""Shorter answers fit a packet anyway."""
_THREAD_BYTES = 64 * 1024
"""Takes about a millisecond, much more than handing it to a thread."""
_LEVEL = 1
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16 asks zlib for gzip's header and checksum
_COMPRESSED_HEADERS = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))


def is_worth_compressing(response: Response, request: Request) -> bool:
    """Whether it is long, text, and may be compressed for this client."""
    return len(response.body) >= COMPRESS_BYTES and _is_text(response) and _accepts_gzip(request)


async def compressed(response: Response) -> Response:
    """The same with its body in gzip."""
    if len(response.body) < _THREAD_BYTES:
        body = _gzip(response.body)
    else:
        body = await asyncio.to_thread(_gzip, response.body)
    headers = (*response.headers, *_COMPRESSED_HEADERS)
    return Response(response.status, body, content_type=response.content_type, headers=headers)


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, _GZIP_WINDOW_BITS)


def _is_text(response: Response) -> bool:
    content_type = response.content_type or ""
    is_encoded = any(name.lower() == "content-encoding" for name, _ in response.headers)
    return content_type.startswith(("text/", "application/json")) and not is_encoded


def _accepts_gzip(request: Request) -> bool:
    """Whether `Accept-Encoding` names gzip (or anything, by `*`) with a weight above zero."""
    accepted: dict[str, bool] = {}
    for choice in (request.header("accept-encoding") or "").split(","):
        coding, _, weight = choice.partition(";")
        digits = weight.replace(" ", "").removeprefix("q=")
        accepted[coding.strip().lower()] = not digits or digits.strip("0.") != ""
    return accepted.get("gzip", accepted.get("*", False))
