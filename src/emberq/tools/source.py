"""Where the messages of a tool come from: the flags that say so, and the consumers they make.

Either nsqds are named, or nsqlookupds that know them, never both. An nsqd that was named and cannot be reached at the
start ends the tool: most likely its address was mistyped. What comes and goes later is the consumer's business.

A message that failed five times is given up, as by NSQ's own tools; `--consumer-opt=max_attempts,0` never gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from emberq.base.settings import Group, OptionsError
from emberq.client.address import nsqd_address
from emberq.client.consumer import Consumer
from emberq.tools.client_options import ClientOption, ClientOptions, client_config, consumer_config
from emberq.tools.program import ToolError
from emberq.wire.name import is_valid_name

FAILED_DRAIN_S = 0.5
"""Enough for nsqd to hear that we leave, and to get back what it sent meanwhile. What a failed pump holds comes again
when its time is over."""

SOURCE = Group("Source")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The flags of every tool that consumes."""

    nsqd_tcp_address: tuple[str, ...] = SOURCE.strings("nsqd to consume from", placeholder="address")
    lookupd_http_address: tuple[str, ...] = SOURCE.strings("nsqlookupd to ask for nsqds", placeholder="address")
    max_in_flight: int = SOURCE.integer(200, "how many messages may be with this program, unanswered")
    consumer_opt: tuple[ClientOption, ...] = SOURCE.declare(
        ClientOptions(), (), "option of the client library, such as max_attempts,10"
    )


def check_addresses(options: SourceOptions) -> None:
    """OptionsError unless exactly one kind of address is given."""
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        raise OptionsError("--nsqd-tcp-address or --lookupd-http-address required")
    if options.nsqd_tcp_address and options.lookupd_http_address:
        raise OptionsError("use --nsqd-tcp-address or --lookupd-http-address not both")


def make_consumer(options: SourceOptions, *, topic: str, channel: str, tool: str) -> Consumer:
    """A consumer of one topic, not started; its messages are taken in batches. OptionsError for what cannot work."""
    if not is_valid_name(topic):
        raise OptionsError("invalid topic name")
    if not is_valid_name(channel):
        raise OptionsError("invalid channel name")
    try:
        return Consumer(
            topic,
            channel,
            nsqd_addresses=options.nsqd_tcp_address,
            lookupd_addresses=options.lookupd_http_address,
            config=consumer_config(options.consumer_opt, max_in_flight=options.max_in_flight),
            client_config=client_config(options.consumer_opt, tool=tool),
        )
    except ValueError as error:  # an address of an nsqlookupd
        raise OptionsError(str(error)) from error


async def start_consumer(consumer: Consumer, *, nsqd_addresses: Sequence[str]) -> None:
    """Start it; ToolError if one of the nsqds that were named cannot be reached (the log says why)."""
    await consumer.start()
    unreachable = {nsqd_address(address.strip()) for address in nsqd_addresses} - set(consumer.statistics().addresses)
    if unreachable:
        await consumer.stop(drain_timeout_s=0)
        raise ToolError(f"cannot connect to nsqd {', '.join(sorted(unreachable))}")


async def consume(
    consumers: Mapping[str, Consumer],
    pump: Callable[[str, Consumer], Awaitable[None]],
    *,
    nsqd_addresses: Sequence[str],
    stop_asked: asyncio.Event,
) -> None:
    """Run `pump(topic, consumer)` for every topic until the stop is asked for, or one returns or raises; then end all.

    The consumers are stopped in order: no more messages come, and those that are with a pump are waited for, but not
    for long when a pump has failed.
    """

    async def work(topic: str, consumer: Consumer) -> None:
        try:
            await start_consumer(consumer, nsqd_addresses=nsqd_addresses)
        except ToolError:
            if stop_asked.is_set():
                return  # it was stopped before it was connected, which is no failure
            raise
        await pump(topic, consumer)

    pumps = [asyncio.create_task(work(topic, consumer)) for topic, consumer in consumers.items()]
    stop = asyncio.create_task(stop_asked.wait())
    try:
        await asyncio.wait([stop, *pumps], return_when=asyncio.FIRST_COMPLETED)
        has_failed = any(each.done() and each.exception() is not None for each in pumps)
        drain_timeout_s = FAILED_DRAIN_S if has_failed else None
        await asyncio.gather(*(consumer.stop(drain_timeout_s=drain_timeout_s) for consumer in consumers.values()))
    finally:
        for task in (stop, *pumps):
            task.cancel()
        outcomes = await asyncio.gather(*pumps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
