"""`emberq bench`: how fast an nsqd takes and delivers messages. Any nsqd: it speaks NSQ's protocol alone.

Publishers send batches and wait for each OK, while one consumer takes and finishes every message:

    publishers ──MPUB──▶ nsqd ──channel──▶ consumer ──FIN──▶ nsqd

Each body carries a number and the moment at which it was sent. So every message is known to have arrived once, and the
time from the call that published it to the consumer is measured on one clock. Publishers wait while many messages are
under way: what is measured is what nsqd sustains, and the queue in its memory does not run over. Both ends are Python
and share a core with each other, so a fast nsqd is faster than this shows.

Without --topic the topic and its channel are ephemeral, and gone when the command ends.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from emberq.cli.argument import (
    MAX_IN_FLIGHT,
    add_nsqd_tcp_flag,
    add_security_flags,
    client_config,
    duration_s,
    nsqd_tcp_addresses,
    positive_count,
    topic_name,
)
from emberq.cli.pub import check_any_is_reachable
from emberq.cli.terminal import DONE, FAILED, CommandError, CommandParser, Terminal, command_parser, run_command

if TYPE_CHECKING:
    from emberq.client import Consumer, Producer

EXAMPLES = """\
examples:
  emberq bench                                     the nsqd of this machine, for a hundred thousand messages
  emberq bench --size 1024 --batch 1 --publishers 50 --json
  emberq bench --topic bench_kept                  a topic that is kept: with its journal or disk queue

A topic of your own gets all the messages, and so do its other channels. `emberq topic delete` removes it.
"""
_STAMP = struct.Struct(">Qq")
"""What a body begins with: its number, and the nanosecond at which it was sent."""
MAX_UNDER_WAY = 5_000
"""Half of what nsqd keeps in memory by default: an ephemeral topic drops what goes beyond."""
PERCENTILES = (50, 99)
NS_PER_MS = 1_000_000


def main(argv: Sequence[str]) -> int:
    """Measure; the exit status."""
    return run_command(make_parser(), argv, bench)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq bench", "Measure how fast an nsqd takes and delivers messages.", epilog=EXAMPLES)
    flags = (
        ("--messages", 100_000, "how many messages"),
        ("--size", 200, f"how many bytes each has, at least {_STAMP.size}"),
        ("--batch", 100, "how many are published together"),
        ("--publishers", 4, "how many batches are under way at once"),
    )
    for flag, default, meaning in flags:
        parser.add_argument(
            flag, type=positive_count, default=default, metavar="N", help=f"{meaning} (default {default:,})"
        )
    parser.add_argument("--topic", type=topic_name, metavar="TOPIC", help="publish to this topic, which then is kept")
    parser.add_argument(
        "--idle",
        type=duration_s,
        default=5.0,
        metavar="TIME",
        help="end when no message came for so long (default 5s)",
    )
    add_nsqd_tcp_flag(parser)
    add_security_flags(parser)
    return parser


async def bench(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Measure and report."""
    from emberq.client import Consumer, ConsumerConfig, Producer

    if arguments.size < _STAMP.size:
        raise CommandError(f"--size must be at least {_STAMP.size}")
    nsqds, config = nsqd_tcp_addresses(arguments), client_config(arguments)
    await check_any_is_reachable(nsqds, config)
    number = random.randrange(10**6)  # noqa: S311 - it only has to differ from others
    topic = arguments.topic or f"emberq-bench-{number:06}#ephemeral"
    consumer = Consumer(
        topic,
        f"emberq-bench-{number:06}#ephemeral",
        nsqd_addresses=nsqds,
        config=ConsumerConfig(max_in_flight=MAX_IN_FLIGHT * 10, max_attempts=0),
        client_config=config,
    )
    run = BenchRun(topic, count=arguments.messages, size=arguments.size, batch_size=arguments.batch)
    async with consumer, Producer(nsqds, config) as producer:
        if not consumer.statistics().addresses:
            raise CommandError(f"nothing can be consumed from {', '.join(nsqds)}")
        with terminal.progress(topic, total=arguments.messages) as progress:
            run.on_received = progress.advance
            await run.measure(producer, consumer, publishers=arguments.publishers, idle_s=arguments.idle)
        await consumer.stop()
    report = {"nsqd": nsqds, "topic": topic, **run.report()}
    terminal.report(report, _text(report))
    return DONE if not report["missing"] else FAILED


def _text(report: dict[str, Any]) -> str:
    latency = ", ".join(f"{name} {value:,.1f} ms" for name, value in report["latency_ms"].items())
    doubt = f"\nMISSING {report['missing']:,}" if report["missing"] else ""
    again = f"\ndelivered again {report['again']:,}" if report["again"] else ""
    return (
        f"{report['messages']:,} messages of {report['size']:,} bytes in {report['seconds']:.2f} s\n"
        f"published {report['published_per_s']:,.0f}/s\n"
        f"consumed  {report['consumed_per_s']:,.0f}/s\n"
        f"latency   {latency}{again}{doubt}"
    )


class BenchRun:
    """One measurement. Publishers and the consumer run in one event loop and share what is counted here."""

    def __init__(self, topic: str, *, count: int, size: int, batch_size: int) -> None:
        import asyncio

        self._topic = topic
        self._count = count
        self._batch_size = batch_size
        self._padding = bytes(size - _STAMP.size)
        self._seen = bytearray(count)
        self._sent_count = 0
        self._received_count = 0
        self._again_count = 0
        self._latencies_ns: list[int] = []
        self._room = asyncio.Event()
        """Set while few messages are under way."""
        self._began_ns = self._published_ns = self._ended_ns = 0
        self.on_received: Callable[[int], None] = lambda _count: None

    async def measure(self, producer: Producer, consumer: Consumer, *, publishers: int, idle_s: float) -> None:
        """Publish everything, and return when all of it came or nothing has come for `idle_s`."""
        import asyncio

        self._room.set()
        self._began_ns = time.perf_counter_ns()
        consuming = asyncio.ensure_future(self._consume(consumer, idle_s=idle_s))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(publishers):
                    group.create_task(self._publish(producer))
            self._published_ns = time.perf_counter_ns()
            await consuming
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            consuming.cancel()

    async def _publish(self, producer: Producer) -> None:
        while self._sent_count < self._count:
            first = self._sent_count
            self._sent_count = min(first + self._batch_size, self._count)
            numbers = range(first, self._sent_count)
            now_ns = time.perf_counter_ns()
            await producer.publish_many(
                self._topic, [_STAMP.pack(number, now_ns) + self._padding for number in numbers]
            )
            if self._sent_count - self._received_count > MAX_UNDER_WAY:
                self._room.clear()
            await self._room.wait()

    async def _consume(self, consumer: Consumer, *, idle_s: float) -> None:
        import asyncio

        batches = consumer.batches(max_size=1000)
        while self._received_count < self._count:
            try:
                async with asyncio.timeout(idle_s):
                    batch = await anext(batches)
            except (TimeoutError, StopAsyncIteration):
                break
            self._ended_ns = now_ns = time.perf_counter_ns()
            before = self._received_count
            for message in batch:
                number, sent_ns = _STAMP.unpack_from(message.body)
                if self._seen[number]:
                    self._again_count += 1
                    continue
                self._seen[number] = 1
                self._received_count += 1
                self._latencies_ns.append(now_ns - sent_ns)
            batch.finish()
            self.on_received(self._received_count - before)
            if self._sent_count - self._received_count <= MAX_UNDER_WAY:
                self._room.set()
        self._room.set()  # publishers end, whatever has become of their messages

    def report(self) -> dict[str, Any]:
        """What was measured."""
        latencies = sorted(self._latencies_ns) or [0]
        figures = {
            f"p{percentile}": latencies[min(len(latencies) * percentile // 100, len(latencies) - 1)] / NS_PER_MS
            for percentile in PERCENTILES
        }
        publishing_s = max(self._published_ns - self._began_ns, 1) / 1e9
        consuming_s = max(self._ended_ns - self._began_ns, 1) / 1e9
        return {
            "messages": self._count,
            "size": len(self._padding) + _STAMP.size,
            "batch": self._batch_size,
            "seconds": round(max(publishing_s, consuming_s), 3),
            "published_per_s": round(self._count / publishing_s),
            "consumed_per_s": round(self._received_count / consuming_s),
            "latency_ms": {**figures, "max": latencies[-1] / NS_PER_MS},
            "again": self._again_count,
            "missing": self._count - self._received_count,
        }
