"""Tasks that wait to be called, first come first served.

No call is lost: who is cancelled before the call is passed over, and who is cancelled after it, before it could do
anything about it, calls the next instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class WaitingLine(deque[asyncio.Future[None]]):
    """Owned by whoever has something to wait for. As a deque it is true while somebody waits, at no cost."""

    async def wait(self) -> None:
        """Until called."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self.remove(waiter)
            else:
                self.call_one()  # the call was for us, but we cannot answer it
            raise

    def call_one(self) -> None:
        """Call the one that has waited longest, if there is any."""
        while self:
            waiter = self.popleft()
            if not waiter.done():  # else it is cancelled, and its task only does not know yet
                waiter.set_result(None)
                return
