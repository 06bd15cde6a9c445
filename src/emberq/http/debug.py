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

Compiled modules (see `emberq.cli.main`) leave no frames: their time shows as their caller's. Recordings slow down
everything else, those of allocations most of all. So there is one at a time in a process, none is longer than a minute,
and one of allocations not longer than ten seconds.

Who may look. What costs the daemon so much, or shows its inside, is for its operator (`for_operators`): a client on the
same machine, not by way of a proxy there and not a page of another site in a browser; or one that has shown a token,
where every request has to.

Stacks. `describe_all` shows each thread and each task of the event loop where it stands: the place to look when
something hangs. `StackSampler` notes a hundred times a second where each thread is: the place to look when something is
slow. Its report has one line per stack, outermost function first, with how often it was seen,

    emberq.cli.daemons.nsqd:12;…;emberq.http.server.HttpConnection.data_received:90 41

which is what flame graph programs read. A thread that waits is seen waiting: idle time shows as the loop's own frame.

Allocations. Python can note for every block of memory the line that asked for it, but that makes everything slower. So
it is on only for the seconds of a request. The answer lists what was allocated in that time and is still in use, which
finds what grows. A daemon under full load allocates a lot in a second. The recording ends early before it becomes large
itself, because evaluating it stops the daemon.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from types import FrameType

from emberq.base.address import NetworkError, parse_remote
from emberq.base.metrics import read_resident
from emberq.base.text import masked
from emberq.http.browser import is_from_browser, is_from_our_own_page
from emberq.http.message import HttpError, Query, Request, Response, plain
from emberq.http.router import Handler, Route

MAX_PROFILE_S = 60.0
MAX_HEAP_S = 10.0
"""A daemon that records its allocations does a twentieth of its work."""
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


_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
"""With one of these a proxy says that the request comes from elsewhere."""


def for_operators(routes: Iterable[Route], *, has_token: bool) -> list[Route]:
    """The same routes, refused to clients of other machines unless every request `has_token`: then that suffices."""
    if has_token:
        return list(routes)
    return [replace(route, handler=_local(route.handler)) for route in routes]


def _local(handler: Handler) -> Handler:
    def handle(request: Request) -> Response | Awaitable[Response]:
        if not _is_local(request):
            raise HttpError(403, "FORBIDDEN", hint="this is answered on the daemon's own machine, or with a token")
        return handler(request)

    return handle


def _is_local(request: Request) -> bool:
    if any(request.raw_header(name) is not None for name in _FORWARDED):
        return False
    if is_from_browser(request) and not is_from_our_own_page(request):
        return False  # a picture in any page can ask this: browsers do not say of every address whose page it was
    try:
        return request.remote_address == "@" or parse_remote(request.remote_address).is_loopback
    except NetworkError:
        return False


def profiler_routes(*, has_token: bool = False) -> list[Route]:
    """The profiler's routes, for a daemon's table; for `has_token` see `for_operators`."""
    profiler = ProfilerApi()
    return for_operators(_routes(profiler), has_token=has_token)


def _routes(profiler: ProfilerApi) -> list[Route]:
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


_recording = threading.Lock()
"""Held by the one recording of this process: several daemons may run in it, and all would be slowed down."""


class ProfilerApi:
    """The handlers."""

    def index(self, _request: Request) -> Response:
        return plain(_INDEX)

    def command_line(self, _request: Request) -> Response:
        return plain("\0".join(map(masked, sys.argv)))

    def stacks(self, _request: Request) -> Response:
        return plain(describe_all())

    async def profile(self, request: Request) -> Response:
        return await _record(request, _sample_stacks, default_s=DEFAULT_PROFILE_S, max_s=MAX_PROFILE_S)

    async def heap(self, request: Request) -> Response:
        return await _record(request, record_allocations, default_s=DEFAULT_HEAP_S, max_s=MAX_HEAP_S)


async def _record(
    request: Request, record: Callable[[float], Awaitable[str]], *, default_s: float, max_s: float
) -> Response:
    duration_s = _duration_s(request.query(), default_s=default_s)
    if not 0 < duration_s <= max_s:
        return plain(f"seconds must be a number above 0 and up to {max_s:g}", status=400)
    if not _recording.acquire(blocking=False):
        return plain("another recording is going on", status=409)
    try:
        return plain(await record(duration_s))
    finally:
        _recording.release()


async def _sample_stacks(duration_s: float) -> str:
    sampler = StackSampler()
    sampler.start()
    try:
        await asyncio.sleep(duration_s)
    finally:
        sampler.stop()
    return sampler.report()


def _duration_s(query: Query, *, default_s: float) -> float:
    """The parameter `seconds`; 0, which is refused, if it is not a number."""
    given = query.get("seconds")
    try:
        return default_s if given is None else float(given)
    except ValueError:
        return 0


# Stacks.

SAMPLES_PER_SECOND = 100
"""As many as the reference takes; the sampled threads lose less than a percent to it."""
MAX_FRAMES = 128
"""Deeper stacks are cut at their outer end."""
MAX_TASKS = 1000
"""Tasks shown; a daemon has a handful, unless something is wrong."""


def describe_all() -> str:
    """Every thread and every task of the running loop, with their stacks."""
    return f"{describe_threads()}\n{describe_tasks()}"


def describe_threads() -> str:
    """Every thread with its stack."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    out.write(f"{len(frames)} threads\n")
    for ident, frame in frames.items():
        out.write(f"\nthread {names.get(ident, ident)}\n")
        out.writelines(traceback.format_stack(frame, limit=MAX_FRAMES))
    return out.getvalue()


def describe_tasks() -> str:
    """Every task of the running loop, with what it waits for."""
    out = io.StringIO()
    tasks = asyncio.all_tasks()
    out.write(f"{len(tasks)} tasks\n")
    for task in list(tasks)[:MAX_TASKS]:
        out.write("\n")
        task.print_stack(limit=MAX_FRAMES, file=out)
    return out.getvalue()


class StackSampler:
    """Samples the stacks of all threads from `start` to `stop`, in its own thread. Used once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """How often each stack was seen. Owned by the sampling thread until `stop` has returned."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stack sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; the thread has ended when this returns."""
        self._stopped.set()
        self._thread.join()

    def report(self) -> str:
        """A line per stack, the most frequent first; valid after `stop`."""
        return "".join(f"{stack} {count}\n" for stack, count in self._counts.most_common())

    def _run(self) -> None:
        while not self._stopped.wait(1 / SAMPLES_PER_SECOND):
            self._sample()

    def _sample(self) -> None:
        own_ident = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if ident != own_ident:
                self._counts[_in_one_line(frame)] += 1


def _in_one_line(innermost: FrameType) -> str:
    names: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(names) < MAX_FRAMES:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))


# Allocations.

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""The size of a recording: some hundred thousand blocks, which take some tenths of a second to evaluate."""
CHECK_INTERVAL_S = 0.05
TOP_COUNT = 50
"""Lines of code that a report lists."""


async def record_allocations(duration_s: float) -> str:
    """A report on what is allocated in this time, or until the recording is full."""
    was_on = tracemalloc.is_tracing()  # by PYTHONTRACEMALLOC: then it stays on
    tracemalloc.start()
    try:
        recorded_s = await _wait_for_enough(duration_s)
        snapshot = tracemalloc.take_snapshot()
    finally:
        if not was_on:
            tracemalloc.stop()
    return await asyncio.to_thread(lambda: "".join(_describe(snapshot, recorded_s)))


async def _wait_for_enough(duration_s: float) -> float:
    """Wait until the time is up or the recording is full; how long that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    ends_s = began_s + duration_s
    while loop.time() < ends_s and tracemalloc.get_tracemalloc_memory() < MAX_RECORD_BYTES:
        await asyncio.sleep(min(ends_s - loop.time(), CHECK_INTERVAL_S))
    return loop.time() - began_s


def _describe(snapshot: tracemalloc.Snapshot, recorded_s: float) -> Iterator[str]:
    own_code = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    lines = snapshot.filter_traces([own_code]).statistics("lineno")
    resident = read_resident()
    yield f"resident memory {resident.all_bytes} bytes, at its peak {resident.peak_bytes}\n"
    yield f"allocated within {recorded_s:.1f} s and still in use:\n\n"
    yield f"{'bytes':>12} {'blocks':>10}  line\n"
    for line in lines[:TOP_COUNT]:
        frame = line.traceback[0]
        yield f"{line.size:>12} {line.count:>10}  {frame.filename}:{frame.lineno}\n"
    others = lines[TOP_COUNT:]
    other_bytes, other_blocks = sum(line.size for line in others), sum(line.count for line in others)
    yield f"{other_bytes:>12} {other_blocks:>10}  {len(others)} other lines\n"
