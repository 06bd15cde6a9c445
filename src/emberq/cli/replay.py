"""`emberq replay`: publish the messages of an archive or a journal again."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.cli.argument import (
    add_lookupd_flag,
    add_nsqd_http_flag,
    add_nsqd_tcp_flag,
    add_security_flags,
    client_config,
    positive_count,
    publishing_addresses,
    topic_name,
)
from emberq.cli.pub import LinePublisher, check_any_is_reachable, rate_limiter
from emberq.cli.spark_work import add_time_flags, nsq_options, spark_failures, time_range
from emberq.cli.terminal import DONE, CommandError, CommandParser, Terminal, command_parser, counted, run_command

if TYPE_CHECKING:
    from emberq.client import Producer

BATCH_SIZE = 500

EXAMPLES = """\
examples:
  emberq replay clicks --to clicks.again --start 2026-11-15T06:00:00Z --end 2026-11-15T07:00:00Z
  emberq replay clicks --to clicks.again --archive data/archive --rate 1000

Without --archive the journal of the topic is read, from the nsqds at --nsqd-http-address (or --lookupd-http-address).
Only messages that were there at the start are replayed, so a topic may be replayed into itself. If the command is
interrupted it says how many messages it has published.
"""


@dataclass(frozen=True, slots=True)
class _Recording:
    """The messages to replay."""

    count: int
    portions: Callable[[], Iterator[list[bytes]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Replay; the exit status."""
    return run_command(make_parser(), argv, _replay)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq replay", "Publish again what a topic has had.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("--to", required=True, type=topic_name, metavar="TOPIC", help="where to publish")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="read what `emberq archive` has written")
    add_time_flags(parser)
    parser.add_argument("--rate", type=positive_count, metavar="N", help="publish at most N messages a second")
    add_nsqd_tcp_flag(parser)
    add_nsqd_http_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser, asks_lookupd=True)
    return parser


async def _replay(arguments: argparse.Namespace, terminal: Terminal) -> int:
    import asyncio

    from emberq.client import Producer

    find = _from_archive if arguments.archive is not None else _from_journal
    addresses, config = publishing_addresses(arguments), client_config(arguments)
    with spark_failures():
        recording = await asyncio.to_thread(find, arguments)
        await check_any_is_reachable(addresses, config)
        async with Producer(addresses, config) as producer:
            await _publish(arguments, terminal, producer, recording)
    return DONE


def _from_archive(arguments: argparse.Namespace) -> _Recording:
    from emberq.spark.archive import archived_bodies, archived_count, archived_topics

    folder, topic = arguments.archive, arguments.topic
    topics = archived_topics(folder)
    if topic not in topics:
        there = f"it has {', '.join(topics)}" if topics else "it is no archive"
        raise CommandError(f"{folder} has no topic {topic}; {there}")
    times = time_range(arguments)
    return _Recording(archived_count(folder, topic, times), lambda: archived_bodies(folder, topic, times))


def _from_journal(arguments: argparse.Namespace) -> _Recording:
    from emberq.spark.journal_read import JournalReplay

    replay = JournalReplay(
        {**nsq_options(arguments), "topic": arguments.topic, "mode": "journal"},
        start=arguments.start or "earliest",
        end=arguments.end or "latest",
    )
    replay.prepare()
    return _Recording(replay.message_count, replay.bodies)


async def _publish(
    arguments: argparse.Namespace, terminal: Terminal, producer: Producer, recording: _Recording
) -> None:
    """Publish, and report how many messages were published, also if it ends early."""
    progress = terminal.progress(f"{arguments.topic} -> {arguments.to}", total=recording.count)
    publisher = LinePublisher(
        producer,
        arguments.to,
        batch_size=BATCH_SIZE,
        throttle=rate_limiter(arguments),
        on_confirmed=progress.advance,
    )
    try:
        with progress:
            await publisher.publish(_read_in_thread(recording.portions()))
    finally:
        _report(arguments, terminal, published=publisher.confirmed_count, count=recording.count)


async def _read_in_thread(portions: Iterator[list[bytes]]) -> AsyncIterator[Sequence[bytes]]:
    import asyncio

    while (portion := await asyncio.to_thread(next, portions, None)) is not None:
        yield portion


def _report(arguments: argparse.Namespace, terminal: Terminal, *, published: int, count: int) -> None:
    early = f" of {count:,}; then it ended early" if published < count else ""
    terminal.report(
        {"from": arguments.topic, "to": arguments.to, "published": published, "found": count},
        f"published {counted(published, 'message')}{early} to {arguments.to}",
    )
    if not count and not terminal.as_json:
        terminal.note(f"there is nothing of {arguments.topic} from that time")
