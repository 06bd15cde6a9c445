"""Answers made smaller for clients that can undo it.

Only text and JSON are worth it, and only when they are long. The fastest level is used: it takes a statistics page to a
tenth of its size, and the time is taken from all other clients.
"""

from __future__ import annotations

import zlib

from emberq.http.limits import COMPRESS_BYTES
from emberq.http.message import Request, Response

_LEVEL = 1
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16 asks zlib for gzip's header and checksum
_COMPRESSED_HEADERS = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))


def compressed(response: Response, request: Request) -> Response:
    """The response, or the same with its body in gzip."""
    if len(response.body) < COMPRESS_BYTES or not _is_text(response) or not _accepts_gzip(request):
        return response
    body = zlib.compress(response.body, _LEVEL, _GZIP_WINDOW_BITS)
    headers = (*response.headers, *_COMPRESSED_HEADERS)
    return Response(response.status, body, content_type=response.content_type, headers=headers)


def _is_text(response: Response) -> bool:
    content_type = response.content_type or ""
    is_encoded = any(name.lower() == "content-encoding" for name, _ in response.headers)
    return content_type.startswith(("text/", "application/json")) and not is_encoded


def _accepts_gzip(request: Request) -> bool:
    """Whether `Accept-Encoding` names gzip (or anything, by `*`) with a weight above zero."""
    weights: dict[str, bool] = {}
    for choice in (request.header("accept-encoding") or "").split(","):
        coding, _, weight = choice.partition(";")
        digits = weight.replace(" ", "").removeprefix("q=")
        weights[coding.strip().lower()] = not digits or digits.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))
