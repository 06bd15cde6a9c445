"""Rings the daemon's alarms from the event loop: one timer of the loop, set for the earliest of them."""

from __future__ import annotations

import asyncio
import logging

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import NEVER, Timers

_log = logging.getLogger(__name__)


class LoopTimers:
    """Owned by the daemon; `start` and `stop` in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers, clock: Clock) -> None:
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ns = NEVER
        """What `_handle` is set for."""

    def start(self) -> None:
        self._timers.on_earlier = self._arm
        self._arm(self._timers.next_due_ns)

    def stop(self) -> None:
        self._timers.on_earlier = None
        self._disarm()

    def _arm(self, due_ns: int) -> None:
        if due_ns >= self._armed_ns:
            return
        self._disarm()
        self._armed_ns = due_ns
        remaining_ns = due_ns - self._clock.monotonic_ns()
        # Up to the next millisecond, which is as fine as the loop counts: waking early would mean to spin.
        delay_ms = -(-remaining_ns // NS_PER_MS) if remaining_ns > 0 else 0
        self._handle = self._loop.call_later(delay_ms / 1000, self._ring)

    def _disarm(self) -> None:
        self._armed_ns = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        try:
            self._timers.run_due(self._clock.monotonic_ns())
        finally:
            self._armed_ns = NEVER
            self._arm(self._timers.next_due_ns)
