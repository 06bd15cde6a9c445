"""An nsqlookupd that answers a consumer with whatever does harm: endless, nested, forged, or far too many nsqds."""

from __future__ import annotations

import json
import logging

import pytest

from emberq.client.config import ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.discovery import MAX_NSQDS
from tests.support.threaded_http import Reply, ThreadedHttp
from tests.support.waiting import until


def producers(*addresses: tuple[object, object]) -> bytes:
    entries = [{"broadcast_address": host, "tcp_port": port} for host, port in addresses]
    return json.dumps({"channels": [], "producers": entries}).encode()


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a user reads; a traceback is none of it."""
    records = [record for record in caplog.records if record.name.startswith("emberq.client")]
    assert [record.exc_info for record in records if record.exc_info] == []
    return [record.getMessage() for record in records if record.levelno >= logging.INFO]


async def consume(body: bytes, *, polls: int = 1) -> None:
    """Run a consumer until it has asked so often."""
    with ThreadedHttp(lambda _request: Reply(body)) as server:
        consumer = Consumer(
            "t",
            "c",
            lookupd_addresses=[server.address],
            config=ConsumerConfig(lookupd_poll_interval_s=0.05, max_reconnect_delay_s=0.05, drain_timeout_s=0),
        )
        async with consumer:
            await until(lambda: len(server.received) >= polls)


@pytest.mark.parametrize(
    "body",
    [
        b'{"producers":[' + b"{}," * 3_000_000 + b"{}]}",
        b'{"producers":' + b"[" * 200_000,
        b'{"producers":{"a":1}}',
        b"[]",
        b"\xff\xfe",
        b'{"producers":[' + b"9" * 5000 + b"]}",
    ],
    ids=["endless", "nested", "no list", "no object", "no text", "a long number"],
)
async def test_an_answer_that_makes_no_sense_is_told_in_a_line(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    await consume(body, polls=2)
    assert shown(caplog)
    assert all(line.isprintable() and len(line) < 2000 for line in shown(caplog))


async def test_addresses_cannot_forge_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    odd = ["a\nERROR forged", "\x1b[2J", "x" * 100_000, "a b", "", "\x00", "127.0.0.1\r", "\u2028"]
    await consume(producers(*((host, 1) for host in odd), ("127.0.0.1", 0), ("127.0.0.1", 10**30)), polls=2)
    assert all(line.isprintable() and len(line) < 2000 for line in shown(caplog))


async def test_only_so_many_nsqds_are_connected_to(caplog: pytest.LogCaptureFixture) -> None:
    count = 3 * MAX_NSQDS
    await consume(producers(*((f"127.{number >> 8}.{number & 255}.1", 1) for number in range(count))))
    tried = [line for line in shown(caplog) if line.startswith("cannot consume from nsqd 127.")]
    assert 0 < len(tried) <= MAX_NSQDS
