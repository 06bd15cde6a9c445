"""Stacks of everything that runs, now or over a while.

`describe_all` shows each thread and each task of the event loop where it stands: the place to look when something
hangs. `StackSampler` notes a hundred times a second where each thread is: the place to look when something is slow. Its
report has one line per stack, outermost function first, with how often it was seen,

    emberq.cli.daemons.nsqd:12;…;emberq.http.connection.Connection.data_received:90 41

which is what flame graph programs read. A thread that waits is seen waiting: idle time shows as the loop's own frame.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from collections import Counter
from types import FrameType

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
    """Samples from `start` to `stop`, in a thread of its own. Used once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """How often each stack was seen; the thread's until `stop` has returned."""
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
