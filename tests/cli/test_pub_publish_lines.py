"""Publishing a stream of bodies to a real nsqd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from emberq.cli.pub import LinePublisher
from emberq.client import BadRequestError, Producer
from emberq.embedded import EmbeddedThread
from tests.support.embedded import Broker


async def groups_of(*groups: Sequence[bytes]) -> AsyncIterator[Sequence[bytes]]:
    for group in groups:
        yield group


async def publish(
    nsq: EmbeddedThread, *groups: Sequence[bytes], delay_s: float | None = None
) -> tuple[LinePublisher, list[int]]:
    steps: list[int] = []
    async with Producer(nsq.nsqd_tcp_addresses) as producer:
        publisher = LinePublisher(producer, "t", batch_size=2, delay_s=delay_s, on_confirmed=steps.append)
        with suppress(BadRequestError):
            await publisher.publish(groups_of(*groups))
    return publisher, steps


def bodies_in(nsq: EmbeddedThread) -> list[bytes]:
    return Broker(nsq).take_all("t")


async def test_everything_is_published_in_batches_and_counted(nsq: EmbeddedThread) -> None:
    publisher, steps = await publish(nsq, [b"1", b"2", b"3"], [b"4"])
    assert bodies_in(nsq) == [b"1", b"2", b"3", b"4"]
    assert steps == [2, 1, 1]
    assert publisher.confirmed_count == 4


async def test_empty_bodies_are_skipped_and_counted_apart(nsq: EmbeddedThread) -> None:
    publisher, _ = await publish(nsq, [b"", b"1", b""], [b""])
    assert bodies_in(nsq) == [b"1"]
    assert (publisher.confirmed_count, publisher.empty_count) == (1, 3)


async def test_deferred_messages_come_too(nsq: EmbeddedThread) -> None:
    publisher, steps = await publish(nsq, [b"1", b"2", b"3"], delay_s=0.001)
    assert sorted(bodies_in(nsq)) == [b"1", b"2", b"3"]
    assert steps == [2, 1]
    assert publisher.confirmed_count == 3


@pytest.mark.nsq(max_msg_size=10)
@pytest.mark.parametrize("delay_s", [None, 0.001])
async def test_the_first_failure_ends_it_and_the_count_says_where(nsq: EmbeddedThread, delay_s: float | None) -> None:
    publisher, _ = await publish(nsq, [b"1", b"2"], [b"much too long"], [b"never sent"], delay_s=delay_s)
    assert publisher.confirmed_count == 2
    assert sorted(bodies_in(nsq)) == [b"1", b"2"]
