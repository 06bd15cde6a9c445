"""nsq_to_nsq: consumes topics and publishes them to other nsqds.

A batch that has arrived is filtered, dealt out over the destinations (`host_pool`), and published to each in one
command. Messages are finished when their destination has confirmed them, and requeued when it has not. Several batches
are under way at a time, so that the connection to the destination is not idle while the next messages arrive.

If a destination refuses a whole batch because of one message (it may be too long there), or closes the connection, its
messages are published one by one, so that only that one fails. Some may then arrive twice, none is lost.

**The filter** (`JsonFilter`) passes on only JSON objects:

    --require-json-field=F                       only if there is a field F
    --require-json-field=F --require-json-value=V    only if F is V: a string equal to V, or a number equal to V if V
                                                 reads as a number; nothing else equals anything
    --whitelist-json-field=F                     only these fields, written anew with their keys in order

What does not pass is dropped. One case differs, as in NSQ: a message without the field whose value is required is
requeued, because the fault may pass.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from emberq.base.clock import Clock, SystemClock
from emberq.base.program import run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.consumer import Consumer
from emberq.client.error import BadRequestError, ConnectError, NsqError
from emberq.client.message import Message, MessageBatch, id_text
from emberq.client.producer import Producer
from emberq.tools.client_flags import (
    ClientOption,
    ClientOptions,
    SourceOptions,
    check_addresses,
    client_config,
    consume,
    make_consumer,
)
from emberq.tools.host_pool import StatusReport, make_pool
from emberq.wire.parameter import is_valid_name

# The filter.

INTEGRAL_BELOW = 1e21
"""Larger floats are written with an exponent."""


class Dropped(Exception):
    """The message is not passed on. The text, if any, is logged."""


class FieldMissingError(Exception):
    """The field whose value is required is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFilter:
    """Decides which messages and fields are passed on. Names are top-level fields."""

    required_field: str = ""
    required_value: str = ""
    allowed_fields: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether there is anything to check."""
        return bool(self.required_field or self.allowed_fields)

    def apply(self, body: bytes) -> bytes:
        """The body to pass on. `Dropped` or `FieldMissingError` if there is none."""
        document = _parse_object(body)
        if self.required_field:
            self._check(document)
        if not self.allowed_fields:
            return body
        kept = {field: document[field] for field in self.allowed_fields if field in document}
        return _encode(kept)

    def _check(self, document: dict[str, Any]) -> None:
        if self.required_field not in document:
            if self.required_value:
                raise FieldMissingError(f"missing field to check required value: {self.required_field}")
            raise Dropped
        if self.required_value and not _equals(document[self.required_field], self.required_value):
            raise Dropped


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Dropped(f"unable to decode JSON: {error}") from error
    if not isinstance(document, dict):
        raise Dropped("unable to decode JSON: not an object")
    return document


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _equals(value: Any, wanted: str) -> bool:
    if isinstance(value, str):
        return value == wanted
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return value == float(wanted)
    except ValueError:
        return False


def _encode(document: dict[str, Any]) -> bytes:
    text = json.dumps(_with_integers(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")  # half of a surrogate pair came as an escape


def _with_integers(value: Any) -> Any:
    """The same with integral floats as integers, at any depth."""
    if isinstance(value, float) and value.is_integer() and abs(value) < INTEGRAL_BELOW:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_integers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    return value


# The tool.

TOOL = "nsq_to_nsq"
BATCHES_UNDER_WAY = 4
"""For each topic: one is published while others are read, decoded and answered."""
ONCE = RetryPolicy(max_attempts=1, timeout_s=5.0)
"""A message that a destination did not confirm goes back to its source, and from there perhaps to another destination.
The time is for a destination that closed the connection after a refusal."""
FIRST_ATTEMPT_POLL_S = 0.01
"""The pause between two checks whether a destination is connected for the first time."""

logger = logging.getLogger(__name__)

_COPYING = Group("Copying")
_FILTER = Group("Filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqToNsqOptions(SourceOptions):
    """The flags of nsq_to_nsq."""

    topic: tuple[str, ...] = _COPYING.strings("topic to consume", placeholder="topic")
    channel: str = _COPYING.text(TOOL, "channel to consume", placeholder="channel")
    destination_topic: str = _COPYING.text(
        "", "topic to publish to", placeholder="topic", default_text="the topic consumed"
    )
    destination_nsqd_tcp_address: tuple[str, ...] = _COPYING.strings("nsqd to publish to", placeholder="address")
    mode: str = _COPYING.text(
        "hostpool", "how to choose among destinations: round-robin, hostpool or epsilon-greedy", placeholder="mode"
    )
    status_every: int = _COPYING.integer(250, "log how long publishing takes each time so many are done; 0: never")
    producer_opt: tuple[ClientOption, ...] = _COPYING.declare(
        ClientOptions(), (), "option of the client library for publishing, such as snappy,true"
    )
    destination_auth_secret_file: str = _COPYING.text(
        "",
        "file with the secret for AUTH where it is published, if it is not the one of the source",
        placeholder="file",
    )
    require_json_field: str = _FILTER.text("", "pass on only JSON objects with this field", placeholder="field")
    require_json_value: str = _FILTER.text("", "and only those where it has this value", placeholder="value")
    whitelist_json_field: tuple[str, ...] = _FILTER.strings(
        "pass on only this field of JSON objects", placeholder="field"
    )

    def validated(self) -> NsqToNsqOptions:
        """These options. OptionsError if they cannot work."""
        if not self.topic or not self.channel:
            raise OptionsError("--topic and --channel are required")
        if not all(map(is_valid_name, self.topic)):
            raise OptionsError("--topic is invalid")
        if self.destination_topic and not is_valid_name(self.destination_topic):
            raise OptionsError("--destination-topic is invalid")
        if not is_valid_name(self.channel):
            raise OptionsError("--channel is invalid")
        check_addresses(self)
        if not self.destination_nsqd_tcp_address:
            raise OptionsError("--destination-nsqd-tcp-address required")
        return self


SETTINGS = SettingTable(TOOL, options_class=NsqToNsqOptions, command=(VERSION,))


async def run(options: NsqToNsqOptions, stop_asked: asyncio.Event) -> None:
    """Copy until the stop is asked for."""
    secret_file = options.destination_auth_secret_file or options.auth_secret_file
    config = client_config(options.producer_opt, tool=TOOL, secret_file=secret_file)
    copier = _Copier(options, config, clock=SystemClock())
    consumers = {
        topic: make_consumer(options, topic=topic, channel=options.channel, tool=TOOL) for topic in options.topic
    }
    try:
        await consume(consumers, copier.pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked)
    finally:
        await copier.close()


class _Copier:
    """Copies batches from consumers to the destinations."""

    def __init__(self, options: NsqToNsqOptions, config: ClientConfig, *, clock: Clock) -> None:
        addresses = list(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._destination_topic = options.destination_topic
        self._producers = {address: Producer(address, config, retry=ONCE) for address in addresses}
        self._pool = make_pool(options.mode, addresses, clock=clock)
        self._status = StatusReport(addresses, every=options.status_every)
        self._filter = JsonFilter(
            required_field=options.require_json_field,
            required_value=options.require_json_value,
            allowed_fields=options.whitelist_json_field,
        )
        self._clock = clock

    async def close(self) -> None:
        await asyncio.gather(*(producer.close() for producer in self._producers.values()))

    async def pump(self, topic: str, consumer: Consumer) -> None:
        """Copy the consumer's messages, until it is stopped."""
        destination_topic = self._destination_topic or topic
        await asyncio.gather(*(self._copy_batches(destination_topic, consumer) for _ in range(BATCHES_UNDER_WAY)))

    async def _copy_batches(self, topic: str, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            shares: dict[str, list[tuple[Message, bytes]]] = {}
            for message, body in self._passing(batch):
                shares.setdefault(self._pool.pick(), []).append((message, body))
            await asyncio.gather(*(self._publish(topic, address, share) for address, share in shares.items()))

    def _passing(self, batch: MessageBatch) -> list[tuple[Message, bytes]]:
        """The messages to pass on, with the body to publish for each. The others are finished or requeued."""
        if not self._filter.is_active:
            return [(message, message.body) for message in batch]
        passing = []
        dropped = MessageBatch()
        for message in batch:
            try:
                passing.append((message, self._filter.apply(message.body)))
            except Dropped as reason:
                if reason.args:
                    logger.info("dropped message %s - %s", id_text(message.id), reason)
                dropped.append(message)
            except FieldMissingError as fault:
                logger.warning("requeued message %s - %s", id_text(message.id), fault)
                message.requeue()
        dropped.finish()
        return passing

    async def _publish(self, topic: str, address: str, share: Sequence[tuple[Message, bytes]]) -> None:
        """Publish to one destination and answer the messages."""
        messages = MessageBatch(message for message, _ in share)
        began_ns = self._clock.monotonic_ns()
        try:
            await self._check_connected(address)
            await self._producers[address].publish_many(topic, [body for _, body in share])
        except NsqError as failure:
            if len(share) == 1 or isinstance(failure, ConnectError):
                self._requeue(address, messages, failure)
            else:
                await self._publish_singly(topic, address, share)
        else:
            self._done(address, messages, began_ns=began_ns)

    async def _publish_singly(self, topic: str, address: str, share: Sequence[tuple[Message, bytes]]) -> None:
        """Publish one by one what failed together.

        nsqd closes the connection after a refusal, so each publish waits for the next connection. If there is none, the
        destination is down and refused nothing.
        """
        for index, (message, body) in enumerate(share):
            began_ns = self._clock.monotonic_ns()
            try:
                await self._producers[address].publish(topic, body)
            except ConnectError as failure:
                self._requeue(address, MessageBatch(waiting for waiting, _ in share[index:]), failure)
                return
            except NsqError as failure:
                self._requeue(address, MessageBatch([message]), failure)
            else:
                self._done(address, MessageBatch([message]), began_ns=began_ns)

    async def _check_connected(self, address: str) -> None:
        """Fail at once if the destination is known to be down: waiting for it would hold up the other messages."""
        producer = self._producers[address]
        producer.start()
        [health] = producer.health()
        while not health.is_connected and not health.failures:  # the first attempt is bounded by connect_timeout_s
            await asyncio.sleep(FIRST_ATTEMPT_POLL_S)
            [health] = producer.health()
        if not health.is_connected:
            raise ConnectError(address, f"not connected - {health.last_failure}")

    def _done(self, address: str, messages: MessageBatch, *, began_ns: int) -> None:
        messages.finish()
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        self._pool.succeeded(address, elapsed_ns=elapsed_ns)
        self._status.record(address, elapsed_ns=elapsed_ns, count=len(messages))

    def _requeue(self, address: str, messages: MessageBatch, failure: NsqError) -> None:
        logger.error("%d messages were not published to %s - %s", len(messages), address, failure)
        if not isinstance(failure, BadRequestError):
            self._pool.failed(address)
        messages.requeue()


def main(argv: Sequence[str] | None = None) -> int:
    """Copy messages until it is told to stop; the exit status."""
    return run_tool(SETTINGS, NsqToNsqOptions, run, argv, failures=(NsqError,))
