"""Servers inside the test's process: each on an event loop in a thread of its own, reached through real sockets.

`ServerThread` owns the thread, its loop and the clients that a test connects; `DaemonThread` adds what nsqd, nsqlookupd
and nsqadmin have in common. What has no command goes through `call`, which runs a function on the server's thread, the
only one that may touch the server.

The time of a server that is given a `ManualClock` stands still until `advance` moves it, so no test sleeps to see a
timeout. Two kinds of waiting remain, and both end as soon as they can: a read waits for its answer, and `wait_until`
waits for work that is not announced (a closed socket being noticed, a file being written by another thread).
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing
from typing import Any, Generic, Protocol, Self, TypeVar

import uvloop

from emberq.base.clock import Clock, ManualClock
from tests.support.waiting import PATIENCE_S

TIME_STEP_MS = 25
"""Longest stride of `advance`: alarms that set themselves again must come up as often as they would in real time."""

SETTLING_TURNS = 10
"""Turns of the event loop within which it has accepted, read and executed all that was sent before."""


class Closable(Protocol):
    def close(self) -> None: ...


class Daemon(Protocol):
    """What all daemons can be told. What is due is done when `run_timers` is called, by the daemon's own clock."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def run_timers(self) -> None: ...


T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Closable)
DaemonT = TypeVar("DaemonT", bound=Daemon)


class ServerThread(ABC):
    """A running server; a context manager. Owns the loop, its thread and the clients that were connected."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clients = ExitStack()
        self._unhandled: list[str] = []  # what the server let escape into the event loop
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._note_unhandled)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @abstractmethod
    def start(self) -> None:
        """Make the server listen."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down, if it runs."""

    @abstractmethod
    def _move_time(self, *, ms: int) -> None:
        """Move the server's clock and do what is due then; called on the server's thread."""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.start()
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        try:
            self._clients.close()
            self.stop()
        finally:
            self._end_thread()
        assert not self._unhandled, self._unhandled

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def _kept(self, client: ClientT) -> ClientT:
        """The client, which is closed with the server at the latest."""
        return self._clients.enter_context(closing(client))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's thread and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

    def settle(self) -> None:
        """Let the server execute everything sent so far. For what has no answer; prefer a command that has one."""
        for _ in range(SETTLING_TURNS):
            self.call(lambda: None)

    def advance(self, *, ms: int) -> None:
        """Move the clock, ringing every alarm that comes due on the way."""

        def move() -> None:
            for passed_ms in range(0, ms, TIME_STEP_MS):
                self._move_time(ms=min(TIME_STEP_MS, ms - passed_ms))

        self.call(move)


class DaemonThread(ServerThread, Generic[DaemonT]):
    """A running daemon, which `_make` makes; it can be stopped and started again."""

    def __init__(self, name: str, *, clock: Clock | None) -> None:
        super().__init__(name)
        self._clock = clock
        self._daemon: DaemonT | None = None

    @abstractmethod
    def _make(self) -> DaemonT:
        """A daemon that has not been started."""

    @property
    def daemon(self) -> DaemonT:
        """The running daemon."""
        assert self._daemon is not None, f"{self._name} is not running"
        return self._daemon

    def start(self) -> None:
        self._daemon = self._await(self._started())

    async def _started(self) -> DaemonT:
        daemon = self._make()  # in the loop, where some daemons want to be made
        await daemon.start()
        return daemon

    def stop(self) -> None:
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            self._await(daemon.stop())

    def _move_time(self, *, ms: int) -> None:
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(ms=ms)
        self.daemon.run_timers()
