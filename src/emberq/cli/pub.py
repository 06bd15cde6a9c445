"""`emberq pub`: publish messages from the command line, a file or standard input, at a rate if wanted.

Bodies are published in batches as large as they come (`LinePublisher`). Empty bodies are skipped, because NSQ has no
empty messages. A body counts when nsqd has confirmed it. The first failure ends the command, which tells how far it
got. NSQ has no command for several deferred messages, so those are sent one by one, a batch under way at a time.

A producer waits for nsqds that are down, as a service should. A user at a terminal should hear of it at once, so
`check_any_is_reachable` tries them first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberq.base.clock import SystemClock
from emberq.base.program import ToolError
from emberq.cli.argument import (
    add_nsqd_tcp_flag,
    add_security_flags,
    client_config,
    duration_s,
    nsqd_tcp_addresses,
    positive_count,
    topic_name,
)
from emberq.cli.terminal import (
    DONE,
    MISUSED,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    counted,
    run_command,
)

if TYPE_CHECKING:
    from emberq.base.task import RateLimiter
    from emberq.client import ClientConfig, NsqError, Producer

EXAMPLES = """\
examples:
  emberq pub orders '{"id": 1}' '{"id": 2}'     two messages
  emberq pub orders -f orders.jsonl             a message for each line
  tail -f app.log | emberq pub logs             each line as it comes
  emberq pub reminders 'tea' --defer 3m         delivered in three minutes

Several nsqds take turns, and stand in for one that fails. Empty lines are skipped.
Messages are counted when an nsqd has confirmed them.
"""
STANDARD_INPUT = "-"
DEFAULT_BATCH_SIZE = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Publish; the exit status."""
    return run_command(make_parser(), argv, publish)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq pub", "Publish messages to a topic.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("body", nargs="*", default=[], metavar="BODY", help="a message; without any, lines are read")
    parser.add_argument("-f", "--file", metavar="FILE", help="read a message from each line; - is standard input")
    parser.add_argument(
        "--batch",
        type=positive_count,
        default=DEFAULT_BATCH_SIZE,
        metavar="N",
        help="publish up to N messages together (default 200)",
    )
    parser.add_argument("--rate", type=positive_count, metavar="N", help="publish at most N messages a second")
    parser.add_argument("--defer", type=duration_s, metavar="TIME", help="deliver them later: 90s, 1h30m")
    add_nsqd_tcp_flag(parser)
    add_security_flags(parser)
    return parser


async def publish(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Publish everything."""
    from emberq.client import Producer

    if arguments.body and arguments.file is not None:
        terminal.fail("messages were given both as arguments and by --file; one of them will do")
        return MISUSED
    addresses, config = nsqd_tcp_addresses(arguments), client_config(arguments)
    with _source(arguments, terminal) as (messages, count):
        await check_any_is_reachable(addresses, config)
        async with Producer(addresses, config) as producer:
            try:
                await _publish_and_report(arguments, terminal, producer, messages, count)
            except ToolError as failure:
                raise CommandError(str(failure)) from failure
    return DONE


async def _publish_and_report(
    arguments: argparse.Namespace,
    terminal: Terminal,
    producer: Producer,
    messages: AsyncIterator[Sequence[bytes]],
    count: int | None,
) -> None:
    """Publish, and report how many messages were published, also if it ends early."""
    progress = terminal.progress(arguments.topic, total=count, is_shown=not _is_typed(arguments))
    publisher = LinePublisher(
        producer,
        arguments.topic,
        batch_size=arguments.batch,
        throttle=rate_limiter(arguments),
        delay_s=arguments.defer,
        on_confirmed=progress.advance,
    )
    began_s = time.monotonic()
    is_complete = False
    try:
        with progress:
            await publisher.publish(messages)
        is_complete = True
    finally:
        _report(
            terminal,
            {
                "topic": arguments.topic,
                "published": publisher.confirmed_count,
                "skipped_empty": publisher.empty_count,
                "seconds": round(time.monotonic() - began_s, 3),
                "complete": is_complete,
            },
        )


def _report(terminal: Terminal, result: dict[str, Any]) -> None:
    """Write the result."""
    early = "" if result["complete"] else ", then it ended early"
    terminal.report(result, f"published {counted(result['published'], 'message')} to {result['topic']}{early}")
    if result["skipped_empty"] and not terminal.as_json:
        terminal.note(f"{counted(result['skipped_empty'], 'empty line')} skipped: NSQ has no empty messages")


@contextmanager
def _source(
    arguments: argparse.Namespace, terminal: Terminal
) -> Iterator[tuple[AsyncIterator[Sequence[bytes]], int | None]]:
    """The messages to publish, and how many they are if that is known."""
    from emberq.tools.to_nsq import read_lines

    if arguments.body:
        yield _at_once([os.fsencode(body) for body in arguments.body]), len(arguments.body)
    elif arguments.file in (None, STANDARD_INPUT):
        if _is_typed(arguments):
            terminal.note("each line you type is a message; Ctrl-D ends")
        yield read_lines(sys.stdin.fileno()), None
    else:
        path = Path(arguments.file)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as failure:
            raise CommandError(f"--file: {failure}") from failure
        try:
            yield read_lines(descriptor), _line_count(path) if terminal.is_watched else None
        finally:
            os.close(descriptor)


def _is_typed(arguments: argparse.Namespace) -> bool:
    """Whether the user types the messages. A bar would be drawn into the line that is being typed."""
    return not arguments.body and arguments.file in (None, STANDARD_INPUT) and sys.stdin.isatty()


async def _at_once(bodies: Sequence[bytes]) -> AsyncIterator[Sequence[bytes]]:
    yield bodies


def _line_count(path: Path) -> int | None:
    """How many messages a file holds; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as lines:
        return sum(line != b"\n" for line in lines)


# Publishing in batches.


def rate_limiter(arguments: argparse.Namespace) -> RateLimiter | None:
    """What keeps to --rate; None without it."""
    from emberq.base.task import RateLimiter

    return RateLimiter(arguments.rate, clock=SystemClock()) if arguments.rate else None


class LinePublisher:
    """Publishes to one topic. `on_confirmed(count)` is called after each batch."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        batch_size: int,
        throttle: RateLimiter | None = None,
        delay_s: float | None = None,
        on_confirmed: Callable[[int], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._batch_size = batch_size
        self._throttle = throttle
        self._delay_s = delay_s
        self._on_confirmed = on_confirmed
        self.confirmed_count = 0
        self.empty_count = 0

    async def publish(self, groups: AsyncIterator[Sequence[bytes]]) -> None:
        """Publish everything, in order."""
        from emberq.tools.to_nsq import paced

        async for group in groups:
            bodies = [body for body in group if body]
            self.empty_count += len(group) - len(bodies)
            async for batch in paced(bodies, throttle=self._throttle, max_size=self._batch_size):
                await self._publish_batch(batch)

    async def _publish_batch(self, batch: Sequence[bytes]) -> None:
        import asyncio

        if self._delay_s is None:
            await self._producer.publish_many(self._topic, batch)
            self._confirmed(len(batch))
            return
        sending = [self._producer.publish_deferred(self._topic, body, delay_s=self._delay_s) for body in batch]
        failures = [each for each in await asyncio.gather(*sending, return_exceptions=True) if each is not None]
        self._confirmed(len(batch) - len(failures))
        if failures:
            raise failures[0]

    def _confirmed(self, count: int) -> None:
        self.confirmed_count += count
        self._on_confirmed(count)


async def check_any_is_reachable(addresses: Iterable[str], config: ClientConfig) -> None:
    """Return if a connection to one of the nsqds succeeds; else raise the last failure."""
    from emberq.client import Connection, NsqError

    refusal: NsqError | None = None
    for address in addresses:
        try:
            connection = await Connection.open(address, config)
        except NsqError as failure:
            refusal = failure
        else:
            await connection.close()
            return
    if refusal is not None:
        raise refusal
