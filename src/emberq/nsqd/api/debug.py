"""/debug: what nsqd offers besides the profiler, under the paths of the reference.

POST /debug/freememory        collect garbage and give free memory back to the system
PUT  /debug/setblockrate      accepted for compatibility: there is no such sampling here
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from urllib.parse import parse_qs

from emberq.http.message import Request, Response, plain
from emberq.nsqd.api.argument import parse_integer

MAX_SWEPT_BLOCKS = 1_000_000
"""With more blocks in use a full collection would hold up everybody for longer than a tenth of a second."""
MAX_FORM_BYTES = 1024
"""The one parameter of /debug/setblockrate may come as a form."""


async def free_memory(_request: Request) -> Response:
    """Have as little memory as can be had without stopping the world."""
    if sys.getallocatedblocks() <= MAX_SWEPT_BLOCKS:
        gc.collect()
    await asyncio.to_thread(_return_free_memory)
    return plain("OK")


def set_block_rate(request: Request) -> Response:
    """Check the parameter, as the reference does."""
    rate = _form_value(request, "rate")
    if parse_integer(rate) is None:
        return plain(f'invalid block rate : parsing "{rate}": invalid syntax', status=400)
    return plain("OK")


def _return_free_memory() -> None:
    """Python frees its memory to the C library, which keeps it; only glibc can be told to let go of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _form_value(request: Request, name: str) -> str:
    """A parameter from the body or the query, empty if it is in neither."""
    form = parse_qs(request.body.decode("latin-1"))
    return form[name][0] if name in form else request.query().get(name) or ""
