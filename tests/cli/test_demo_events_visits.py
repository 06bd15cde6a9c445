"""Made-up events: the same for the same seed, and counted."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

from emberq.base.clock import SystemClock
from emberq.cli.demo_events import ClickGenerator, evenly_from, publish_events
from emberq.client import Producer
from emberq.embedded import EmbeddedThread
from emberq.sync import Consumer
from tests.support.waiting import PATIENCE_S

SIX = datetime(2026, 11, 15, 6, tzinfo=UTC)


def generator(**options: int) -> ClickGenerator:
    return ClickGenerator(now=evenly_from(SIX, interval=timedelta(seconds=1)), **options)


def test_the_same_seed_makes_the_same_events() -> None:
    one, same, other = generator(seed=1), generator(seed=1), generator(seed=2)
    events = [one.next() for _ in range(50)]
    assert events == [same.next() for _ in range(50)]
    assert events != [other.next() for _ in range(50)]


def test_events_have_different_ids_and_even_times() -> None:
    clicks = generator()
    events = [json.loads(clicks.next()) for _ in range(3)]
    assert len({event["id"] for event in events}) == 3
    assert [event["at"] for event in events] == [f"2026-11-15T06:00:0{second}.000Z" for second in range(3)]


def test_what_was_made_is_counted() -> None:
    clicks = generator(broken_every=10)
    events = [clicks.next() for _ in range(100)]
    made = clicks.generated
    assert (made.good, made.broken, made.total) == (90, 10, 100)
    pages = Counter(json.loads(event)["page"] for event in events if b'"id"' in event)
    assert made.pages == pages
    assert len(set(events[9::10])) == 3  # each way to be broken comes in turn


async def test_as_many_as_asked_for_are_published(nsq: EmbeddedThread) -> None:
    (address,) = nsq.nsqd_tcp_addresses
    with Consumer("clicks", "c", nsqd_addresses=[address]) as consumer:
        consumer.start()
        async with Producer(address) as producer:
            await publish_events(generator(), producer, "clicks", count=1200, rate=100_000, clock=SystemClock())
        received = 0
        for batch in consumer.batches(idle_timeout_s=PATIENCE_S):
            received += len(batch)
            batch.finish()
            if received == 1200:
                break
    assert received == 1200
