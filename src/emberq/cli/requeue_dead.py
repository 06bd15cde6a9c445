"""`emberq requeue-dead`: publish dead letters again, from outside nsqd.

    dead-letter topic ──channel──▶ publish to its target, on the nsqd it came from ──confirmed──▶ FIN

- A message that nsqd gave up by a policy lies in an envelope (`emberq.wire.dead_letter`), and is taken out of it. The
  envelope also says where the message came from, if the command is not told where to publish. A message without an
  envelope then stays where it is.
- A message is finished only when nsqd has confirmed its copy. A crash may leave it in both places, never in none.
- A message that fails again soon returns to the dead-letter topic, and a redrive that took it again would never end. So
  messages published there after the redrive began are left alone, and go back to their channel at the end.
- The channel counts as empty when no message has come for `idle_s`.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from emberq.base.clock import SystemClock
from emberq.cli.argument import (
    CONSUMER_HINT,
    MAX_IN_FLIGHT,
    add_consumer_flags,
    add_nsqd_http_flag,
    addresses,
    channel_name,
    client_config,
    duration_s,
    make_consumer,
    positive_count,
    topic_name,
    upstreams,
)
from emberq.cli.peek import peeked_document
from emberq.cli.pub import rate_limiter
from emberq.cli.table import body_text
from emberq.cli.terminal import (
    CLUSTER_HINT,
    DONE,
    MISUSED,
    CommandError,
    CommandParser,
    Terminal,
    command_parser,
    counted,
    run_command,
)
from emberq.wire.dead_letter import target_of
from emberq.wire.parameter import MAX_PEEK_COUNT

if TYPE_CHECKING:
    from emberq.base.task import RateLimiter
    from emberq.client import ClientConfig, Consumer, Message, MessageBatch, Producer
    from emberq.cluster.action import PeekedMessage
    from emberq.cluster.stats import TopicFigures
    from emberq.cluster.upstream import Upstreams

EXAMPLES = """\
examples:
  emberq requeue-dead orders.dead --to orders --dry-run     look, and leave everything where it is
  emberq requeue-dead orders.dead --to orders --count 10    try with ten
  emberq requeue-dead orders.dead --to orders --rate 100    all of them, a hundred a second
  emberq requeue-dead orders.dead                           all to where they came from, if nsqd gave them up

Messages that nsqd gave up by a channel's policy lie in envelopes that say where they came from, and are taken out of
these. Others need --to.

Each message is published to the nsqd that it came from, and leaves the dead-letter topic when that is confirmed.
The command ends when the channel is empty. Messages that die again meanwhile are left for the next time. --dry-run
asks nsqd by HTTP (--nsqd-http-address or --lookupd-http-address), and shows messages that wait in emberq's nsqd.

The first channel of a topic gets all its messages, a later one only those published after its creation. If the
dead-letter topic already has a channel, name it with --channel.
"""
DEFAULT_CHANNEL = "requeue-dead"
SECONDS_IN_FLIGHT = 10
"""With a rate, no more messages are taken than can be published in this time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Move messages; the exit status."""
    return run_command(make_parser(), argv, requeue_dead)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
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
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be moved and where messages wait; changes nothing"
    )
    parser.add_argument("--include-new", action="store_true", help="also move what dies while the command runs")
    parser.add_argument(
        "--idle",
        type=duration_s,
        default=2.0,
        metavar="TIME",
        help="end when no message came for so long (default 2s)",
    )
    add_consumer_flags(parser)
    add_nsqd_http_flag(parser)
    return parser


async def requeue_dead(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Move the messages, or show them."""
    if arguments.to == arguments.dead_topic:
        terminal.fail("messages cannot be moved from a topic to itself", hint="--to names the topic to try again in.")
        return MISUSED
    if arguments.dry_run:
        await _preview(arguments, terminal)
        return DONE
    if arguments.nsqd_http_address and not (arguments.nsqd_tcp_address or arguments.lookupd_http_address):
        raise CommandError(
            "messages are moved by TCP, and only an HTTP address is given", hint="Add --nsqd-tcp-address."
        )
    limits, config = _limits(arguments), client_config(arguments)
    async with _consumer(arguments, config) as consumer:
        if not consumer.statistics().addresses:
            raise CommandError(f"no nsqd with the topic {arguments.dead_topic} can be reached", hint=CONSUMER_HINT)
        try:
            await _move(arguments, terminal, consumer, limits, config)
        finally:
            await consumer.stop()  # in good order; after a failure `async with` does not wait
    return DONE


def _limits(arguments: argparse.Namespace) -> RedriveLimits:
    return RedriveLimits(
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
    arguments: argparse.Namespace, terminal: Terminal, consumer: Consumer, limits: RedriveLimits, config: ClientConfig
) -> None:
    from emberq.client import Producer

    producers: dict[str, Producer] = {}
    async with AsyncExitStack() as open_producers:

        async def publish(address: str, topic: str, bodies: list[bytes]) -> None:
            if address not in producers:
                producers[address] = await open_producers.enter_async_context(Producer(address, config))
            await producers[address].publish_many(topic, bodies)

        progress = terminal.progress(f"{arguments.dead_topic} → {_target_name(arguments)}", total=arguments.count)
        redrive = DeadLetterRedrive(
            consumer,
            publish,
            to=arguments.to,
            limits=limits,
            throttle=rate_limiter(arguments),
            on_moved=progress.advance,
        )
        try:
            with progress:
                await redrive.run()
        finally:
            _report(arguments, terminal, redrive)


# A dry run.

SHOWN_COUNT = MAX_PEEK_COUNT
"""As many messages as nsqd shows."""


async def _preview(arguments: argparse.Namespace, terminal: Terminal) -> None:
    """Show what would be moved. Only asks nsqd's HTTP API, so that no channel is made and no attempt is counted."""
    from emberq.cluster.survey import ClusterReader
    from emberq.cluster.topology import Topology

    if arguments.nsqd_tcp_address and not (arguments.nsqd_http_address or arguments.lookupd_http_address):
        raise CommandError(
            "a dry run asks nsqd by HTTP, and only its TCP address is given", hint="Add --nsqd-http-address."
        )
    ask, topic = upstreams(arguments), arguments.dead_topic
    topology = Topology(ask, addresses(arguments))
    found = await topology.topic_producers(topic)
    if not found.value:
        raise CommandError(f"no nsqd has the topic {topic}", hint=CLUSTER_HINT)
    figures = (await ClusterReader(ask, topology).topic(topic)).value
    waiting = _waiting(figures)
    movable = waiting.get(arguments.channel, waiting[""] if len(waiting) == 1 else 0)
    messages: list[PeekedMessage] = []
    if arguments.channel in waiting:
        nsqds = [producer.http_address for producer in found.value]
        messages = await _peeked(arguments, terminal, ask, nsqds)
    for message in messages:
        _show(message, arguments, terminal)
    _report_preview(arguments, terminal, waiting, min(movable, arguments.count or movable))
    unaddressed = sum(target_of(message.body, to=arguments.to) is None for message in messages)
    if unaddressed and not terminal.as_json:
        terminal.note(
            f"of those shown, {counted(unaddressed, 'message')} would stay: no envelope says where to; --to does"
        )


def _waiting(figures: TopicFigures) -> dict[str, int]:
    """How many messages wait in each channel, and under the empty name those that no channel has yet."""
    channels = {each.channel_name: each.depth + each.deferred_count for each in figures.channels}
    return {"": figures.depth, **channels}


async def _peeked(
    arguments: argparse.Namespace, terminal: Terminal, ask: Upstreams, nsqds: list[str]
) -> list[PeekedMessage]:
    from emberq.cluster.action import PeekUnknownError, peek

    count = min(arguments.count or SHOWN_COUNT, SHOWN_COUNT)
    try:
        found = await peek(ask, nsqds, topic=arguments.dead_topic, channel=arguments.channel, count=count)
    except PeekUnknownError as failure:
        terminal.note(str(failure))
        return []
    return found.value


def _show(message: PeekedMessage, arguments: argparse.Namespace, terminal: Terminal) -> None:
    if terminal.as_json:
        target = target_of(message.body, to=arguments.to)
        document = peeked_document(message, topic=arguments.dead_topic, channel=arguments.channel)
        terminal.write_json({**document, "to": None if target is None else target.topic})
    elif terminal.is_rich:
        terminal.console.print(body_text(message.body), soft_wrap=True)
    else:
        terminal.write_bytes(message.body)


def _report_preview(
    arguments: argparse.Namespace, terminal: Terminal, waiting: dict[str, int], would_move: int
) -> None:
    """Say how many would be moved, and where messages wait."""
    topic, target = arguments.dead_topic, _target_name(arguments)
    if terminal.as_json:
        places = [{"channel": channel or None, "messages": count} for channel, count in waiting.items()]
        terminal.write_json({"from": topic, "to": arguments.to, "would_move": would_move, "waiting": places})
        return
    terminal.note(f"would move {counted(would_move, 'message')} to {target}; nothing was changed")
    named = {f"{topic}/{channel}" if channel else f"{topic}, in no channel yet": n for channel, n in waiting.items()}
    places_text = "; ".join(f"{place}: {counted(count, 'message')}" for place, count in named.items() if count)
    terminal.note(f"messages wait in {places_text}" if places_text else f"no message waits in {topic}")
    if not would_move and places_text:
        terminal.note(f"none is in the channel {arguments.channel}; --channel names another")


def _target_name(arguments: argparse.Namespace) -> str:
    return arguments.to or "where they came from"


def _report(arguments: argparse.Namespace, terminal: Terminal, redrive: DeadLetterRedrive) -> None:
    moved, left, unaddressed = redrive.moved_count, redrive.left_count, redrive.unaddressed_count
    counts = {"moved": moved, "left": left, "unaddressed": unaddressed}
    terminal.report(
        {"from": arguments.dead_topic, "to": arguments.to, **counts},
        f"moved {counted(moved, 'message')} from {arguments.dead_topic} to {_target_name(arguments)}",
    )
    if terminal.as_json:
        return
    if left:
        terminal.note(f"{counted(left, 'message')} came after the start and stayed: run it again, or --include-new")
    if unaddressed:
        terminal.note(f"{counted(unaddressed, 'message')} stayed: not in an envelope that says where to; --to does")
    elif not moved and not left:
        terminal.note(f"nothing was waiting in the channel {arguments.channel}; --channel names another")


# The redrive.

Publish: TypeAlias = Callable[[str, str, list[bytes]], Awaitable[None]]
"""Publishes bodies to the nsqd at an address, in a topic, and returns when they are confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveLimits:
    """Where a redrive ends."""

    count: int | None = None
    """After so many messages; None: when the channel is empty."""
    idle_s: float = 2.0
    before_ns: int | None = None
    """Only messages published before this, in nanoseconds since 1970; None: all."""
    batch_size: int = 100
    """How many messages are published together."""

    def include(self, message: Message) -> bool:
        """Whether a message is old enough."""
        return self.before_ns is None or message.timestamp_ns < self.before_ns


class DeadLetterRedrive:
    """One run. The caller starts and stops the consumer.

    `to` is the topic to publish to, whatever the envelopes say.
    """

    def __init__(
        self,
        consumer: Consumer,
        publish: Publish,
        *,
        to: str | None = None,
        limits: RedriveLimits,
        throttle: RateLimiter | None = None,
        on_moved: Callable[[int], None],
    ) -> None:
        self._consumer = consumer
        self._publish = publish
        self._to = to
        self._limits = limits
        self._throttle = throttle
        self._on_moved = on_moved
        self._held: list[Message] = []
        """Messages not to be moved. They stay in flight to the end, so that they are not delivered again and again."""
        self.moved_count = 0
        self.left_count = 0
        """Messages that were published too late for this run."""
        self.unaddressed_count = 0
        """Messages without a target."""

    async def run(self) -> None:
        """Move messages until one of the limits is reached."""
        try:
            async for batch in _until_idle(self._consumer, self._limits):
                await self._move(self._chosen(batch))
                if self.moved_count == self._limits.count:
                    break
        finally:
            _give_back(self._held, self._consumer)

    def _chosen(self, batch: MessageBatch) -> MessageBatch:
        """The messages of the batch that are to be moved."""
        from emberq.client import MessageBatch

        old_enough = list(filter(self._limits.include, batch))
        chosen = MessageBatch(message for message in old_enough if target_of(message.body, to=self._to) is not None)
        self.left_count += len(batch) - len(old_enough)
        self.unaddressed_count += len(old_enough) - len(chosen)
        if self._limits.count is not None:
            chosen = MessageBatch(chosen[: self._limits.count - self.moved_count])
        moving = set(chosen)
        self._held += [message for message in batch if message not in moving]
        return chosen

    async def _move(self, batch: MessageBatch) -> None:
        from emberq.tools.to_nsq import paced

        try:
            async for portion in paced(batch, throttle=self._throttle, max_size=self._limits.batch_size):
                for (address, topic), (messages, bodies) in self._groups(portion).items():
                    await self._publish(address, topic, bodies)
                    messages.finish()
                    self.moved_count += len(messages)
                    self._on_moved(len(messages))
        except BaseException:
            batch.requeue(0, backoff=False)  # has no effect on messages that were finished
            raise

    def _groups(self, messages: Sequence[Message]) -> dict[tuple[str, str], tuple[MessageBatch, list[bytes]]]:
        """The messages and what to publish for them, by address and topic."""
        from emberq.client import MessageBatch

        groups: dict[tuple[str, str], tuple[MessageBatch, list[bytes]]] = {}
        for message in messages:
            target = target_of(message.body, to=self._to)
            assert target is not None  # noqa: S101 - it would not have been chosen
            group, bodies = groups.setdefault((message.address, target.topic), (MessageBatch(), []))
            group.append(message)
            bodies.append(target.body)
        return groups


async def _until_idle(consumer: Consumer, limits: RedriveLimits) -> AsyncIterator[MessageBatch]:
    """Batches, until none comes for `idle_s`."""
    import asyncio

    batches = consumer.batches(max_size=limits.batch_size)
    while True:
        try:
            async with asyncio.timeout(limits.idle_s):
                batch = await anext(batches)
        except (TimeoutError, StopAsyncIteration):
            return
        yield batch


def _give_back(messages: list[Message], consumer: Consumer) -> None:
    """Requeue messages. RDY is 0 before that, so that they are not delivered here again."""
    consumer.set_max_in_flight(0)
    for message in messages:
        message.requeue(0, backoff=False)
