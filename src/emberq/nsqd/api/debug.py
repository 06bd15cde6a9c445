"""/debug: looking into a running nsqd without stopping it.

The paths are those of the reference, where they belong to Go's profiler; behind them is what Python has of the kind.

    GET  /debug/pprof/            what there is
    GET  /debug/pprof/cmdline     the command line, arguments separated by NUL, secrets masked
    GET  /debug/pprof/goroutine   the stacks of all threads and tasks
    GET  /debug/pprof/profile     where the time goes:  ?seconds=30, stacks as flame graph programs read them
    GET  /debug/pprof/heap        where memory goes:    ?seconds=5, lines of code by what they allocated
    POST /debug/freememory        collect garbage and give free memory back to the system
    PUT  /debug/setblockrate      accepted for compatibility: there is no such sampling here

The two that take time take it one at a time, and not for long: they slow down everything else.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from emberq.http.message import Query, Request, Response, plain
from emberq.nsqd.api.allocation import record_allocations
from emberq.nsqd.api.argument import parse_integer
from emberq.nsqd.api.secret import masked
from emberq.nsqd.api.stack import StackSampler, describe_all

MAX_RECORDING_S = 60.0
DEFAULT_PROFILE_S = 30.0
DEFAULT_HEAP_S = 5.0
MAX_SWEPT_BLOCKS = 1_000_000
"""With more blocks in use a full collection would hold up everybody for longer than a tenth of a second."""
MAX_FORM_BYTES = 1024
"""The one parameter of /debug/setblockrate may come as a form."""

_INDEX = """\
/debug/pprof/

cmdline      the command line
goroutine    stacks of all threads and tasks
profile      where the time goes: ?seconds=30
heap         where memory goes: ?seconds=5
"""


class DebugApi:
    """Owns the right to record: one recording at a time."""

    def __init__(self) -> None:
        self._is_recording = False

    def index(self, _request: Request) -> Response:
        return plain(_INDEX)

    def command_line(self, _request: Request) -> Response:
        return plain("\0".join(map(masked, sys.argv)))

    def stacks(self, _request: Request) -> Response:
        return plain(describe_all())

    async def profile(self, request: Request) -> Response:
        return await self._record(request, _sample_stacks, default_s=DEFAULT_PROFILE_S)

    async def heap(self, request: Request) -> Response:
        return await self._record(request, record_allocations, default_s=DEFAULT_HEAP_S)

    async def _record(
        self, request: Request, record: Callable[[float], Awaitable[str]], *, default_s: float
    ) -> Response:
        duration_s = _duration_s(request.query(), default_s=default_s)
        if not 0 < duration_s <= MAX_RECORDING_S:
            return plain(f"seconds must be a number above 0 and up to {MAX_RECORDING_S:g}", status=400)
        if self._is_recording:
            return plain("another recording is going on", status=409)
        self._is_recording = True
        try:
            return plain(await record(duration_s))
        finally:
            self._is_recording = False

    async def free_memory(self, _request: Request) -> Response:
        if sys.getallocatedblocks() <= MAX_SWEPT_BLOCKS:
            gc.collect()
        await asyncio.to_thread(_return_free_memory)
        return plain("OK")

    def set_block_rate(self, request: Request) -> Response:
        rate = _form_value(request, "rate")
        if parse_integer(rate) is None:
            return plain(f'invalid block rate : parsing "{rate}": invalid syntax', status=400)
        return plain("OK")


async def _sample_stacks(duration_s: float) -> str:
    sampler = StackSampler()
    sampler.start()
    try:
        await asyncio.sleep(duration_s)
    finally:
        sampler.stop()
    return sampler.report()


def _duration_s(query: Query, *, default_s: float) -> float:
    """What is asked for; 0, which nobody can mean, when it is no number."""
    given = query.get("seconds")
    try:
        return default_s if given is None else float(given)
    except ValueError:
        return 0


def _return_free_memory() -> None:
    """Python frees its memory to the C library, which keeps it; only glibc can be told to let go of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _form_value(request: Request, name: str) -> str:
    """A parameter from the body or the query, empty if it is in neither."""
    form = parse_qs(request.body.decode("latin-1"))
    return form[name][0] if name in form else request.query().get(name) or ""
