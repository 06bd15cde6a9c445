"""Snapshots."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.stats import ClientStats
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Rig


def test_a_client_of_which_nothing_is_known_has_done_nothing() -> None:
    assert [name for name, value in asdict(ClientStats()).items() if value] == []


def oldest_ms(rig: Rig) -> int | None:
    age_ns = rig.stats().oldest_age_ns
    return None if age_ns is None else age_ns // NS_PER_MS


@pytest.mark.parametrize(("kind", "mem_queue_size"), [(Rig, 100), (Rig, 0), (JournalRig, 100), (JournalRig, 1)])
def test_the_age_of_the_message_that_is_next_in_line(kind: type[Rig], mem_queue_size: int, tmp_path: Path) -> None:
    with kind(folder=tmp_path, mem_queue_size=mem_queue_size) as rig:
        rig.channel("c")
        assert oldest_ms(rig) is None
        for body in (b"first", b"second", b"third"):
            rig.publish(body)
            rig.advance(ms=1000)
        assert oldest_ms(rig) == 3000
        consumer = rig.consumer(rdy=1)
        message = consumer.take_one()
        assert oldest_ms(rig) == 2000  # what is in flight does not wait
        rig.advance(ms=500)
        consumer.finish(message)
        assert oldest_ms(rig) == 1500
        consumer.leave()
        rig.channel("c").empty()
        assert oldest_ms(rig) is None


@pytest.mark.parametrize("kind", [Rig, JournalRig])
def test_the_age_after_a_restart(kind: type[Rig], tmp_path: Path) -> None:
    """A disk queue is not opened to tell it: there may be thousands."""
    with kind(folder=tmp_path) as rig:
        rig.channel("c")
        rig.publish(b"first")
        rig.publish(b"second")
        rig.restart(down_ms=1000)
        rig.publish(b"third")
        assert oldest_ms(rig) == (None if kind is Rig else 1000)
        rig.consumer(rdy=2)  # takes one from memory and one from disk, or the two oldest from the journal
        assert oldest_ms(rig) == (1000 if kind is Rig else 0)


def test_the_age_of_what_waits_in_a_topic_without_channels(tmp_path: Path) -> None:
    with Rig(folder=tmp_path) as rig:
        rig.publish(b"first")
        rig.advance(ms=2000)
        assert rig.topic_stats().oldest_age_ns == 2000 * NS_PER_MS
