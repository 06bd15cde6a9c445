r"""to_nsq: publishes standard input, a message a record, to every nsqd that is named.

The records of one block read are published together, so a file goes in at the speed of batches, and a line typed at a
terminal goes at once. The next block is published when all nsqds have confirmed this one, which keeps the order. The
first message that any nsqd does not confirm ends the tool: everything before it has been published everywhere.

Records end at a delimiter of one byte (`RecordSplitter`):

    abc\n\ndef       read with the delimiter \n
    ---    --
    abc    de         two records

Empty records are skipped. What stands behind the last delimiter is a record too, but loses its last byte: NSQ's to_nsq
takes that byte for the delimiter, and scripts have come to rely on it.

`read_lines` gives whole lines, for `emberq pub`: all that one read completed together, many from a file, one from a
keyboard. So batches are as large as they can be without waiting.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from emberq.base.clock import SystemClock
from emberq.base.program import ToolError, run_tool
from emberq.base.settings import Group, OptionsError, SettingTable
from emberq.base.task import RateLimiter
from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.connection import Connection
from emberq.client.error import BadRequestError, NsqError
from emberq.client.producer import Producer
from emberq.tools.client_flags import SECRET_FILE_MEANING, ClientOption, ClientOptions, client_config
from emberq.wire.parameter import is_valid_name

# Records.

BLOCK_BYTES = 256 * 1024
"""Read at a time. What fits a pipe arrives in one go, and the records of a block make a good batch."""
MAX_BLOCKS_AHEAD = 2
"""One being published, one ready."""
MAX_RECORD_BYTES = 256 * 1024 * 1024
"""No nsqd takes a longer message, and input without delimiters must not fill the memory."""


class RecordSplitter:
    """Cuts blocks into records."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._pieces: list[bytes] = []
        """The beginning of a record that is not complete."""
        self._pieces_bytes = 0

    def feed(self, block: bytes) -> list[bytes]:
        """The records that end in this block."""
        first, *others = block.split(self._delimiter)
        self._pieces.append(first)
        self._pieces_bytes += len(first)
        if self._pieces_bytes > MAX_RECORD_BYTES:
            raise ToolError(f"a record is longer than {MAX_RECORD_BYTES} bytes")
        if not others:
            return []
        whole = b"".join(self._pieces)
        unfinished = others.pop()
        self._pieces = [unfinished]
        self._pieces_bytes = len(unfinished)
        return [record for record in (whole, *others) if record]

    def end(self) -> list[bytes]:
        """The record behind the last delimiter, without its last byte."""
        last = b"".join(self._pieces)[:-1]
        return [last] if last else []


class BlockReader:
    """Reads a file descriptor in a thread, because it may be of any kind: a pipe, a file, a terminal.

    The thread does not keep the process alive: it may wait for input that never comes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._free = threading.Semaphore(MAX_BLOCKS_AHEAD)
        self._thread = threading.Thread(target=self._read_all, name="stdin", daemon=True)

    async def blocks(self) -> AsyncIterator[bytes]:
        """The blocks, to the end of input. ToolError if it cannot be read."""
        self._thread.start()
        while block := await self._blocks.get():
            if isinstance(block, OSError):
                raise ToolError(f"failed to read - {block.strerror}")
            yield block
            self._free.release()

    def _read_all(self) -> None:
        while True:
            self._free.acquire()
            try:
                block: bytes | OSError = os.read(self._descriptor, BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                self._loop.call_soon_threadsafe(self._blocks.put_nowait, block)
            except RuntimeError:  # the loop is closed, and the block not wanted any more
                return
            if not block or isinstance(block, OSError):
                return


# The tool.

TOOL = "to_nsq"
ONCE = RetryPolicy(max_attempts=1, timeout_s=10.0)
"""Nothing is sent twice. The time is for an nsqd that was restarted meanwhile."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_PUBLISHING = Group("Publishing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToNsqOptions:
    """The flags of to_nsq."""

    topic: str = _PUBLISHING.text("", "topic to publish to", placeholder="topic")
    nsqd_tcp_address: tuple[str, ...] = _PUBLISHING.strings(
        "nsqd to publish to; each message goes to all of them", placeholder="address"
    )
    delimiter: str = _PUBLISHING.text("\n", "the byte that ends a message", placeholder="byte")
    rate: int = _PUBLISHING.integer(0, "how many messages to publish in a second at most; 0: as many as can be")
    producer_opt: tuple[ClientOption, ...] = _PUBLISHING.declare(
        ClientOptions(), (), "option of the client library, such as snappy,true"
    )
    auth_secret_file: str = _PUBLISHING.text("", SECRET_FILE_MEANING, placeholder="file")

    def validated(self) -> ToNsqOptions:
        """These options. OptionsError if they cannot work."""
        if not self.topic:
            raise OptionsError("--topic required")
        if len(os.fsencode(self.delimiter)) != 1:
            raise OptionsError("--delimiter must be a single byte")
        if not self.nsqd_tcp_address:
            raise OptionsError("--nsqd-tcp-address required")
        if not is_valid_name(self.topic):
            raise OptionsError("--topic is invalid")
        return self


SETTINGS = SettingTable(TOOL, options_class=ToNsqOptions, command=())


async def run(options: ToNsqOptions, stop_asked: asyncio.Event) -> None:
    """Publish standard input, until it ends or the stop is asked for."""
    await publish_input(options, stop_asked, descriptor=sys.stdin.fileno())


async def publish_input(options: ToNsqOptions, stop_asked: asyncio.Event, *, descriptor: int) -> None:
    """Publish what a file descriptor gives, until it ends or the stop is asked for."""
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


async def _publish_blocks(options: ToNsqOptions, publisher: _Publisher, descriptor: int) -> None:
    splitter = RecordSplitter(os.fsencode(options.delimiter))
    async for block in BlockReader(descriptor).blocks():
        await publisher.publish(splitter.feed(block))
    await publisher.publish(splitter.end())


class _Publisher:
    """Publishes to all nsqds. Connects when there is something to publish."""

    def __init__(self, options: ToNsqOptions, stop_asked: asyncio.Event) -> None:
        self._topic = options.topic
        self._addresses = list(dict.fromkeys(options.nsqd_tcp_address))
        self._config: ClientConfig = client_config(
            options.producer_opt, tool=TOOL, secret_file=options.auth_secret_file
        )
        self._throttle = RateLimiter(options.rate, clock=SystemClock()) if options.rate > 0 else None
        self._stop_asked = stop_asked
        self._producers: list[Producer] = []
        self._publishing = asyncio.Lock()
        """Held while messages are under way."""

    async def publish(self, records: Sequence[bytes]) -> None:
        """Return when every nsqd confirmed every record, or when the stop is asked for between two of them."""
        async for portion in paced(records, throttle=self._throttle, max_size=len(records)):
            if self._stop_asked.is_set():
                return
            await self._publish_now(portion)

    async def _publish_now(self, records: Sequence[bytes]) -> None:
        async with self._publishing:
            if not self._producers:
                await self._connect()
            await asyncio.gather(*(self._publish_to(producer, records) for producer in self._producers))

    async def _publish_to(self, producer: Producer, records: Sequence[bytes]) -> None:
        try:
            await producer.publish_many(self._topic, records)
        except BadRequestError:
            for record in records:  # one was refused, and all with it; this publishes those before it
                await producer.publish(self._topic, record)

    async def _connect(self) -> None:
        """Make the producers, after a trial connection: they would retry an address without a listener for ever."""
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


async def paced(items: Sequence[_T], *, throttle: RateLimiter | None, max_size: int) -> AsyncIterator[Sequence[_T]]:
    """The items in order, in portions of up to `max_size`, no faster than the throttle allows.

    A slow rate makes small portions, so the flow stays even.
    """
    start = 0
    while start < len(items):
        wanted = min(max_size, len(items) - start)
        count = wanted if throttle is None else throttle.take(wanted)
        if count:
            yield items[start : start + count]
            start += count
        elif throttle is not None:
            await asyncio.sleep(throttle.wait_s)


# Lines.

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Far longer than any message that nsqd takes. Longer input does not consist of lines."""


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    r"""The lines that each read completed, without their `\n`. The last one needs none."""
    rest = b""
    async for block in BlockReader(descriptor).blocks():
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield lines
        if len(rest) > MAX_LINE_BYTES:
            raise ToolError(f"a line is longer than {MAX_LINE_BYTES} bytes")
    if rest:
        yield [rest]


def main(argv: Sequence[str] | None = None) -> int:
    """Publish standard input to its end, or until it is told to stop; the exit status."""
    return run_tool(SETTINGS, ToNsqOptions, run, argv, failures=(NsqError,))
