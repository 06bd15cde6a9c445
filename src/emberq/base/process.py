"""What a daemon does as a process: limits, garbage collector, event loop, signals.

The cyclic garbage collector is off in a daemon; see `garbage`.

SIGHUP has the daemon reload. SIGINT and SIGTERM ask for an orderly stop. More of them change nothing: the stop under
way goes on, for cutting it short is what would lose messages. (SIGKILL remains for whoever insists.)
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Callable, Sequence
from typing import Protocol

import uvloop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StartError(Exception):
    """A daemon cannot start; the text says why."""


class Daemon(Protocol):
    """What `serve` runs."""

    @property
    def failed(self) -> asyncio.Event:
        """Set when the daemon cannot go on, after it logged why."""
        ...

    async def start(self) -> None:
        """Return when clients are served. StartError, with nothing left running, if that cannot be."""
        ...

    def reload(self) -> None:
        """Read again what may have changed on disk, such as certificates."""
        ...

    async def stop(self) -> None:
        """Return when everything is safe on disk and closed."""
        ...


def prepare() -> None:
    """Fit the process to a daemon's needs; to be called when everything is imported."""
    _raise_open_files_limit()
    gc.collect()
    gc.freeze()  # modules and classes stay for good: never look through them again
    gc.disable()  # see `garbage`


def _raise_open_files_limit() -> None:
    """Allow as many connections as the system lets us: the usual soft limit of 1024 is far too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(make_daemon: Callable[[], Daemon]) -> bool:
    """Run a daemon until a signal stops it (True) or it fails (False). What `start` raises comes through."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(make_daemon))


async def _serve(make_daemon: Callable[[], Daemon]) -> bool:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, asked_to_stop.set)
    daemon = make_daemon()
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)
    await daemon.start()
    await _first_of(asked_to_stop, daemon.failed)
    await daemon.stop()
    ignore_to_the_end(STOP_SIGNALS)
    return not daemon.failed.is_set()


def ignore_to_the_end(numbers: Sequence[signal.Signals]) -> None:
    """From here to the end of the process a late signal would find Python's own handlers, and a traceback.

    To block them would not do: a thread that still runs would get them. They are blocked only while the loop, which
    would put Python's handlers back when it is closed, gives its own up.
    """
    loop = asyncio.get_running_loop()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    for waiter in waiters:
        waiter.cancel()
