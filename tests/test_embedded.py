"""A whole NSQ inside a program: real daemons, real sockets, gone without a trace."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from emberq.embedded import Embedded, EmbeddedThread
from tests.support.raw_client import Client
from tests.support.waiting import wait_until

pytest_plugins = ["pytester"]


def tcp(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_a_message_goes_through(nsq: EmbeddedThread) -> None:
    address = tcp(nsq.nsqd_tcp_addresses[0])
    with closing(Client(address)) as consumer, closing(Client(address)) as producer:
        consumer.sub("t", "c")
        consumer.rdy(1)
        producer.pub("t", b"hello")
        assert consumer.read_message().body == b"hello"


def test_nsqlookupd_knows_what_nsqd_has(nsq: EmbeddedThread) -> None:
    urllib.request.urlopen(f"http://{nsq.nsqd_http_addresses[0]}/topic/create?topic=t", data=b"").close()

    def producers() -> list[object]:
        try:
            with urllib.request.urlopen(f"http://{nsq.lookupd_http_addresses[0]}/lookup?topic=t") as answer:
                found: list[object] = json.load(answer)["producers"]
                return found
        except urllib.error.HTTPError:
            return []

    wait_until(lambda: len(producers()) == 1)


@pytest.mark.nsq(nsqd_count=2, with_lookupd=False, mem_queue_size=0)
def test_options_come_from_the_marker(nsq: EmbeddedThread) -> None:
    assert len(nsq.nsqd_tcp_addresses) == 2
    assert nsq.lookupd_http_addresses == []
    assert {nsqd.options.mem_queue_size for nsqd in nsq.nsq.nsqds} == {0}


async def test_it_runs_in_the_loop_of_an_asynchronous_program() -> None:
    async with Embedded() as nsq:
        address = nsq.nsqd_tcp_addresses[0]
        reader, writer = await asyncio.open_connection(*tcp(address))
        writer.write(b"  V2PUB t\n\x00\x00\x00\x02hi")
        assert await reader.readexactly(10) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(tcp(address)).close()


def test_a_folder_that_is_named_keeps_the_messages(tmp_path: Path) -> None:
    with EmbeddedThread(data_path=tmp_path) as nsq, closing(Client(tcp(nsq.nsqd_tcp_addresses[0]))) as producer:
        producer.pub("t", b"kept")
    with EmbeddedThread(data_path=tmp_path) as nsq, closing(Client(tcp(nsq.nsqd_tcp_addresses[0]))) as consumer:
        consumer.sub("t", "c")
        consumer.rdy(1)
        assert consumer.read_message().body == b"kept"


async def test_nothing_is_left_when_it_cannot_start(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(Exception, match="--max-deflate-level"):
        async with Embedded(data_path=tmp_path, max_deflate_level=99):
            pass
    wait_until(lambda: threading.active_count() <= threads)


def test_the_fixture_is_there_for_other_projects(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_with_a_real_nsqd(nsq):
            assert nsq.nsqd_tcp_addresses[0].startswith("127.0.0.1:")
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
