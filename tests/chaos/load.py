"""The load of a chaos run: real clients of emberq at a bounded rate, which write down all that they see.

    numbered publisher   idempotent: what was not confirmed is sent again under its number, until it is
    plain publisher      sends each message once; PUB, MPUB and, where asked for, DPUB
    consumer             finishes at once and remembers what it has finished
    choosy consumer      requeues one in ten, with and without a delay, before it finishes it
    hopeless consumer    requeues everything, until nsqd makes a dead letter of it; another consumer reads the letters,
                         and a message is done with when its letter has come

Publishers and consumers run in one event loop, and reach nsqd through the proxy, directly or by way of nsqlookupd.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from emberq.client import ClientConfig, Consumer, ConsumerConfig, Message, NsqError, Observer, Producer
from emberq.client.config import ReconnectDelay, RetryPolicy
from tests.chaos.history import DAMAGED, History, Kind, body_of, key_of

BATCH_SIZES = (1, 1, 5, 40)
PIPELINED = 6
"""Batches that are under way together."""
DELAYS_S = (0.001, 0.2)
"""How far a deferred message is put off."""
PATIENCE = RetryPolicy(max_attempts=1_000_000, timeout_s=90.0)
"""Of a numbered publisher: longer than any fault lasts."""
ONCE = RetryPolicy(max_attempts=1, timeout_s=5.0)
COMING_BACK = ReconnectDelay(first_s=0.05, max_s=0.5)
CONNECTING = ClientConfig(connect_timeout_s=3.0, request_timeout_s=5.0, heartbeat_interval_ms=2_000)
LETTERS = "letters"
"""The channel of a dead-letter topic."""
MAX_BEHIND = 5_000
"""Publishers wait for a consumer that is further behind, or it would not be done in time."""
LATE_MARGIN_NS = 2_000_000_000
"""A FIN so shortly before the deadline of its message may come too late."""


@dataclass
class Stream:
    """One topic, who publishes to it and who consumes from it. All names are unique in a run."""

    topic: str
    node: str
    address: str
    """Of the proxy."""
    rate: float
    """Messages a second, over all publishers."""
    channels: Sequence[str]
    numbered: Sequence[int] = ()
    """The numbers of its publishers that number their batches."""
    plain: Sequence[int] = ()
    deferring: Sequence[int] = ()
    """Plain ones that publish deferred messages."""
    choosy: Sequence[str] = ()
    """Channels that requeue some messages."""
    hopeless: Sequence[str] = ()
    """Channels that requeue all messages, and have a policy for dead letters."""
    dead_letter_topic: str = ""
    is_backlog: bool = False
    """It is consumed only when the publishers are done."""
    lookupd: str = ""
    """The HTTP address of an nsqlookupd by which consumers find the nsqd; empty: they know it."""
    confirmed_count: int = 0
    delivered: dict[str, set[str]] = field(default_factory=dict)
    """What each channel has delivered so far."""

    @property
    def behind(self) -> int:
        """How many confirmed messages the slowest channel has still to deliver."""
        if self.is_backlog:
            return 0
        return self.confirmed_count - min((len(keys) for keys in self.delivered.values()), default=0)


class Publisher:
    """Publishes to one stream until it is told to end."""

    def __init__(self, stream: Stream, number: int, *, history: History, dice: random.Random) -> None:
        self._stream = stream
        self._number = number
        self._is_numbered = number in stream.numbered
        self._history = history
        self._dice = dice
        self._serial = 0
        self.is_ended = False

    async def run(self) -> None:
        stream = self._stream
        publishers = len(stream.numbered) + len(stream.plain)
        retry = PATIENCE if self._is_numbered else ONCE
        async with Producer(
            stream.address, CONNECTING, retry=retry, reconnect_delay=COMING_BACK, idempotent=self._is_numbered
        ) as producer:
            while not self.is_ended:
                if stream.behind > MAX_BEHIND:
                    await asyncio.sleep(0.1)
                    continue
                groups = [self._next_keys() for _ in range(self._dice.randint(1, PIPELINED))]
                began_s = time.monotonic()
                # All in one turn of the loop: so the numbers of the batches have the order of the keys.
                await asyncio.gather(*(self._publish(producer, keys) for keys in groups))
                pause_s = sum(map(len, groups)) * publishers / stream.rate
                await asyncio.sleep(max(0.0, began_s + pause_s - time.monotonic()))

    def _next_keys(self) -> list[str]:
        size = 1 if self._number in self._stream.deferring else self._dice.choice(BATCH_SIZES)
        first, self._serial = self._serial, self._serial + size
        return [f"{self._number}.{serial}" for serial in range(first, first + size)]

    async def _publish(self, producer: Producer, keys: list[str]) -> None:
        topic, note = self._stream.topic, self._history.note
        bodies = [body_of(topic, key) for key in keys]
        for key in keys:
            note(Kind.PUBLISH, topic, key=key)
        try:
            if self._number in self._stream.deferring:
                await producer.publish_deferred(topic, bodies[0], delay_s=self._dice.choice(DELAYS_S))
            elif len(bodies) == 1:
                await producer.publish(topic, bodies[0])
            else:
                await producer.publish_many(topic, bodies)
        except NsqError as error:
            reason = f"{type(error).__name__}: {error}".replace("\t", " ").replace("\n", " ")
            for key in keys:
                note(Kind.REFUSED, topic, key=key, detail=reason)
        else:
            for key in keys:
                note(Kind.OK, topic, key=key)
            self._stream.confirmed_count += len(keys)


CONSUMING = ConsumerConfig(
    max_in_flight=200,
    max_attempts=0,
    max_backoff_s=0,
    max_reconnect_delay_s=1.0,
    lookupd_poll_interval_s=1.0,
    lookupd_timeout_s=2.0,
)


class _Watch(Observer):
    """Writes down when a consumer loses its connection."""

    def __init__(self, history: History, topic: str, channel: str) -> None:
        self._history = history
        self._topic = topic
        self._channel = channel

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        self._history.note(Kind.DISCONNECT, self._topic, self._channel)


class RememberingConsumer:
    """Takes the messages of one channel of a stream, and remembers what it has finished."""

    def __init__(self, stream: Stream, channel: str, *, history: History, dice: random.Random) -> None:
        self._stream = stream
        self._channel = channel
        self._requeued = 1.0 if channel in stream.hopeless else 0.1 if channel in stream.choosy else 0.0
        """The part of messages that are requeued."""
        self._history = history
        self._dice = dice
        self._finished: set[str] = set()
        self._seen = stream.delivered.setdefault(channel, set())

    async def run(self) -> None:
        stream = self._stream
        watch = _Watch(self._history, stream.topic, self._channel)
        async with Consumer(
            stream.topic,
            self._channel,
            nsqd_addresses=[] if stream.lookupd else [stream.address],
            lookupd_addresses=[stream.lookupd] if stream.lookupd else [],
            config=CONSUMING,
            client_config=ClientConfig(connect_timeout_s=3.0, heartbeat_interval_ms=2_000, observer=watch),
        ) as consumer:
            async for message in consumer:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        topic, channel, note = self._stream.topic, self._channel, self._history.note
        key = key_of(topic, message.body)
        note(Kind.DELIVER, topic, channel, key, f"{message.id.decode('ascii', 'replace')} {message.attempts}")
        self._seen.add(key)
        if key not in self._finished and self._dice.random() < self._requeued:
            note(Kind.REQUEUE, topic, channel, key)
            message.requeue(self._dice.choice((0, 0.1)), backoff=False)
            return
        is_late = message.is_answered or time.monotonic_ns() > message.deadline_ns - LATE_MARGIN_NS
        message.finish()
        note(Kind.LATE if is_late else Kind.FIN, topic, channel, key)
        self._finished.add(key)


class LetterReader:
    """Takes the dead letters of a stream's hopeless channels out of their envelopes."""

    def __init__(self, stream: Stream, *, history: History) -> None:
        self._stream = stream
        self._history = history

    async def run(self) -> None:
        stream = self._stream
        async with Consumer(
            stream.dead_letter_topic,
            LETTERS,
            nsqd_addresses=[stream.address],
            config=CONSUMING,
            client_config=CONNECTING,
        ) as consumer:
            async for message in consumer:
                letter = json.loads(message.body)
                topic, channel = str(letter["topic"]), str(letter["channel"])
                key = key_of(topic, str(letter["body"]).encode())
                if key == DAMAGED:
                    self._history.note(Kind.DELIVER, stream.topic, channel, DAMAGED, "in a dead letter")
                self._history.note(Kind.LETTER, topic, channel, key)
                message.finish()


class Load:
    """All publishers and consumers of a run; an asynchronous context manager that owns their tasks."""

    def __init__(self, streams: Sequence[Stream], *, history: History, dice: random.Random) -> None:
        self.streams = streams
        self._history = history
        self._dice = dice
        self._publishers: dict[asyncio.Task[None], Publisher] = {}
        self._consumers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        for stream in self.streams:
            if not stream.is_backlog:
                self._consume(stream)
            for number in (*stream.numbered, *stream.plain):
                publisher = Publisher(stream, number, history=self._history, dice=self._own_dice())
                self._publishers[asyncio.create_task(publisher.run())] = publisher
        return self

    async def __aexit__(self, *_raised: object) -> None:
        tasks = [*self._publishers, *self._consumers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _own_dice(self) -> random.Random:
        """So that what one client draws does not depend on when the others draw."""
        return random.Random(self._dice.getrandbits(64))

    def _consume(self, stream: Stream) -> None:
        for channel in stream.channels:
            consumer = RememberingConsumer(stream, channel, history=self._history, dice=self._own_dice())
            self._consumers.append(asyncio.create_task(consumer.run()))
        if stream.hopeless:
            self._consumers.append(asyncio.create_task(LetterReader(stream, history=self._history).run()))

    @property
    def failures(self) -> list[BaseException]:
        """Why clients have ended that should not have."""
        done = [task for task in (*self._publishers, *self._consumers) if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]

    async def end_publishing(self) -> None:
        """Publish no more, and consume the backlogs; return when what is under way is confirmed or given up."""
        for publisher in self._publishers.values():
            publisher.is_ended = True
        if self._publishers:
            await asyncio.wait(self._publishers, timeout=PATIENCE.timeout_s + 30)
        for stream in self.streams:
            if stream.is_backlog:
                self._consume(stream)

    @property
    def is_drained(self) -> bool:
        """Whether each channel of a journaled topic has delivered as many messages as were confirmed."""
        return all(stream.behind <= 0 for stream in self.streams if stream.numbered)
