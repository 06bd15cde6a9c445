"""Messages that are larger than there is room for: an honest nsqd waits, over any kind of stream, and none is lost."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest

from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.support.certificates import Authority
from tests.support.waiting import until

MIB = 1024 * 1024
COUNT = 12


@pytest.mark.loop("movable", "uvloop")
@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["clear", "tls"])
async def test_messages_come_as_there_is_room_for_them(
    tmp_path: Path, compression: str, is_encrypted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "authority")
    config = ClientConfig(
        tls=ssl.create_default_context(cafile=str(authority.path)) if is_encrypted else None,
        snappy=compression == "snappy",
        deflate=compression == "deflate",
    )
    half = random.Random(1).randbytes(MIB // 2)
    async with Embedded(with_lookupd=False, **authority.issue("server").options()) as nsq:
        addresses = nsq.nsqd_tcp_addresses
        async with Producer(addresses, config) as producer:
            for number in range(COUNT):
                await producer.publish("t", b"%d " % number + half + bytes(MIB // 3))
        consumer = Consumer(
            "t",
            "c",
            nsqd_addresses=addresses,
            config=ConsumerConfig(max_in_flight=100, max_in_flight_bytes=2 * MIB),
            client_config=config,
        )
        seen: set[bytes] = set()
        async with consumer:
            await until(lambda: any("has to wait" in line for line in caplog.messages))
            async for message in consumer:
                assert consumer.statistics().in_flight <= 5
                seen.add(message.body.partition(b" ")[0])
                message.finish()
                if len(seen) == COUNT:
                    break
            assert consumer.statistics().received == COUNT
    assert not any("lost nsqd" in line for line in caplog.messages)
