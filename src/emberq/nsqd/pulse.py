"""A connection's sense of time: when to send a heartbeat, when to flush, when to give the client up.

    heartbeat       every interval
    read deadline   two intervals without a whole command
    write deadline  one interval without room in the socket

One alarm serves them all. A command that arrives moves the read deadline without touching the alarm: when it rings, the
pulse looks at what is really due.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import NEVER, Timers


class Due(Flag):
    """What is to be done now."""

    NOTHING = 0
    HEARTBEAT = auto()
    FLUSH = auto()
    GIVE_UP = auto()
    """The client has been silent for too long."""
    CUT_OFF = auto()
    """The client does not read, or a close takes too long."""


class Pulse:
    """Owned by its session, which is told through `ring` to ask what is `due`."""

    __slots__ = (
        "_alarm",
        "_clock",
        "_cut_off_ns",
        "_flush_ns",
        "_heartbeat_ns",
        "_interval_ns",
        "has_started",
        "last_heard_ns",
    )

    def __init__(self, *, clock: Clock, timers: Timers, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._alarm = timers.alarm(ring)
        self._interval_ns = 0
        """0: neither heartbeats nor deadlines."""
        self.has_started = False
        self.last_heard_ns = 0
        """When a whole command last arrived; kept by the session."""
        self._heartbeat_ns = NEVER
        self._flush_ns = NEVER
        self._cut_off_ns = NEVER

    def start(self, interval_ms: int) -> None:
        """Beat from now on, every `interval_ms`; 0 means not at all."""
        self.has_started = True
        now_ns = self._clock.monotonic_ns()
        self._interval_ns = interval_ms * NS_PER_MS
        self.last_heard_ns = now_ns
        self._heartbeat_ns = now_ns + self._interval_ns if interval_ms else NEVER
        self._set_alarm()

    def change_deadlines(self, interval_ms: int) -> None:
        """Another interval for the deadlines; the heartbeat keeps its rhythm unless there is none any more."""
        self._interval_ns = interval_ms * NS_PER_MS
        if not interval_ms:
            self._heartbeat_ns = NEVER
        self._set_alarm()

    def flush_within(self, timeout_ms: int) -> None:
        """See to a flush, unless one is coming earlier."""
        if self._flush_ns == NEVER:
            self._flush_ns = self._clock.monotonic_ns() + timeout_ms * NS_PER_MS
            self._alarm.set_earlier(self._flush_ns)

    def flushed(self) -> None:
        self._flush_ns = NEVER

    def socket_is_full(self) -> None:
        """The client has one interval to make room."""
        if self._interval_ns:
            self.cut_off_within(self._interval_ns)

    def socket_has_room(self) -> None:
        self._cut_off_ns = NEVER

    def cut_off_within(self, timeout_ns: int) -> None:
        """Cut the connection off, unless something changes."""
        self._cut_off_ns = self._clock.monotonic_ns() + timeout_ns
        self._alarm.set_earlier(self._cut_off_ns)

    def stop(self) -> None:
        """The connection is gone."""
        self._alarm.discard()

    def due(self) -> Due:
        """What is to be done now; the alarm is set for what comes next."""
        now_ns = self._clock.monotonic_ns()
        due = Due.NOTHING
        if now_ns >= self._cut_off_ns:
            due |= Due.CUT_OFF
        if self._interval_ns and now_ns >= self.last_heard_ns + 2 * self._interval_ns:
            due |= Due.GIVE_UP
        if now_ns >= self._flush_ns:
            self._flush_ns = NEVER
            due |= Due.FLUSH
        if now_ns >= self._heartbeat_ns:
            self._heartbeat_ns = now_ns + self._interval_ns if self._interval_ns else NEVER
            due |= Due.HEARTBEAT
        self._set_alarm()
        return due

    def _set_alarm(self) -> None:
        deadline_ns = self.last_heard_ns + 2 * self._interval_ns if self._interval_ns else NEVER
        self._alarm.set(min(self._heartbeat_ns, self._flush_ns, self._cut_off_ns, deadline_ns))
