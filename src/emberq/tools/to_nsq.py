"""to_nsq: publishes what it reads from standard input, a message a record, to every nsqd that is named.

The records of a block that was read are published together, so a file goes in at the speed of batches; a line typed at
a terminal goes at once. The next block is published when all nsqds confirmed this one, which keeps the order. The first
message that any nsqd does not confirm ends the tool: what stands before it has been published everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from emberq.base.clock import SystemClock
from emberq.base.settings import Group, OptionsError, SettingTable
from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.error import BadRequest
from emberq.client.producer import Producer
from emberq.client.retry import RetryPolicy
from emberq.tools.client_options import ClientOption, ClientOptions, client_config
from emberq.tools.records import BlockReader, RecordSplitter
from emberq.tools.throttle import Throttle
from emberq.wire.name import is_valid_name

TOOL = "to_nsq"
ONCE = RetryPolicy(max_attempts=1, timeout_s=10.0)
"""Nothing is sent twice. The time is for an nsqd that has been restarted meanwhile."""

logger = logging.getLogger(__name__)

_PUBLISHING = Group("Publishing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to_nsq is to do."""

    topic: str = _PUBLISHING.text("", "topic to publish to", placeholder="topic")
    nsqd_tcp_address: tuple[str, ...] = _PUBLISHING.strings(
        "nsqd to publish to; each message goes to all of them", placeholder="address"
    )
    delimiter: str = _PUBLISHING.text("\n", "the byte that ends a message", placeholder="byte")
    rate: int = _PUBLISHING.integer(0, "how many messages to publish in a second at most; 0: as many as can be")
    producer_opt: tuple[ClientOption, ...] = _PUBLISHING.declare(
        ClientOptions(), (), "option of the client library, such as snappy,true"
    )

    def validated(self) -> Options:
        """These options; OptionsError for what cannot work."""
        if not self.topic:
            raise OptionsError("--topic required")
        if len(os.fsencode(self.delimiter)) != 1:
            raise OptionsError("--delimiter must be a single byte")
        if not self.nsqd_tcp_address:
            raise OptionsError("--nsqd-tcp-address required")
        if not is_valid_name(self.topic):
            raise OptionsError("--topic is invalid")
        return self


SETTINGS = SettingTable(TOOL, options_class=Options, command=())


async def run(options: Options, stop_asked: asyncio.Event) -> None:
    """Publish standard input, until it ends or the stop is asked for."""
    await publish_input(options, stop_asked, descriptor=sys.stdin.fileno())


async def publish_input(options: Options, stop_asked: asyncio.Event, *, descriptor: int) -> None:
    """The same for any file descriptor."""
    publisher = _Publisher(options, stop_asked)
    reading = asyncio.create_task(_publish_blocks(options, publisher, descriptor))
    stop = asyncio.create_task(stop_asked.wait())
    try:
        await asyncio.wait([reading, stop], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await publisher.finish_up()
            reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()
    finally:
        stop.cancel()
        await publisher.close()


async def _publish_blocks(options: Options, publisher: _Publisher, descriptor: int) -> None:
    splitter = RecordSplitter(os.fsencode(options.delimiter))
    async for block in BlockReader(descriptor).blocks():
        await publisher.publish(splitter.feed(block))
    await publisher.publish(splitter.end())


class _Publisher:
    """Publishes to all nsqds. Connects when there is something to publish."""

    def __init__(self, options: Options, stop_asked: asyncio.Event) -> None:
        self._topic = options.topic
        self._addresses = list(dict.fromkeys(options.nsqd_tcp_address))
        self._config: ClientConfig = client_config(options.producer_opt, tool=TOOL)
        self._throttle = Throttle(options.rate, clock=SystemClock()) if options.rate > 0 else None
        self._stop_asked = stop_asked
        self._producers: list[Producer] = []
        self._publishing = asyncio.Lock()
        """Held while messages are under way."""

    async def publish(self, records: Sequence[bytes]) -> None:
        """Return when every nsqd confirmed every record, or when the stop is asked for between two of them."""
        while records and not self._stop_asked.is_set():
            count = len(records) if self._throttle is None else self._throttle.take(len(records))
            if count:
                await self._publish_now(records[:count])
                records = records[count:]
            elif self._throttle is not None:
                await asyncio.sleep(self._throttle.wait_s)

    async def _publish_now(self, records: Sequence[bytes]) -> None:
        async with self._publishing:
            if not self._producers:
                await self._connect()
            await asyncio.gather(*(self._publish_to(producer, records) for producer in self._producers))

    async def _publish_to(self, producer: Producer, records: Sequence[bytes]) -> None:
        try:
            await producer.publish_many(self._topic, records)
        except BadRequest:
            for record in records:  # nsqd took none of them because of one; this publishes those before it
                await producer.publish(self._topic, record)

    async def _connect(self) -> None:
        """Make the producers, after a trial: they would go on trying an address that nobody listens at."""
        for address in self._addresses:
            trial = await Connection.open(address, self._config)
            await trial.close()
        self._producers = [Producer(address, self._config, retry=ONCE) for address in self._addresses]

    async def finish_up(self) -> None:
        """Wait for what is under way."""
        async with self._publishing:
            pass

    async def close(self) -> None:
        await asyncio.gather(*(producer.close() for producer in self._producers))
