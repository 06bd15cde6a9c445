"""The walks of docs/ARCHITECTURE.md really happen: each is carried out, and every function that it names is called.

Python's profiler sees the calls. Compiled modules are invisible to it, so this is a test of the source.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import emberq
from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import AdminOptions
from emberq.cli.main import is_compiled
from emberq.client import Consumer, Message, Producer
from emberq.embedded import Embedded
from tests.docs.test_walks import WALKS, names_in

ROOT = str(Path(emberq.__file__).parent)

pytestmark = pytest.mark.skipif(is_compiled(), reason="the profiler does not see compiled functions")


class Calls:
    """The functions of ours that were called, as `module`, `Class.method`."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            self._seen.add((code.co_filename[len(ROOT) + 1 : -len(".py")], code.co_qualname))

    def missing(self, title: str) -> list[str]:
        """What a walk names and was not called. Classes and constants are there to be read, not to be called."""
        return [
            f"{step.module}: {name}"
            for step in WALKS[title]
            for name in step.names
            if name in names_in(step.module) and ("." in name or name.islower())
            if (step.module, name) not in self._seen
        ]


@contextmanager
def traced() -> Iterator[Calls]:
    calls = Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def ask_until(wanted: bytes, address: str, path: str) -> None:
    """Read an answer, which may have no end, until it has brought this."""

    def ask() -> None:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            brought = b""
            while wanted not in brought:
                piece = answer.read1()
                assert piece, f"{path}: {brought!r}"
                brought += piece

    await asyncio.to_thread(ask)


async def consume_one(nsqd: str) -> None:
    handled = asyncio.Event()

    async def handle(_message: Message) -> bool:
        handled.set()
        return True

    async with Consumer("orders", "billing", handle, nsqd_addresses=nsqd):
        await handled.wait()


def test_a_message_goes_through_disk_to_a_consumer() -> None:
    async def scenario() -> None:
        async with Embedded(mem_queue_size=0, sync_every=1, with_lookupd=False) as nsq:
            (nsqd,) = nsq.nsqd_tcp_addresses
            async with Producer(nsqd) as producer:
                await producer.publish("orders", b"first")  # its consumer makes the channel
                await consume_one(nsqd)
                await producer.publish("orders", b"second")

    with traced() as calls:
        asyncio.run(scenario())
    assert not calls.missing("One publish through disk")
    assert not calls.missing("One consumer's message")


def test_a_message_goes_to_a_journal() -> None:
    async def scenario() -> None:
        async with (
            Embedded(journal=True, with_lookupd=False) as nsq,
            Producer(nsq.nsqd_tcp_addresses[0]) as producer,
        ):
            await producer.publish_many("orders", [b"x" * 1000] * 20)  # more than is gathered with others

    with traced() as calls:
        asyncio.run(scenario())
    assert not calls.missing("One publish to a journal")


def test_stats_are_asked_for() -> None:
    async def scenario() -> None:
        async with Embedded(with_lookupd=False) as nsq:
            (nsqd,), (address,) = nsq.nsqd_tcp_addresses, nsq.nsqd_http_addresses
            async with Consumer("orders", "billing", nsqd_addresses=nsqd):
                await ask_until(b'"client_id"', address, "/stats?format=json")

    with traced() as calls:
        asyncio.run(scenario())
    assert not calls.missing("GET /stats")


def test_an_admin_page_is_shown() -> None:
    async def scenario() -> None:
        async with Embedded(with_lookupd=False) as nsq:
            options = AdminOptions(http_address="127.0.0.1:0", nsqd_http_address=tuple(nsq.nsqd_http_addresses))
            admin = Nsqadmin(options)
            await admin.start()
            host, port = admin.http_address
            await ask_until(b"</html>", f"{host}:{port}", "/topics")
            await ask_until(b"event: topics", f"{host}:{port}", "/api/live?view=topics")
            await admin.stop()

    with traced() as calls:
        asyncio.run(scenario())
    assert not calls.missing("One admin page")


def test_a_row_is_read_as_spark_reads_it() -> None:
    pytest.importorskip("pyspark")
    from emberq.spark.journal_source import JournalStreamReader
    from emberq.spark.schema import MESSAGE_SCHEMA
    from emberq.spark.source import NsqDataSource

    def read_all(nsqd: str) -> int:
        reader = NsqDataSource({"topic": "orders", "nsqd": nsqd}).streamReader(MESSAGE_SCHEMA)
        assert isinstance(reader, JournalStreamReader)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return sum(rows.num_rows for part in reader.partitions(start, end) for rows in reader.read(part))

    async def scenario() -> None:
        async with (
            Embedded(journal=True, with_lookupd=False) as nsq,
            Producer(nsq.nsqd_tcp_addresses[0]) as producer,
        ):
            await producer.publish("orders", b"one")
            assert await asyncio.to_thread(read_all, nsq.nsqd_http_addresses[0]) == 1

    with traced() as calls:
        asyncio.run(scenario())
    assert not calls.missing("One Spark row")
