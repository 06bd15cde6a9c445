"""When a session stops for a while: nothing more is read, decoded or executed until it goes on.

Two things make it stop. A client that sends a lot gives way to the others after its turn, and goes on in the loop's
next one. A command that takes time (TLS, AUTH, an answer that must wait for those before it) holds up all behind it.

While it is stopped, reading is paused and what the client sends stays in its socket. One packet may come all the same,
because the loop had read it already; it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from emberq.nsqd.output import Output
from emberq.wire.command import Command
from emberq.wire.error import FatalError

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Runs something in the background, and holds it."""


class Suspension:
    """Owned by its session. `resume` goes on, with a command that waited and the packet that was kept."""

    __slots__ = ("_fail", "_kept", "_output", "_resume", "_spawn", "awaited")

    def __init__(
        self,
        output: Output,
        *,
        spawn: Spawn,
        resume: Callable[[Command | None, bytes], None],
        fail: Callable[[FatalError], None],
    ) -> None:
        self._output = output
        self._spawn = spawn
        self._resume = resume
        self._fail = fail
        self.awaited: asyncio.Task[None] | asyncio.Handle | None = None
        """What the session waits for before it goes on; None while it runs."""
        self._kept = b""
        """What arrived meanwhile all the same; one packet at most."""

    def keep(self, data: bytes) -> None:
        """This came although the session is stopped."""
        self._kept += data

    def give_way(self) -> None:
        """Let others have their turn before going on. The loop would read from a busy socket again and again."""
        if self.awaited is None and not self._output.is_closing:
            self._output.suspend_reading()
            self.awaited = asyncio.get_running_loop().call_soon(self._go_on, None)

    def until(self, work: Coroutine[Any, Any, None], *, waiting: Command | None = None) -> None:
        """Stop until `work` is done; then go on with the command that is `waiting`."""
        self._output.suspend_reading()
        self.awaited = self._spawn(self._wait(work, waiting))

    async def _wait(self, work: Coroutine[Any, Any, None], waiting: Command | None) -> None:
        try:
            await work
        except FatalError as wrong:
            self.awaited = None
            self._fail(wrong)
            return
        finally:
            work.close()
        self._go_on(waiting)

    def _go_on(self, waiting: Command | None) -> None:
        self.awaited = None
        if not self._output.is_closing:
            self._output.resume_reading()
            kept, self._kept = self._kept, b""
            self._resume(waiting, kept)

    def cancel(self) -> None:
        """The connection is gone."""
        if self.awaited is not None:
            self.awaited.cancel()
            self.awaited = None
