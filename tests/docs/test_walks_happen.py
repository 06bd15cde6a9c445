"""The walks of docs/ARCHITECTURE.md really happen: each is carried out, in its order, and leaves no file out.

Python's profiler sees the calls. Compiled modules are invisible to it, so this is a test of the source.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

import emberq
from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import AdminOptions
from emberq.cli.main import is_compiled
from emberq.client import Consumer, Message, Producer
from emberq.embedded import Embedded
from tests.conftest import StartNsqd
from tests.docs.test_walks import WALKS, Step, names_in
from tests.support.http_client import HttpClient

ROOT = str(Path(emberq.__file__).parent)

pytestmark = pytest.mark.skipif(is_compiled(), reason="the profiler does not see compiled functions")

USED_BY_EVERY_STEP = {
    "base/address",
    "base/clock",
    "base/daemon",
    "base/file",  # the door of storage to the system's files
    "base/listener",
    "base/log",
    "base/memory",  # is told how much is published
    "base/text",
    "base/timers",
    "nsqd/metrics",  # counts the runs of the garbage collector, which may come at any time
    "storage/data_folder",  # nsqd.dat is written in portions, beside everything else
    "storage/disk_queue_sync",
    "wire/parameter",
}
"""Time, memory, log, names: no walk lists them."""
WRITERS = ("emberq-sync", "emberq-journal")
"""Threads that may still write what was changed before the walk, as nsqd.dat."""
PASSED_BY = {
    "One publish through disk": {
        "nsqd/daemon",  # `call_soon` of the event loop
        "wire/body",  # parts of the decoder
        "wire/line",
        "wire/run",
        "storage/backend",  # the limits of a record
        "broker/layout",  # the messages as they arrived
        "broker/subscriber",  # whether a consumer is ready
    },
    "One delivery from disk": {
        "broker/broker",  # told that nsqd.dat, with the new channel, is saved
        "broker/classic",  # whether a restart deferred it
        "wire/run",  # a part of the decoder
        "broker/layout",  # records made to frames
        "broker/subscriber",  # whose turn it is
    },
    "One consumer's message": {
        "client/address",  # the arguments of a consumer
        "client/argument",
        "client/config",
        "client/observer",
        "client/backoff",  # told of each outcome
        "client/link",  # the producer of the test
        "client/producer",
    },
    "One publish to a journal": {
        "broker/batch",  # the batch as the channel's queue keeps it
        "broker/layout",
        "broker/subscriber",  # whether a consumer is ready
        "broker/journal_queue",
        "storage/journal/segments",  # which one is written to
        "wire/body",  # parts of the decoder
        "base/pieces",
        "wire/line",
        "wire/mpub",
    },
    "GET /stats": {
        "nsqd/drain",  # whether it is on
        "base/metrics",  # a figure of memory, health or depth each
        "base/pieces",  # a part of the reader
        "broker/classic",
        "broker/deferred",
        "broker/in_flight",
        "broker/layout",  # when the oldest message was published
        "broker/queue",
        "http/browser",  # whether a page of another site asks
        "nsqd/api/argument",
        "nsqd/gate",  # whether one more connection is served
        "nsqd/health",
    },
    "One Spark row": {
        "spark/channel_source",  # whether this is the process of a reader
    },
    "One admin page": {
        "admin/absence",  # compares each look with those before
        "admin/alert",  # the look held against the rules
        "admin/attention",
        "admin/rule",
        "admin/silence",
        "admin/access/user",  # what a role may do
        "admin/document",  # the figures as JSON
        "admin/history",  # keeps each look
        "admin/options",
        "admin/web/asset",  # the names of scripts and styles
        "cluster/pipeline_feed",  # is told of each look
    },
}
"""Files that a walk enters for one small question, or beside its way. It does not list them."""


class Calls:
    """The functions of ours that were called, as `module`, `Class.method`."""

    def __init__(self) -> None:
        self._before: set[tuple[str, str]] = set()
        self._in_order: list[tuple[str, str]] = []
        self._entered: set[str] = set()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            module = code.co_filename[len(ROOT) + 1 : -len(".py")]
            self._in_order.append((module, code.co_qualname))
            if code.co_name != "<module>" and not threading.current_thread().name.startswith(WRITERS):
                self._entered.add(module)

    def begin_walk(self) -> None:
        """All that was needed for the walk is there."""
        calls, self._in_order = self._in_order, []
        self._before.update(calls)
        self._entered.clear()

    def missing(self, title: str) -> list[str]:
        """What a walk names and was not called. Classes and constants are there to be read, not to be called."""
        called = self._before.union(self._in_order)
        return [
            f"{step.module}: {name}"
            for step in WALKS[title]
            for name in step.names
            if _is_function(name, step) and (step.module, name) not in called
        ]

    def out_of_order(self, title: str) -> str | None:
        """The first step that was not taken behind the steps above it. Those of the start are not looked at."""
        called = set(self._in_order)
        later = iter(self._in_order)
        for step in WALKS[title]:
            first = (step.module, step.names[0])
            if first in called and _is_function(step.names[0], step) and first not in later:
                return ": ".join(first)
        return None

    def unlisted(self, title: str, *folders: str) -> set[str]:
        """The files that were entered and are not in the walk; of these folders alone, if any are named."""
        listed = {step.module for step in WALKS[title]} | USED_BY_EVERY_STEP | PASSED_BY[title]
        return {module for module in self._entered - listed if not folders or module.startswith(folders)}

    def assert_walked(self, title: str, *folders: str) -> None:
        """The walk was carried out as it is written; the test itself enters other folders, too."""
        assert not self.missing(title)
        assert self.out_of_order(title) is None
        assert not self.unlisted(title, *folders)


def _is_function(name: str, step: Step) -> bool:
    return name in names_in(step.module) and ("." in name or name.islower())


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Threads that are started later are seen, too."""
    calls = Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


# In nsqd alone. Its clock stands still, so that nothing happens but the walk.


def test_a_message_is_published_through_disk(calls: Calls, start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(mem_queue_size=0)
    nsqd.create_channel("orders", "billing")
    producer = nsqd.connect()
    nsqd.settle()
    calls.begin_walk()
    producer.pub("orders", b"one")
    calls.assert_walked("One publish through disk")


def test_a_message_is_delivered_from_disk(calls: Calls, start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(mem_queue_size=0)
    nsqd.create_channel("orders", "billing")
    nsqd.connect().pub("orders", b"one")
    consumer = nsqd.consumer("orders", "billing")
    calls.begin_walk()
    consumer.rdy(1)
    consumer.fin(consumer.read_message())
    nsqd.settle()
    calls.assert_walked("One delivery from disk")


def test_a_message_goes_to_a_journal(calls: Calls, start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal=True)
    nsqd.create_channel("orders", "billing")
    producer = nsqd.connect()
    nsqd.settle()
    calls.begin_walk()
    producer.mpub("orders", [b"x" * 1000] * 20)  # more than is gathered with others
    calls.assert_walked("One publish to a journal")


def test_stats_are_asked_for(calls: Calls, start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.connect().pub("orders", b"one")
    nsqd.consumer("orders", "billing")
    nsqd.settle()
    calls.begin_walk()
    for target in ("/stats?format=json", "/stats"):
        assert HttpClient(nsqd.http_address).get(target).status == 200
    calls.assert_walked("GET /stats")


# In several programs at once, which are one process here.


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


def test_a_consumer_handles_a_message(calls: Calls) -> None:
    async def scenario() -> None:
        handled = asyncio.Event()

        async def handle(_message: Message) -> bool:
            handled.set()
            return True

        async with Embedded(with_lookupd=False) as nsq:
            (nsqd,) = nsq.nsqd_tcp_addresses
            async with Producer(nsqd) as producer:
                await producer.publish("orders", b"one")
                calls.begin_walk()
                async with Consumer("orders", "billing", handle, nsqd_addresses=nsqd):
                    await handled.wait()

    asyncio.run(scenario())
    calls.assert_walked("One consumer's message", "client/")


def test_an_admin_page_is_shown(calls: Calls) -> None:
    async def scenario() -> None:
        async with Embedded(with_lookupd=False) as nsq:
            options = AdminOptions(
                http_address="127.0.0.1:0",
                nsqd_http_address=tuple(nsq.nsqd_http_addresses),
                history_duration_ns=0,  # with a history nsqadmin looks at the cluster before a browser comes
            )
            admin = Nsqadmin(options)
            await admin.start()
            host, port = admin.http_address
            calls.begin_walk()
            await ask_until(b"</html>", f"{host}:{port}", "/topics")
            await ask_until(b"event: topics", f"{host}:{port}", "/api/live?view=topics")
            calls.assert_walked("One admin page", "admin/", "cluster/")
            await admin.stop()

    asyncio.run(scenario())


def test_a_row_is_read_as_spark_reads_it(calls: Calls) -> None:
    pytest.importorskip("pyspark")
    from emberq.spark.journal_source import JournalStreamReader
    from emberq.spark.schema import MESSAGE_SCHEMA
    from emberq.spark.source import NsqDataSource

    def read_all(nsqd: str) -> int:
        calls.begin_walk()
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

    asyncio.run(scenario())
    calls.assert_walked("One Spark row", "spark/")
