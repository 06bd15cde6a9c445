"""nsq_tail: prints the messages of topics, each with a line feed behind it.

Without `--channel` it has an ephemeral channel of its own, so no other consumer misses a message. Messages are finished
when they have been written. With `-n` the rest of a batch goes back to nsqd at once. Writing happens in a thread: the
reader of the output may be slow, and nsqd has to get its heartbeats all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from emberq.base.program import ToolError, run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.consumer import Consumer
from emberq.client.error import NsqError
from emberq.client.message import MessageBatch
from emberq.tools.client_flags import SourceOptions, check_addresses, consume, make_consumer

TOOL = "nsq_tail"
CHANNEL_NUMBERS = 999_999
"""The number of names for its own channel."""

logger = logging.getLogger(__name__)

_TAIL = Group("Printing")


def _own_channel() -> str:
    return f"tail{random.randrange(CHANNEL_NUMBERS):06}#ephemeral"  # noqa: S311 - it has to be unique, not secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions(SourceOptions):
    """The flags of nsq_tail."""

    topic: tuple[str, ...] = _TAIL.strings("topic to print", placeholder="topic")
    channel: str = _TAIL.text(
        "", "channel to consume", placeholder="channel", default_text="one of its own, tail<number>#ephemeral"
    )
    n: int = _TAIL.integer(0, "stop after so many messages of any one topic; 0: do not stop")
    print_topic: bool = _TAIL.boolean("print the topic, a space, a bar and a space before each message", default=False)

    def validated(self) -> TailOptions:
        """These options with the channel named. OptionsError if they cannot work."""
        check_addresses(self)
        if not self.topic:
            raise OptionsError("--topic required")
        max_in_flight = min(self.max_in_flight, self.n) if self.n > 0 else self.max_in_flight
        return replace(self, channel=self.channel or _own_channel(), max_in_flight=max_in_flight)


SETTINGS = SettingTable(TOOL, options_class=TailOptions, command=(VERSION,))


async def run(options: TailOptions, stop_asked: asyncio.Event) -> None:
    """Print until the stop is asked for, or enough is printed."""
    await print_messages(options, stop_asked, output=sys.stdout.fileno())


async def print_messages(options: TailOptions, stop_asked: asyncio.Event, *, output: int) -> None:
    """Print to a file descriptor until the stop is asked for, or enough is printed."""
    printer = _Printer(options, output=output)
    consumers = {}
    for topic in options.topic:
        logger.info("Adding consumer for topic: %s", topic)
        consumers[topic] = make_consumer(options, topic=topic, channel=options.channel, tool=TOOL)
    await consume(consumers, printer.pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked)


class _Printer:
    """Writes messages of consumers to a file descriptor."""

    def __init__(self, options: TailOptions, *, output: int) -> None:
        self._options = options
        self._output = output
        self._writing = asyncio.Lock()
        """Held while a batch is written, so that those of several topics do not mix."""

    async def pump(self, topic: str, consumer: Consumer) -> None:
        """Print the consumer's messages, until it is stopped or enough are printed."""
        limit = self._options.n
        printed_count = 0
        async for batch in consumer.batches():
            printable = MessageBatch(batch[: limit - printed_count]) if limit > 0 else batch
            try:
                await self._print(topic, printable.bodies)
            except OSError as error:
                batch.requeue(0, backoff=False)
                raise ToolError(f"failed to write to stdout - {error.strerror}") from error
            printable.finish()
            printed_count += len(printable)
            if limit > 0 and printed_count >= limit:
                MessageBatch(batch[len(printable) :]).requeue(0, backoff=False)
                return

    async def _print(self, topic: str, bodies: Sequence[bytes]) -> None:
        start = f"{topic} | ".encode() if self._options.print_topic else b""
        text = b"".join([start + body + b"\n" for body in bodies])
        async with self._writing:
            await asyncio.to_thread(_write_all, self._output, text)


def _write_all(output: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


def main(argv: Sequence[str] | None = None) -> int:
    """Print messages until there are enough or it is told to stop; the exit status."""
    return run_tool(SETTINGS, TailOptions, run, argv, failures=(NsqError,))
