"""`emberq peek`: show the next messages of a channel without taking them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import one_line
from emberq.cli.argument import (
    CLUSTER_HINT,
    add_cluster_flags,
    addresses,
    channel_name,
    positive_count,
    topic_name,
    upstreams,
)
from emberq.cli.terminal import DONE, CommandError, Terminal, command_parser, run_command
from emberq.cluster.action import MAX_COUNT, PeekedMessage, peek
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import ClusterError, UpstreamsFailedError
from emberq.wire.parameter import body_members

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


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
    parser = command_parser("emberq peek", "Show the next messages of a channel without taking them.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument("channel", type=channel_name, metavar="CHANNEL")
    parser.add_argument(
        "-n",
        type=_peek_count,
        default=DEFAULT_COUNT,
        dest="count",
        metavar="N",
        help=f"how many, at most {MAX_COUNT} (default {DEFAULT_COUNT})",
    )
    add_cluster_flags(parser)
    return run_command(parser, argv, _peek)


def _peek_count(text: str) -> int:
    count = positive_count(text)
    if count > MAX_COUNT:
        raise argparse.ArgumentTypeError(f"nsqd shows at most {MAX_COUNT}")
    return count


async def _peek(arguments: argparse.Namespace, terminal: Terminal) -> int:
    try:
        messages = await _messages(arguments, terminal)
    except UpstreamsFailedError as failure:
        raise CommandError(str(failure), hint=CLUSTER_HINT) from failure
    except ClusterError as failure:
        raise CommandError(str(failure)) from failure
    if not terminal.is_rich:
        for message in messages:
            terminal.write_json(_document(message, topic=arguments.topic, channel=arguments.channel))
    elif messages:
        terminal.console.print(_table(messages))
    else:
        terminal.note("no message waits in the channel")
    return DONE


async def _messages(arguments: argparse.Namespace, terminal: Terminal) -> list[PeekedMessage]:
    """The messages to show. Nsqds that do not answer are noted."""
    topic, channel = arguments.topic, arguments.channel
    asked, ask = addresses(arguments), upstreams(arguments)
    nsqds: Sequence[str] = asked.nsqds
    warnings: tuple[str, ...] = ()
    if asked.lookupds:
        producers = await Topology(ask, asked).topic_producers(topic)
        nsqds, warnings = [producer.http_address for producer in producers.value], producers.warnings
        if not nsqds:
            raise CommandError(f"no nsqd has a topic {topic} at present")
    found = await peek(ask, nsqds, topic=topic, channel=channel, count=arguments.count)
    for warning in warnings + found.warnings:
        terminal.note(warning)
    return found.value


def _document(message: PeekedMessage, *, topic: str, channel: str) -> dict[str, Any]:
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


def _table(messages: Sequence[PeekedMessage]) -> Table:
    from rich.table import Table
    from rich.text import Text

    several_nsqds = len({message.nsqd for message in messages}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("PUBLISHED", "ID", *(("NSQD",) if several_nsqds else ())):
        table.add_column(title, no_wrap=True)
    table.add_column("ATTEMPTS", justify="right")
    table.add_column("BODY", no_wrap=True, overflow="ellipsis")
    for message in messages:
        table.add_row(
            Text(_moment(message.timestamp_ns), style="dim"),
            Text(one_line(message.id)),
            *((Text(message.nsqd, style="dim"),) if several_nsqds else ()),
            Text(str(message.attempts), style="yellow" if message.attempts else "dim"),
            _body(message.body),
        )
    return table


def _moment(timestamp_ns: int) -> str:
    return datetime.fromtimestamp(timestamp_ns / NS_PER_SECOND).astimezone().isoformat(" ", "milliseconds")[:23]


def _body(body: bytes) -> Text:
    """The beginning of a body in one line. Nothing of it is read as markup or as an escape sequence."""
    from rich.text import Text

    try:
        return Text(one_line(body.decode()[:MAX_SHOWN_CHARS]))
    except UnicodeDecodeError:
        return Text(repr(body[:MAX_SHOWN_CHARS])[2:-1], style="magenta")


if __name__ == "__main__":
    sys.exit(main())
