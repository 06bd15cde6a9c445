"""/debug/pprof: looking into a running daemon without stopping it.

The paths are those of the reference, where they belong to Go's profiler; behind them is what Python has of the kind.

    GET  /debug/pprof/             what there is
    GET  /debug/pprof/cmdline      the command line, arguments separated by NUL, secrets masked
    GET  /debug/pprof/goroutine    the stacks of all threads and tasks
    GET  /debug/pprof/threadcreate of the threads alone
    GET  /debug/pprof/block        of the tasks alone: what each waits for
    GET  /debug/pprof/symbol       that there are no addresses to look up: stacks have names here; POST too
    GET  /debug/pprof/profile      where the time goes:  ?seconds=30, stacks as flame graph programs read them
    GET  /debug/pprof/heap         where memory goes:    ?seconds=5, lines of code by what they allocated

Compiled modules (see `emberq.base.build`) leave no frames: their time shows as their caller's.

The two that take time take it one at a time, and not for long: they slow down everything else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from emberq.base.secret import masked
from emberq.http.debug.allocation import record_allocations
from emberq.http.debug.stack import StackSampler, describe_all, describe_tasks, describe_threads
from emberq.http.message import Query, Request, Response, plain
from emberq.http.router import Route

MAX_RECORDING_S = 60.0
DEFAULT_PROFILE_S = 30.0
DEFAULT_HEAP_S = 5.0

_INDEX = """\
/debug/pprof/

cmdline      the command line
goroutine    stacks of all threads and tasks
threadcreate stacks of all threads
block        what each task waits for
symbol       none: stacks have names here, not addresses
profile      where the time goes: ?seconds=30
heap         where memory goes: ?seconds=5
"""
_SYMBOLS = "num_symbols: 0\n"


def profiler_routes() -> list[Route]:
    """The lines of a daemon's table of routes that are the profiler's."""
    profiler = ProfilerApi()
    return [
        Route("GET", "/debug/pprof/", profiler.index),
        Route("GET", "/debug/pprof/cmdline", profiler.command_line),
        Route("GET", "/debug/pprof/goroutine", profiler.stacks),
        Route("GET", "/debug/pprof/threadcreate", lambda _request: plain(describe_threads())),
        Route("GET", "/debug/pprof/block", lambda _request: plain(describe_tasks())),
        Route("GET", "/debug/pprof/symbol", lambda _request: plain(_SYMBOLS)),
        Route("POST", "/debug/pprof/symbol", lambda _request: plain(_SYMBOLS)),
        Route("GET", "/debug/pprof/profile", profiler.profile),
        Route("GET", "/debug/pprof/heap", profiler.heap),
    ]


class ProfilerApi:
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
