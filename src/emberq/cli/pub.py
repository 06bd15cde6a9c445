"""The `emberq pub` command: publish what stands on the command line, in a file, or on standard input."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberq.cli.argument import duration_s, positive_count, topic_name
from emberq.cli.connection_flags import add_nsqd_tcp_flag, add_security_flags, client_config, nsqd_tcp_addresses
from emberq.cli.terminal import (
    DONE,
    MISUSED,
    CommandError,
    Progress,
    Terminal,
    command_parser,
    counted,
    run_command,
)

if TYPE_CHECKING:
    from emberq.client import Producer
    from emberq.tools.publish_lines import LinePublisher

EXAMPLES = """\
examples:
  emberq pub orders '{"id": 1}' '{"id": 2}'     two messages
  emberq pub orders -f orders.jsonl             a message for each line
  tail -f app.log | emberq pub logs             each line as it comes
  emberq pub reminders 'tea' --defer 3m         delivered in three minutes

Several nsqds take turns, and stand in for one that fails. Empty lines are skipped.
Done means confirmed: what is counted has been taken by an nsqd.
"""
STANDARD_INPUT = "-"
DEFAULT_BATCH_SIZE = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Publish; the exit status."""
    return run_command(_parser(), argv, publish)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("emberq pub", "Publish messages to a topic.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("body", nargs="*", metavar="BODY", help="a message; without any, lines are read")
    parser.add_argument("-f", "--file", metavar="FILE", help="read a message from each line; - is standard input")
    parser.add_argument(
        "--batch",
        type=positive_count,
        default=DEFAULT_BATCH_SIZE,
        metavar="N",
        help="publish up to N messages together (default 200)",
    )
    parser.add_argument("--rate", type=positive_count, metavar="N", help="publish at most N messages a second")
    parser.add_argument("--defer", type=duration_s, metavar="TIME", help="have them delivered later: 90s, 1h30m")
    add_nsqd_tcp_flag(parser)
    add_security_flags(parser)
    return parser


async def publish(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Publish everything."""
    from emberq.client import Producer
    from emberq.tools.program import ToolError
    from emberq.tools.reachable import check_any_is_reachable

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
    """Tell how much was published, also if it ends early."""
    progress = terminal.progress(arguments.topic, total=count)
    publisher = _publisher(arguments, producer, progress)
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


def _publisher(arguments: argparse.Namespace, producer: Producer, progress: Progress) -> LinePublisher:
    from emberq.base.clock import SystemClock
    from emberq.tools.publish_lines import LinePublisher
    from emberq.tools.throttle import Throttle

    return LinePublisher(
        producer,
        arguments.topic,
        batch_size=arguments.batch,
        throttle=Throttle(arguments.rate, clock=SystemClock()) if arguments.rate else None,
        delay_s=arguments.defer,
        on_confirmed=progress.advance,
    )


def _report(terminal: Terminal, result: dict[str, Any]) -> None:
    """What was done, as a line."""
    if terminal.as_json:
        terminal.write_json(result)
        return
    early = "" if result["complete"] else ", then it ended early"
    terminal.write(f"published {counted(result['published'], 'message')} to {result['topic']}{early}")
    if result["skipped_empty"]:
        terminal.note(f"{counted(result['skipped_empty'], 'empty line')} skipped: NSQ has no empty messages")


@contextmanager
def _source(
    arguments: argparse.Namespace, terminal: Terminal
) -> Iterator[tuple[AsyncIterator[Sequence[bytes]], int | None]]:
    """Where the messages come from, and how many there are if that is known."""
    from emberq.tools.lines import read_lines

    if arguments.body:
        yield _at_once([os.fsencode(body) for body in arguments.body]), len(arguments.body)
    elif arguments.file in (None, STANDARD_INPUT):
        if sys.stdin.isatty():
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


async def _at_once(bodies: Sequence[bytes]) -> AsyncIterator[Sequence[bytes]]:
    yield bodies


def _line_count(path: Path) -> int | None:
    """How many messages a file holds; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as lines:
        return sum(line != b"\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
