"""Answers that must leave in the order of the commands, though some are not known yet.

A publish to a journaled topic is answered when its messages are on the disk. Until then a client may publish more, to
other topics too; those answers wait here behind the first. Other commands that have an answer wait for the line to
empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Reply:
    """A place in the line."""

    __slots__ = ("leave",)

    def __init__(self) -> None:
        self.leave: Callable[[], None] | None = None
        """Sends the answer; None while it is not known."""


class ReplyLine:
    """Owned by its session."""

    __slots__ = ("_drained", "_line")

    def __init__(self) -> None:
        self._line: deque[Reply] = deque()
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._line)

    def reserve(self) -> Reply:
        """A place behind all others."""
        reply = Reply()
        self._line.append(reply)
        return reply

    def settle(self, reply: Reply, leave: Callable[[], None]) -> None:
        """The answer is known: `leave` sends it, once those before it have left."""
        reply.leave = leave
        line = self._line
        while line and line[0].leave is not None:
            send = line.popleft().leave
            if send is not None:
                send()
        self._tell_if_drained()

    def abandon(self) -> None:
        """No more answers leave: an error was the last word. What is settled from here on is of no account."""
        self._line.clear()
        self._tell_if_drained()

    def _tell_if_drained(self) -> None:
        if not self._line and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drained(self) -> None:
        """Wait until all answers have left."""
        if self._line:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
            self._drained = None
