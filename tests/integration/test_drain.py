"""A real nsqd that is drained under load: every message it confirmed is consumed, then it ends by itself."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from emberq.client import Consumer, ConsumerConfig, Message, NsqError, Producer, RetryPolicy
from tests.support.nsqd_process import NsqdProcess
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.waiting import PATIENCE_S, wait_until

PRODUCERS = 4
BEFORE = 200
"""How many messages each producer has confirmed when the drain begins."""


@pytest.mark.parametrize("topic", ["classic", "journaled"])
async def test_a_node_under_load_is_drained_without_loss(tmp_path: Path, topic: str) -> None:
    with NsqlookupdProcess(log_path=tmp_path / "lookupd.log") as lookupd:
        flags = (f"--lookupd-tcp-address=127.0.0.1:{lookupd.tcp_port}", "--journal-topic=^j", "--mem-queue-size=10")
        with NsqdProcess(*flags, data_path=tmp_path, log_path=tmp_path / "nsqd.log") as nsqd:
            confirmed, seen = await drained(nsqd, topic)
            assert await asyncio.to_thread(nsqd.wait) == 0, nsqd.log
        assert confirmed <= seen
        assert len(confirmed) >= PRODUCERS * BEFORE
        wait_until(lambda: lookupd.http.get("/nodes").json()["producers"] == [])  # it hears of the end by itself


async def drained(nsqd: NsqdProcess, topic: str) -> tuple[set[bytes], set[bytes]]:
    """Publish, consume and drain; the bodies that were confirmed, and those that were seen."""
    address = f"127.0.0.1:{nsqd.tcp_port}"
    confirmed: set[bytes] = set()
    seen: set[bytes] = set()
    is_under_load = asyncio.Event()

    async def publish(number: int) -> None:
        async with Producer(address, retry=RetryPolicy(max_attempts=1)) as producer:
            for count in range(1_000_000):
                body = b"%d-%d" % (number, count)
                try:
                    await producer.publish(topic, body)
                except NsqError:
                    return
                confirmed.add(body)
                if len(confirmed) >= PRODUCERS * BEFORE:
                    is_under_load.set()

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)  # slower than the producers: something is left when the drain begins
        seen.add(message.body)

    consumer = Consumer(topic, "c", handle, nsqd_addresses=[address], config=ConsumerConfig(max_in_flight=20))
    async with consumer:
        tasks = [asyncio.create_task(publish(number)) for number in range(PRODUCERS)]
        await asyncio.wait_for(is_under_load.wait(), PATIENCE_S)
        nsqd.signal(signal.SIGUSR1)
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
        await asyncio.wait_for(asyncio.to_thread(nsqd.wait), PATIENCE_S)
    return confirmed, seen
