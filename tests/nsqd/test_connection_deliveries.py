"""Deliveries at the end of a turn of the loop."""

from __future__ import annotations

import asyncio

from emberq.nsqd.connection import MAX_SETTLED_COUNT, PATIENCE_S, Deliveries


class Consumer:
    """A consumer's side of a connection, which counts how often it settles."""

    def __init__(self) -> None:
        self.settled_count = 0

    def settle(self) -> None:
        self.settled_count += 1

    def settle_later(self) -> None:
        self.settle()


async def test_thousands_of_consumers_settle_over_several_turns() -> None:
    deliveries = Deliveries()
    consumers = [Consumer() for _ in range(3 * MAX_SETTLED_COUNT)]
    for consumer in consumers:
        deliveries.add(consumer)
    for turns in (1, 2, 3):
        await asyncio.sleep(0)
        counts = [consumer.settled_count for consumer in consumers]
        assert counts == [1] * turns * MAX_SETTLED_COUNT + [0] * (3 - turns) * MAX_SETTLED_COUNT
    late = Consumer()
    deliveries.add(late)
    await asyncio.sleep(0)
    assert late.settled_count == 1


async def test_a_consumer_that_can_wait_is_settled_after_a_while() -> None:
    deliveries = Deliveries()
    consumer = Consumer()
    deliveries.add_patient(consumer)
    deliveries.add_patient(consumer)
    await asyncio.sleep(0)
    assert consumer.settled_count == 0
    await asyncio.sleep(10 * PATIENCE_S)
    assert consumer.settled_count == 1


async def test_a_consumer_that_has_gone_is_not_waited_for() -> None:
    deliveries = Deliveries()
    gone, there = Consumer(), Consumer()
    deliveries.add_patient(gone)
    deliveries.add_patient(there)
    deliveries.forget(gone)
    await asyncio.sleep(10 * PATIENCE_S)
    assert (gone.settled_count, there.settled_count) == (0, 1)
