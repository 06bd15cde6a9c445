"""`emberq tail`: show the messages of a topic as they are published.

A program gets a message as JSON or as its body; a terminal shows the body with the facts above it. A body may come from
anywhere, and a terminal obeys escape sequences; so nothing unprintable reaches it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import one_line
from emberq.cli.argument import (
    CONSUMER_HINT,
    MAX_IN_FLIGHT,
    add_consumer_flags,
    channel_name,
    client_config,
    make_consumer,
    nsqd_tcp_addresses,
    positive_count,
    topic_name,
)
from emberq.cli.terminal import DONE, CommandError, CommandParser, Terminal, command_parser, run_command
from emberq.wire.parameter import body_members

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emberq.client import Consumer, Message


EXAMPLES = """\
examples:
  emberq tail orders                     until Ctrl-C
  emberq tail orders -n 10 | jq .        ten bodies, as they are
  emberq tail orders --json              id, time, attempts and nsqd too, a line each

Without --channel the command has an ephemeral channel of its own, so no other consumer loses messages.
A terminal shows JSON bodies laid out; a pipe gets every body as it is, with a newline behind.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Show messages; the exit status."""
    return run_command(make_parser(), argv, tail, is_endless=lambda arguments: arguments.count is None)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq tail", "Show messages of a topic as they come.", epilog=EXAMPLES)
    parser.add_argument("topic", type=topic_name, metavar="TOPIC")
    parser.add_argument(
        "--channel",
        type=channel_name,
        metavar="NAME",
        help="take the messages from this channel: its other consumers will not get them",
    )
    parser.add_argument("-n", type=positive_count, dest="count", metavar="N", help="end after N messages")
    add_consumer_flags(parser)
    return parser


async def tail(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show messages, up to `-n` of them."""
    async with _consumer(arguments) as consumer:
        _check_connected(consumer, arguments, terminal)
        try:
            await _show_messages(consumer, arguments, terminal)
        finally:
            consumer.set_max_in_flight(0)  # messages that were not shown are requeued, and must not come again
            await consumer.stop()  # in good order; after Ctrl-C `async with` does not wait
    return DONE


async def _show_messages(consumer: Consumer, arguments: argparse.Namespace, terminal: Terminal) -> None:
    shown_count = 0
    async for message in consumer:
        try:
            show(message, topic=arguments.topic, terminal=terminal)
        except BrokenPipeError:
            message.requeue(0, backoff=False)
            raise
        message.finish()
        shown_count += 1
        if shown_count == arguments.count:
            return


def _consumer(arguments: argparse.Namespace) -> Consumer:
    own_channel = f"tail{random.randrange(10**6):06}#ephemeral"  # noqa: S311 - it only has to differ from others
    return make_consumer(
        arguments,
        client_config(arguments),
        topic=arguments.topic,
        channel=arguments.channel or own_channel,
        max_in_flight=min(MAX_IN_FLIGHT, arguments.count or MAX_IN_FLIGHT),
    )


def _check_connected(consumer: Consumer, arguments: argparse.Namespace, terminal: Terminal) -> None:
    """Tell the user at once when there is no nsqd, instead of showing an empty screen."""
    if consumer.statistics().addresses:
        return
    if not arguments.lookupd_http_address:
        raise CommandError(
            f"no nsqd can be reached at {', '.join(nsqd_tcp_addresses(arguments))}",
            hint=f"`emberq up` starts one; {CONSUMER_HINT}",
        )
    terminal.note(f"no nsqd has the topic {arguments.topic} yet; waiting for one")


def show(message: Message, *, topic: str, terminal: Terminal) -> None:
    """Write one message: as JSON, drawn for a terminal, or as its body."""
    if terminal.as_json:
        terminal.write_json(message_document(message, topic=topic))
    elif terminal.is_rich:
        terminal.console.print(renderable(message))
    else:
        terminal.write_bytes(message.body)


def message_document(message: Message, *, topic: str) -> dict[str, Any]:
    """A message for `--json`. A body that is not text is given as `body_base64`."""
    from emberq.client.message import id_text

    return {
        "topic": topic,
        "id": id_text(message.id),
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        "nsqd": message.address,
        **body_members(message.body),
    }


def headline(message: Message) -> str:
    """The facts about a message in one line."""
    from emberq.client.message import id_text

    published = datetime.fromtimestamp(message.timestamp_ns / NS_PER_SECOND, UTC).isoformat(timespec="milliseconds")
    again = f" attempt {message.attempts}" if message.attempts > 1 else ""
    return f"{published} {id_text(message.id)} from {message.address}{again}"


def renderable(message: Message) -> RenderableType:
    """A message for a terminal: JSON laid out in colours, other text as it is, anything else as an escaped string."""
    from rich.console import Group
    from rich.json import JSON
    from rich.text import Text

    head = Text(one_line(headline(message)), style="dim")
    try:
        text = message.body.decode()
    except UnicodeDecodeError:
        return Group(head, Text(repr(message.body)[2:-1]))
    try:
        value = json.loads(text)
    except ValueError:
        return Group(head, Text("\n".join(map(one_line, text.split("\n")))))
    if isinstance(value, dict | list):
        return Group(head, JSON.from_data(value, ensure_ascii=False))
    return Group(head, Text(one_line(text)))
