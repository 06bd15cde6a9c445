"""`emberq peek`: show the next messages of a channel without taking them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import one_line
from emberq.cli.argument import (
    add_cluster_flags,
    channel_name,
    positive_count,
    topic_name,
    topic_nsqds,
    upstreams,
)
from emberq.cli.table import Cell, body_text, figure, name, table, text
from emberq.cli.terminal import DONE, CommandParser, Terminal, command_parser, run_command
from emberq.wire.parameter import MAX_PEEK_COUNT, body_members

if TYPE_CHECKING:
    from rich.table import Table

    from emberq.cluster.action import PeekedMessage


DEFAULT_COUNT = 10
MAX_SHOWN_CHARS = 4096
"""How much of a body the table takes: more than any line holds."""

EXAMPLES = """\
examples:
  emberq peek orders mail                the next ten messages that channel mail of topic orders will deliver
  emberq peek orders mail -n 100 | jq .  a hundred of them, as lines of JSON

Nothing is taken from the channel, and no attempt is counted. Messages in flight or deferred are not shown. Needs
emberq's nsqd. A pipe gets lines of JSON.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Show messages; the exit status."""
    return run_command(make_parser(), argv, _peek)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq peek", "Show the next messages of a channel without taking them.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("channel", type=channel_name, metavar="CHANNEL")
    parser.add_argument(
        "-n",
        type=_peek_count,
        default=DEFAULT_COUNT,
        dest="count",
        metavar="N",
        help=f"how many, at most {MAX_PEEK_COUNT} (default {DEFAULT_COUNT})",
    )
    add_cluster_flags(parser)
    return parser


def _peek_count(text: str) -> int:
    count = positive_count(text)
    if count > MAX_PEEK_COUNT:
        raise argparse.ArgumentTypeError(f"nsqd shows at most {MAX_PEEK_COUNT}")
    return count


async def _peek(arguments: argparse.Namespace, terminal: Terminal) -> int:
    from emberq.cluster.action import peek

    ask = upstreams(arguments)
    nsqds = await topic_nsqds(arguments, ask, terminal)
    found = await peek(ask, nsqds, topic=arguments.topic, channel=arguments.channel, count=arguments.count)
    for warning in found.warnings:
        terminal.note(warning)
    messages = found.value
    if not terminal.is_rich:
        for message in messages:
            terminal.write_json(peeked_document(message, topic=arguments.topic, channel=arguments.channel))
    elif messages:
        terminal.console.print(_table(messages, width=terminal.console.width))
    else:
        terminal.note("no message waits in the channel")
    return DONE


def peeked_document(message: PeekedMessage, *, topic: str, channel: str) -> dict[str, Any]:
    """The message as JSON, its body as text where it is text."""
    return {
        "topic": topic,
        "channel": channel,
        "id": message.id,
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "nsqd": message.nsqd,
        **body_members(message.body),
    }


def _table(messages: Sequence[PeekedMessage], *, width: int) -> Table:
    from rich.text import Text

    several_nsqds = len({message.nsqd for message in messages}) > 1
    columns = [name("ID"), *((name("NSQD"),) if several_nsqds else ()), *map(figure, ("ATTEMPTS", "PUBLISHED"))]
    rows: list[tuple[Cell, ...]] = [
        (
            Text(one_line(message.id)),
            *((Text(message.nsqd, style="dim"),) if several_nsqds else ()),
            Text(str(message.attempts), style="yellow" if message.attempts else "dim"),
            Text(_moment(message.timestamp_ns), style="dim"),
            body_text(message.body, max_chars=MAX_SHOWN_CHARS),
        )
        for message in messages
    ]
    return table([*columns, text("BODY")], rows, width=width)


def _moment(timestamp_ns: int) -> str:
    return datetime.fromtimestamp(timestamp_ns / NS_PER_SECOND).astimezone().isoformat(" ", "milliseconds")[:23]
