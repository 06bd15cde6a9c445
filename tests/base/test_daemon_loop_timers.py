"""Alarms of a loop that was held, or of a process that was stopped, ring behind what arrived meanwhile."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.base.daemon import LoopTimers
from emberq.base.timers import Timers

DUE_MS = 5


def events_of_a_held_loop(loop: asyncio.AbstractEventLoop, *, held_ms: int) -> list[str]:
    """What happens, in order, when a client's byte holds the loop beyond an alarm while another client sends one."""
    clock, timers = ManualClock(), Timers()
    loop_timers = LoopTimers(loop, timers, clock)
    events: list[str] = []
    slow, slow_client = socket.socketpair()
    quick, quick_client = socket.socketpair()

    def note(event: str) -> None:
        events.append(event)
        if len(events) == 2:
            loop.stop()

    def hold() -> None:
        slow.recv(1)
        quick_client.send(b"!")
        time.sleep(2 * DUE_MS / 1000)  # the loop's own clock cannot be moved
        clock.advance(ms=held_ms)

    def read() -> None:
        quick.recv(1)
        note("read")

    with slow, slow_client, quick, quick_client:
        loop.add_reader(slow, hold)
        loop.add_reader(quick, read)
        timers.alarm(lambda: note("alarm")).set(clock.monotonic_ns() + DUE_MS * NS_PER_MS)
        loop_timers.start()
        slow_client.send(b"!")
        loop.run_forever()
        loop_timers.stop()
        loop.remove_reader(slow)
        loop.remove_reader(quick)
    return events


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_arrived_while_the_loop_was_held_is_read_before_alarms_ring(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop = new_loop()
    try:
        assert events_of_a_held_loop(loop, held_ms=60_000) == ["read", "alarm"]
    finally:
        loop.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_alarm_that_is_set_to_ring_again_at_once_lets_the_loop_read_first(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop = new_loop()
    clock, timers = ManualClock(), Timers()
    loop_timers = LoopTimers(loop, timers, clock)
    events: list[str] = []
    ours, theirs = socket.socketpair()

    def ring() -> None:
        events.append("alarm")
        theirs.send(b"!")
        if events.count("alarm") == 1:
            alarm.set(clock.monotonic_ns())
        else:
            loop.stop()

    def read() -> None:
        ours.recv(1)
        events.append("read")

    alarm = timers.alarm(ring)
    with ours, theirs:
        loop.add_reader(ours, read)
        alarm.set(clock.monotonic_ns() + DUE_MS * NS_PER_MS)
        loop_timers.start()
        clock.advance(ms=DUE_MS)
        loop.run_forever()
        loop_timers.stop()
        loop.remove_reader(ours)
    loop.close()
    assert events[:3] == ["alarm", "read", "alarm"]
