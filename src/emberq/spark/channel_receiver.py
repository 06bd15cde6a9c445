"""Consumes a channel into a spool: in a thread of the process that Spark runs a query's reader in, on the driver.

Messages are finished when they are on the disk, never before and whatever Spark does. So a receiver that dies has lost
nothing: what it had stored is in the spool, what it had not comes again, and what it had stored and not finished comes
again too and is recognized (`channel_spool`).

If Spark does not keep up, no more messages are taken once `MAX_WAITING_BYTES` wait in the spool; they stay with nsqd.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from emberq.base.address import TcpAddress, parse_tcp_address
from emberq.client import Batch, ClientConfig, Consumer, ConsumerConfig, Message, NsqError
from emberq.spark.address_book import AddressBook
from emberq.spark.channel_spool import Spool
from emberq.spark.error import NsqSparkError
from emberq.spark.schema import ARROW_SCHEMA, TIMESTAMP
from emberq.spark.setting import Access, SourceSettings

MAX_IN_FLIGHT = 5000
"""Messages that are on their way to the disk; an nsqd gives one connection 2500 at most unless told otherwise."""
BATCH_WAIT_S = 0.02
"""How long a segment waits for more messages to share an fsync with."""
MAX_WAITING_BYTES = 2 * 1024 * 1024 * 1024
FULL_PAUSE_S = 0.1

_log = logging.getLogger(__name__)


class ChannelReceiver:
    """Runs from `start` to `stop`. Owned by a reader on the driver."""

    def __init__(self, settings: SourceSettings, spool: Spool) -> None:
        self._settings = settings
        self._spool = spool
        self._nsqds: list[str] = []
        self._committed = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="emberq-receiver", daemon=True)
        self._stopping = asyncio.Event()
        self.failure: Exception | None = None
        """Why it has ended by itself."""

    def start(self) -> None:
        """NsqdUnavailable if an nsqd that the options name does not answer."""
        self._nsqds = tcp_addresses(self._settings.access)
        self._thread.start()

    def stop(self) -> None:
        """Returns when what was taken is stored and finished, or given back."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def committed(self, number: int) -> None:
        """Spark does not need segments below this number any more."""
        self._committed = number
        self._spool.prune(before=number)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._receive_all())
        except (NsqError, NsqSparkError, OSError) as failure:
            self.failure = failure
            _log.error("receiving has ended: %s", failure)
        finally:
            self._loop.close()

    async def _receive_all(self) -> None:
        consumers = [(topic, self._consumer(topic)) for topic in self._settings.topics]
        writing = asyncio.Lock()
        for _, consumer in consumers:
            await consumer.start()
        tasks = {asyncio.create_task(self._receive(topic, consumer, writing)) for topic, consumer in consumers}
        told = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({*tasks, told}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {told}:
                task.result()
        finally:
            for _, consumer in consumers:
                await consumer.stop(drain_timeout_s=1.0)
            for task in (*tasks, told):
                task.cancel()
            await asyncio.gather(*tasks, told, return_exceptions=True)

    def _consumer(self, topic: str) -> Consumer:
        access = self._settings.access
        assert self._settings.channel is not None  # noqa: S101 - the reader has seen to it
        return Consumer(
            topic,
            self._settings.channel,
            nsqd_addresses=self._nsqds,
            lookupd_addresses=access.lookupds,
            config=ConsumerConfig(
                max_in_flight=MAX_IN_FLIGHT,
                max_attempts=0,  # nothing is given up here: storing either works or ends it all
                lookupd_poll_interval_s=self._settings.discovery_interval_s,
            ),
            client_config=ClientConfig(
                tls=access.tls_context() if access.tls else None,
                auth_secret=(access.auth_secret or "").encode(),
                output_buffer_timeout_ms=25,
            ),
        )

    async def _receive(self, topic: str, consumer: Consumer, writing: asyncio.Lock) -> None:
        async for batch in consumer.batches(max_size=MAX_IN_FLIGHT, max_wait_s=BATCH_WAIT_S):
            async with writing:
                while self._spool.bytes_from(self._committed) > MAX_WAITING_BYTES:
                    await asyncio.sleep(FULL_PAUSE_S)
                await asyncio.to_thread(self._store, topic, batch)
            batch.finish()

    def _store(self, topic: str, batch: Batch) -> None:
        fresh = self._without_known(topic, batch)
        if fresh:
            self._spool.append(_rows(topic, fresh))

    def _without_known(self, topic: str, batch: Sequence[Message]) -> list[Message]:
        """The messages that are not stored yet, each once."""
        delivered_before: defaultdict[str, list[str]] = defaultdict(list)
        for message in batch:
            if message.attempts > 1:
                delivered_before[message.address].append(message.id.decode())
        known = {
            (nsqd, message_id)
            for nsqd, ids in delivered_before.items()
            for message_id in self._spool.known_ids(ids, topic=topic, nsqd=nsqd)
        }
        fresh = {(message.address, message.id.decode()): message for message in batch}
        return [message for key, message in fresh.items() if key not in known]


def tcp_addresses(access: Access) -> list[str]:
    """Where the nsqds speak TCP whose HTTP addresses the options name; none if nsqlookupds are named instead."""
    book = AddressBook(access)
    try:
        return [
            str(TcpAddress(parse_tcp_address(nsqd.rpartition("://")[2]).host, int(_info(book, nsqd)["tcp_port"])))
            for nsqd in access.nsqds
        ]
    finally:
        book.close()


def _info(book: AddressBook, nsqd: str) -> dict[str, int]:
    document = book.peer(nsqd).get_json("/info")
    found: dict[str, int] = document.get("data", document)
    return found


def _rows(topic: str, messages: Sequence[Message]) -> pa.RecordBatch:
    count = len(messages)
    timestamps = pa.array([message.timestamp_ns // 1000 for message in messages], pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic] * count, pa.string()),
            pa.array([message.address for message in messages], pa.string()),
            pa.nulls(count, pa.int64()),
            pa.array([message.id.decode() for message in messages], pa.string()),
            timestamps.cast(TIMESTAMP),
            pa.array([message.attempts for message in messages], pa.int32()),
            pa.array([message.body for message in messages], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )
