"""The `emberq requeue-dead` command: give messages of a dead-letter topic another chance."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from emberq.base.clock import SystemClock
from emberq.cli.argument import channel_name, duration_s, positive_count, topic_name
from emberq.cli.connection_flags import client_config
from emberq.cli.consumer_access import HINT, MAX_IN_FLIGHT, add_consumer_flags, make_consumer
from emberq.cli.terminal import DONE, MISUSED, CommandError, Terminal, command_parser, counted, run_command

if TYPE_CHECKING:
    from emberq.client import ClientConfig, Consumer
    from emberq.tools.redrive import Limits, Redrive

EXAMPLES = """\
examples:
  emberq requeue-dead orders.dead --to orders --dry-run     look, and leave everything where it is
  emberq requeue-dead orders.dead --to orders --count 10    try with ten
  emberq requeue-dead orders.dead --to orders --rate 100    all of them, a hundred a second
  emberq requeue-dead orders.dead                           all to where they came from, if nsqd gave them up

Messages that nsqd gave up by a channel's policy lie in envelopes that say where they came from, and are taken out of
these. Others need --to.

Each message is published to the nsqd that it came from, and leaves the dead-letter topic when that is confirmed.
The command ends when the channel is empty. What dies again meanwhile is left for the next time.

A channel holds what was published since it was made, or everything so far if it is the first of its topic: if
somebody made another channel for the dead letters, that one has to be named.
"""
DEFAULT_CHANNEL = "requeue-dead"
SECONDS_IN_FLIGHT = 10
"""With a rate, no more messages are taken than can be published in this time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Move messages; the exit status."""
    return run_command(_parser(), argv, requeue_dead)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("emberq requeue-dead", "Give dead letters another chance.", epilog=EXAMPLES)
    parser.add_argument("dead_topic", type=topic_name, metavar="DEAD_TOPIC")
    parser.add_argument(
        "--to", type=topic_name, metavar="TOPIC", help="where to publish them (default: where their envelopes say)"
    )
    parser.add_argument(
        "--channel",
        type=channel_name,
        default=DEFAULT_CHANNEL,
        metavar="NAME",
        help=f"the channel of DEAD_TOPIC to take them from (default {DEFAULT_CHANNEL})",
    )
    parser.add_argument("--count", type=positive_count, metavar="N", help="move at most N messages")
    parser.add_argument("--rate", type=positive_count, metavar="N", help="move at most N messages a second")
    parser.add_argument("--dry-run", action="store_true", help="show what would be moved; their attempts rise by one")
    parser.add_argument("--include-new", action="store_true", help="also move what dies while the command runs")
    parser.add_argument(
        "--idle", type=duration_s, default=2.0, metavar="TIME", help="how long nothing must come (default 2s)"
    )
    add_consumer_flags(parser)
    return parser


async def requeue_dead(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Move the messages, or show them."""
    if arguments.to == arguments.dead_topic:
        terminal.fail("messages cannot be moved from a topic to itself", hint="--to names the topic to try again in.")
        return MISUSED
    limits, config = _limits(arguments), client_config(arguments)
    async with _consumer(arguments, config) as consumer:
        if not consumer.statistics().addresses:
            raise CommandError(f"no nsqd with the topic {arguments.dead_topic} can be reached", hint=HINT)
        try:
            if arguments.dry_run:
                await _show(arguments, terminal, consumer, limits)
            else:
                await _move(arguments, terminal, consumer, limits, config)
        finally:
            await consumer.stop()  # in peace; after a failure `async with` would not take the time
    return DONE


def _limits(arguments: argparse.Namespace) -> Limits:
    from emberq.tools.redrive import Limits

    return Limits(
        count=arguments.count,
        idle_s=arguments.idle,
        before_ns=None if arguments.include_new else SystemClock.wall_ns(),
    )


def _consumer(arguments: argparse.Namespace, config: ClientConfig) -> Consumer:
    bounds = [MAX_IN_FLIGHT, arguments.count, arguments.rate and arguments.rate * SECONDS_IN_FLIGHT]
    return make_consumer(
        arguments,
        config,
        topic=arguments.dead_topic,
        channel=arguments.channel,
        max_in_flight=min(bound for bound in bounds if bound),
        auto_touch=True,  # a slow rate may keep a message waiting
    )


async def _move(
    arguments: argparse.Namespace, terminal: Terminal, consumer: Consumer, limits: Limits, config: ClientConfig
) -> None:
    from emberq.client import Producer
    from emberq.tools.redrive import Redrive
    from emberq.tools.throttle import Throttle

    producers: dict[str, Producer] = {}
    async with AsyncExitStack() as open_producers:

        async def publish(address: str, topic: str, bodies: list[bytes]) -> None:
            if address not in producers:
                producers[address] = await open_producers.enter_async_context(Producer(address, config))
            await producers[address].publish_many(topic, bodies)

        progress = terminal.progress(f"{arguments.dead_topic} → {_target_name(arguments)}", total=arguments.count)
        redrive = Redrive(
            consumer,
            publish,
            to=arguments.to,
            limits=limits,
            throttle=Throttle(arguments.rate, clock=SystemClock()) if arguments.rate else None,
            on_moved=progress.advance,
        )
        try:
            with progress:
                await redrive.run()
        finally:
            _report(arguments, terminal, redrive)


async def _show(arguments: argparse.Namespace, terminal: Terminal, consumer: Consumer, limits: Limits) -> None:
    from emberq.cli.tail import show
    from emberq.tools.redrive import look

    messages = await look(consumer, limits=limits, max_count=MAX_IN_FLIGHT)
    for message in messages:
        show(message, topic=arguments.dead_topic, terminal=terminal)
    more = " at least" if len(messages) == MAX_IN_FLIGHT else ""
    target = _target_name(arguments)
    terminal.note(f"would move{more} {counted(len(messages), 'message')} to {target}; nothing was changed")


def _target_name(arguments: argparse.Namespace) -> str:
    return arguments.to or "where they came from"


def _report(arguments: argparse.Namespace, terminal: Terminal, redrive: Redrive) -> None:
    moved, left, unaddressed = redrive.moved_count, redrive.left_count, redrive.unaddressed_count
    if terminal.as_json:
        result: dict[str, Any] = {
            "from": arguments.dead_topic,
            "to": arguments.to,
            "moved": moved,
            "left": left,
            "unaddressed": unaddressed,
        }
        terminal.write_json(result)
        return
    terminal.write(f"moved {counted(moved, 'message')} from {arguments.dead_topic} to {_target_name(arguments)}")
    if left:
        terminal.note(f"{counted(left, 'message')} came after the start and stayed: run it again, or --include-new")
    if unaddressed:
        terminal.note(f"{counted(unaddressed, 'message')} stayed: not in an envelope that says where to; --to does")
    elif not moved and not left:
        terminal.note(f"nothing was waiting in the channel {arguments.channel}; --channel names another")


if __name__ == "__main__":
    sys.exit(main())
