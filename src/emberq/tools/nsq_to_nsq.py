"""nsq_to_nsq: consumes topics and publishes them to other nsqds.

A batch that has arrived is looked through (see `json_filter`), dealt out over the destinations (see `host_pool`), and
published to each in one command. Messages are finished when their destination confirmed them, and requeued when it did
not. Several batches are under way at a time, so that the line to the destination does not stand idle while the next
messages are on their way to us.

If a destination refuses a whole batch because of one message (it may be too long there), or hangs up on it, its
messages are published one by one, so that only that one fails. Some may then arrive twice, none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from emberq.base.clock import Clock, SystemClock
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.config import ClientConfig
from emberq.client.consumer import Consumer
from emberq.client.error import BadRequest, ConnectionFailed, NsqError
from emberq.client.message import Batch, Message
from emberq.client.producer import Producer
from emberq.client.retry import RetryPolicy
from emberq.tools.client_options import ClientOption, ClientOptions, client_config
from emberq.tools.host_pool import HostPool, make_pool
from emberq.tools.json_filter import Dropped, FieldMissing, JsonFilter
from emberq.tools.source import SourceOptions, check_addresses, consume, make_consumer
from emberq.tools.timing import StatusReport
from emberq.wire.name import is_valid_name

TOOL = "nsq_to_nsq"
BATCHES_UNDER_WAY = 4
"""For each topic. One is being published while others are being read, decoded and answered."""
ONCE = RetryPolicy(max_attempts=1, timeout_s=5.0)
"""A message that a destination did not confirm goes back to its source, and from there perhaps to another. The time is
for a destination to come back that hung up behind a refusal."""
FIRST_ATTEMPT_POLL_S = 0.01
"""How often to look whether a destination has been connected for the first time."""

logger = logging.getLogger(__name__)

_COPYING = Group("Copying")
_FILTER = Group("Filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
    """What nsq_to_nsq is to do."""

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
    require_json_field: str = _FILTER.text("", "pass on only JSON objects with this field", placeholder="field")
    require_json_value: str = _FILTER.text("", "and only those where it has this value", placeholder="value")
    whitelist_json_field: tuple[str, ...] = _FILTER.strings(
        "pass on only this field of JSON objects", placeholder="field"
    )

    def validated(self) -> Options:
        """These options; OptionsError for what cannot work."""
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


SETTINGS = SettingTable(TOOL, options_class=Options, command=(VERSION,))


async def run(options: Options, stop_asked: asyncio.Event) -> None:
    """Copy until the stop is asked for."""
    config = client_config(options.producer_opt, tool=TOOL)
    copier = _Copier(options, config, clock=SystemClock())
    consumers = {
        topic: make_consumer(options, topic=topic, channel=options.channel, tool=TOOL) for topic in options.topic
    }
    try:
        await consume(consumers, copier.pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked)
    finally:
        await copier.close()


class _Copier:
    """Takes batches from consumers to the destinations."""

    def __init__(self, options: Options, config: ClientConfig, *, clock: Clock) -> None:
        addresses = list(dict.fromkeys(options.destination_nsqd_tcp_address))
        self._destination_topic = options.destination_topic
        self._producers = {address: Producer(address, config, retry=ONCE) for address in addresses}
        self._pool: HostPool = make_pool(options.mode, addresses, clock=clock)
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
        """Copy what the consumer brings, until it is stopped."""
        destination_topic = self._destination_topic or topic
        await asyncio.gather(*(self._copy_batches(destination_topic, consumer) for _ in range(BATCHES_UNDER_WAY)))

    async def _copy_batches(self, topic: str, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            shares: dict[str, list[tuple[Message, bytes]]] = {}
            for message, body in self._passing(batch):
                shares.setdefault(self._pool.pick(), []).append((message, body))
            await asyncio.gather(*(self._publish(topic, address, share) for address, share in shares.items()))

    def _passing(self, batch: Batch) -> list[tuple[Message, bytes]]:
        """The messages to pass on and what to publish for each; the others are answered."""
        if not self._filter.is_active:
            return [(message, message.body) for message in batch]
        passing = []
        dropped = Batch()
        for message in batch:
            try:
                passing.append((message, self._filter.apply(message.body)))
            except Dropped as reason:
                if reason.args:
                    logger.info("dropped message %s - %s", message.id.decode(), reason)
                dropped.append(message)
            except FieldMissing as fault:
                logger.warning("requeued message %s - %s", message.id.decode(), fault)
                message.requeue()
        dropped.finish()
        return passing

    async def _publish(self, topic: str, address: str, share: Sequence[tuple[Message, bytes]]) -> None:
        """Publish to one destination and answer the messages."""
        messages = Batch(message for message, _ in share)
        began_ns = self._clock.monotonic_ns()
        try:
            await self._check_connected(address)
            await self._producers[address].publish_many(topic, [body for _, body in share])
        except NsqError as failure:
            if len(share) == 1 or isinstance(failure, ConnectionFailed):
                self._requeue(address, messages, failure)
            else:
                await self._publish_singly(topic, address, share)
        else:
            self._done(address, messages, began_ns=began_ns)

    async def _publish_singly(self, topic: str, address: str, share: Sequence[tuple[Message, bytes]]) -> None:
        """Publish one by one what failed together.

        nsqd hangs up behind a refusal, so each waits until it is connected again. If it is not, that was no refusal.
        """
        for index, (message, body) in enumerate(share):
            began_ns = self._clock.monotonic_ns()
            try:
                await self._producers[address].publish(topic, body)
            except ConnectionFailed as failure:
                self._requeue(address, Batch(waiting for waiting, _ in share[index:]), failure)
                return
            except NsqError as failure:
                self._requeue(address, Batch([message]), failure)
            else:
                self._done(address, Batch([message]), began_ns=began_ns)

    async def _check_connected(self, address: str) -> None:
        """Fail at once if the destination is known to be away: waiting for it would hold up the other messages."""
        producer = self._producers[address]
        producer.start()
        [health] = producer.health()
        while not health.is_connected and not health.failures:  # the first attempt is bounded by connect_timeout_s
            await asyncio.sleep(FIRST_ATTEMPT_POLL_S)
            [health] = producer.health()
        if not health.is_connected:
            raise ConnectionFailed(address, f"not connected - {health.last_failure}")

    def _done(self, address: str, messages: Batch, *, began_ns: int) -> None:
        messages.finish()
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        self._pool.succeeded(address, elapsed_ns=elapsed_ns)
        self._status.record(address, elapsed_ns=elapsed_ns, count=len(messages))

    def _requeue(self, address: str, messages: Batch, failure: NsqError) -> None:
        logger.error("%d messages were not published to %s - %s", len(messages), address, failure)
        if not isinstance(failure, BadRequest):
            self._pool.failed(address)
        messages.requeue()
