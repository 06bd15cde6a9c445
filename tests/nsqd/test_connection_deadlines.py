"""Deadlines of a connection: a client is cut off for doing nothing, not for being slow."""

from __future__ import annotations

import pytest

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.base.timers import Timers
from emberq.nsqd.connection import Deadlines, Due
from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client

INTERVAL_MS = 1000


@pytest.fixture
def stuck(nsqd: NsqdHarness, client: Client) -> Client:
    """A consumer with a small window, to which 20 MB are on their way."""
    consumer = nsqd.connect(receive_buffer_bytes=4096)
    consumer.identify(heartbeat_interval=INTERVAL_MS)
    consumer.sub("t", "c")
    consumer.rdy(2500)
    for _ in range(40):
        client.mpub("t", [b"x" * 100_000] * 5)
    return consumer


def test_a_consumer_that_reads_slowly_is_not_cut_off(nsqd: NsqdHarness, stuck: Client) -> None:
    for _ in range(10):
        stuck.nop()
        unread_bytes = 20_000
        while unread_bytes:
            unread_bytes -= len(stuck.socket.recv(unread_bytes))
        nsqd.settle()
        nsqd.advance(ms=INTERVAL_MS)
    assert nsqd.channel("t", "c").client_count == 1


def test_a_client_that_is_not_read_from_is_not_silent_and_costs_nothing() -> None:
    clock, timers = ManualClock(), Timers()
    deadlines = Deadlines(clock=clock, timers=timers, ring=lambda: None)
    deadlines.start(INTERVAL_MS)
    clock.advance(ms=10 * INTERVAL_MS)
    timers.run_due(clock.monotonic_ns())
    assert Due.GIVE_UP not in deadlines.due(is_reading=False)
    assert timers.next_due_ns == clock.monotonic_ns() + INTERVAL_MS * NS_PER_MS  # in the past it would ring at once
    clock.advance(ms=2 * INTERVAL_MS)
    assert Due.GIVE_UP in deadlines.due(is_reading=True)


def test_a_silent_client_that_is_being_closed_costs_nothing() -> None:
    clock, timers = ManualClock(), Timers()
    deadlines = Deadlines(clock=clock, timers=timers, ring=lambda: None)
    deadlines.start(INTERVAL_MS)
    clock.advance(ms=2 * INTERVAL_MS)
    timers.run_due(clock.monotonic_ns())
    assert Due.GIVE_UP in deadlines.due(is_reading=True)
    deadlines.end_within(5 * INTERVAL_MS * NS_PER_MS)
    timers.run_due(clock.monotonic_ns())
    assert timers.next_due_ns == clock.monotonic_ns() + 5 * INTERVAL_MS * NS_PER_MS  # in the past it would ring at once
    clock.advance(ms=5 * INTERVAL_MS)
    assert deadlines.due(is_reading=True) is Due.CUT_OFF


def test_the_greeting_has_a_deadline_until_it_comes() -> None:
    clock, timers = ManualClock(), Timers()
    deadlines = Deadlines(clock=clock, timers=timers, ring=lambda: None)
    deadlines.cut_off_within(INTERVAL_MS * NS_PER_MS)
    clock.advance(ms=INTERVAL_MS)
    assert deadlines.due(is_reading=True) is Due.CUT_OFF
    deadlines.start(INTERVAL_MS)
    assert deadlines.due(is_reading=True) is Due.NOTHING


def test_a_client_that_is_closed_for_its_first_bytes_begins_no_deadlines() -> None:
    deadlines = Deadlines(clock=ManualClock(), timers=Timers(), ring=lambda: None)
    deadlines.cut_off_within(10 * INTERVAL_MS * NS_PER_MS)
    deadlines.end_within(INTERVAL_MS * NS_PER_MS)
    assert deadlines.has_started
