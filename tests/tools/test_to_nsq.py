"""to_nsq publishes what it reads."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from emberq.base.settings import OptionsError
from emberq.client.error import BadRequestError, ConnectError
from emberq.embedded import EmbeddedThread
from emberq.tools.to_nsq import ToNsqOptions, publish_input
from tests.support.embedded import Broker
from tests.support.waiting import PATIENCE_S, until
from tests.tools.rig import running


async def publish_file(options: ToNsqOptions, content: bytes, *, folder: Path) -> None:
    """Run it on a file to the end."""
    path = folder / "input"
    path.write_bytes(content)
    with path.open("rb") as file:
        work = publish_input(options.validated(), asyncio.Event(), descriptor=file.fileno())
        await asyncio.wait_for(work, timeout=PATIENCE_S)


@pytest.mark.conformance(260)
async def test_records_are_published_in_order(broker: Broker, tmp_path: Path) -> None:
    await publish_file(ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,)), b"abc\n\ndef", folder=tmp_path)
    assert broker.take("t", 2) == [b"abc", b"de"]


async def test_a_big_file_arrives_whole(broker: Broker, tmp_path: Path) -> None:
    lines = [b"%06d %s" % (number, b"x" * 100) for number in range(8_000)]
    await publish_file(
        ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,)), b"\n".join(lines) + b"\n", folder=tmp_path
    )
    assert broker.message_count("t") == 8_000
    assert broker.take("t", 2_000) == lines[:2_000]


@pytest.mark.nsq(nsqd_count=2)
async def test_every_nsqd_gets_every_message(nsq: EmbeddedThread, tmp_path: Path) -> None:
    await publish_file(
        ToNsqOptions(topic="t", nsqd_tcp_address=tuple(nsq.nsqd_tcp_addresses)), b"a\nb\n", folder=tmp_path
    )
    assert [Broker(nsq, number=number).take("t", 2) for number in (0, 1)] == [[b"a", b"b"]] * 2


async def test_any_single_byte_can_be_the_delimiter(broker: Broker, tmp_path: Path) -> None:
    options = ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,), delimiter=",")
    await publish_file(options, b"a\nb,c,", folder=tmp_path)
    assert broker.take("t", 2) == [b"a\nb", b"c"]


@pytest.mark.nsq(max_msg_size=1000)
async def test_a_message_that_is_refused_ends_it_behind_those_before_it(broker: Broker, tmp_path: Path) -> None:
    content = b"first\n" + b"x" * 2000 + b"\nlast\n"
    with pytest.raises(BadRequestError, match="takes no more than 1000"):
        await publish_file(ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,)), content, folder=tmp_path)
    assert broker.message_count("t") == 1
    assert broker.take("t", 1) == [b"first"]


async def test_an_nsqd_that_is_not_there_ends_it_at_once(nsq: EmbeddedThread, tmp_path: Path) -> None:
    options = ToNsqOptions(topic="t", nsqd_tcp_address=(nsq.nsqd_tcp_addresses[0], "127.0.0.1:1"))
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        await publish_file(options, b"a\n", folder=tmp_path)


async def test_without_input_nobody_need_be_there(tmp_path: Path) -> None:
    await publish_file(ToNsqOptions(topic="t", nsqd_tcp_address=("127.0.0.1:1",)), b"", folder=tmp_path)


async def test_a_line_goes_as_soon_as_it_is_typed_and_a_stop_waits_for_no_more(broker: Broker) -> None:
    options = ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,)).validated()
    reading, writing = os.pipe()
    async with running(lambda stop: publish_input(options, stop, descriptor=reading)):
        os.write(writing, b"one\n")
        await until(lambda: broker.message_count("t") == 1)
        os.write(writing, b"two\nunfinished")
        await until(lambda: broker.message_count("t") == 2)
    os.close(writing)
    os.close(reading)


async def test_a_rate_holds_it_back(broker: Broker) -> None:
    options = ToNsqOptions(topic="t", nsqd_tcp_address=(broker.tcp_address,), rate=1).validated()
    reading, writing = os.pipe()
    os.write(writing, b"a\n" * 100)
    async with running(lambda stop: publish_input(options, stop, descriptor=reading)):
        await until(lambda: broker.message_count("t") == 1)
    assert broker.message_count("t") <= 3, "far fewer than there were"
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (ToNsqOptions(nsqd_tcp_address=("a:1",)), "--topic required"),
        (ToNsqOptions(topic="t"), "--nsqd-tcp-address required"),
        (ToNsqOptions(topic="t!", nsqd_tcp_address=("a:1",)), "--topic is invalid"),
        (ToNsqOptions(topic="t", nsqd_tcp_address=("a:1",), delimiter="ab"), "--delimiter must be a single byte"),
        (ToNsqOptions(topic="t", nsqd_tcp_address=("a:1",), delimiter=""), "--delimiter must be a single byte"),
        (ToNsqOptions(topic="t", nsqd_tcp_address=("a:1",), delimiter="ü"), "--delimiter must be a single byte"),
    ],
)
def test_options_that_cannot_work_are_refused(options: ToNsqOptions, complaint: str) -> None:
    with pytest.raises(OptionsError, match=complaint):
        options.validated()
