"""The process that makes the events of the demonstration, with a real nsqd."""

from __future__ import annotations

from pathlib import Path

from emberq.cli.demo_events import EventProcess
from tests.support.held_port import hold_port
from tests.support.journal_nsqd import JournalNsqdProcess
from tests.support.waiting import wait_until


def test_so_many_events_are_published_and_counted(tmp_path: Path) -> None:
    with JournalNsqdProcess(tmp_path) as nsqd:
        events = EventProcess(f"127.0.0.1:{nsqd.tcp_port}", count=1000, rate=1000)
        events.start()
        wait_until(lambda: events.are_published, timeout_s=60)
        events.stop()
        made = events.generated
        assert (made.good, made.broken, sum(made.pages.values())) == (990, 10, 990)
        assert nsqd.get("/journal", topic="clicks")["next_offset"] == 1000
    assert events.failure == ""


def test_events_without_end_stop_when_they_are_told_to(tmp_path: Path) -> None:
    with JournalNsqdProcess(tmp_path) as nsqd:
        events = EventProcess(f"127.0.0.1:{nsqd.tcp_port}", count=None, rate=200)
        events.start()
        wait_until(lambda: events.generated.total > 0, timeout_s=60)
        events.stop()
        events.stop()
        assert (events.are_published, events.failure) == (False, "")
        assert nsqd.get("/journal", topic="clicks")["next_offset"] <= events.generated.total


def test_an_nsqd_that_refuses_is_told_of() -> None:
    with hold_port() as port:
        events = EventProcess(f"127.0.0.1:{port}", count=10, rate=10)
        events.start()
        wait_until(lambda: bool(events.failure), timeout_s=60)
        events.stop()
    assert "127.0.0.1" in events.failure
