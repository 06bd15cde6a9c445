"""What the tests of the broker share: a broker whose time and disk are ours, consumers that record what they get, and
messages taken apart without the broker's own code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.broker.broker import Broker
from emberq.broker.channel import NO_LATENCY_KEPT, Channel, ChannelLimits
from emberq.broker.limit import TopicLimits
from emberq.broker.stats import ChannelStats, ClientStats, LatencyConfig, TopicStats
from emberq.broker.store import DiskStore, Store
from emberq.broker.subscriber import Locality, Subscriber
from emberq.broker.topic import Topic, TopicConfig
from emberq.storage.backend import DiskLimits
from emberq.storage.disk_queue_sync import Syncer
from tests.broker.simulated_disk import SimulatedDisk
from tests.support.unsynced_files import UnsyncedFiles


class Message(NamedTuple):
    """A message as a consumer sees it."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def messages_in(frames: bytes) -> list[Message]:
    """The messages in the frames, which must be message frames and nothing else:

    | size: int32 | type 2: int32 | timestamp: int64 | attempts: uint16 | id: 16 bytes | body |
    """
    messages = []
    position = 0
    while position < len(frames):
        size, frame_type, timestamp_ns, attempts, message_id = struct.unpack_from(">iiqH16s", frames, position)
        assert frame_type == 2
        end = position + 4 + size
        assert end <= len(frames)
        messages.append(Message(timestamp_ns, attempts, message_id, frames[position + 34 : end]))
        position = end
    return messages


def stored(message: Message) -> bytes:
    """The message as a record of the disk queue: | length | timestamp | attempts | id | body |."""
    header = struct.pack(">iqH16s", 26 + len(message.body), message.timestamp_ns, message.attempts, message.id)
    return header + message.body


def published(bodies: Sequence[bytes]) -> tuple[bytes, Sequence[int]]:
    """Bodies as a publisher sends them, and where each ends: a `range` when all have one size."""
    blob = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    sizes = {len(body) + 4 for body in bodies}
    if len(sizes) == 1:
        (size,) = sizes
        return blob, range(size, len(blob) + 1, size)
    return blob, list(accumulate(len(body) + 4 for body in bodies))


def fin_lines(ids: Sequence[bytes]) -> bytes:
    """FIN commands as they arrive."""
    return b"".join(b"FIN " + message_id + b"\n" for message_id in ids)


def numbered(count: int, *, first: int = 0) -> list[bytes]:
    """Bodies of one size that differ from each other."""
    return [b"%06d" % number for number in range(first, first + count)]


class Consumer:
    """A consumer's connection: the `Sink` of a subscriber, and the commands that its client would send."""

    def __init__(
        self,
        channel: Channel,
        *,
        rdy: int = 0,
        msg_timeout_ms: int = 60_000,
        sample_rate: int = 0,
        locality: Locality = Locality.GLOBAL,
    ) -> None:
        self.channel = channel
        self.received: list[Message] = []
        """Every message it ever got."""
        self.deliveries: list[int] = []
        """How many messages came in one go, each time."""
        self.closed = False
        self.blocks_itself = False
        """Whether its socket is full after each delivery."""
        self._new: list[Message] = []
        self.subscriber = Subscriber(
            self, msg_timeout_ns=msg_timeout_ms * NS_PER_MS, sample_rate=sample_rate, locality=locality
        )
        channel.subscribe(self.subscriber)
        if rdy:
            self.ready(rdy)

    # The broker's side.

    def deliver(self, frames: bytes) -> None:
        messages = messages_in(frames)
        assert messages, "a delivery of nothing"
        assert self.subscriber.in_flight_count <= self.subscriber.ready_count, "more than the window allows"
        self.received += messages
        self._new += messages
        self.deliveries.append(len(messages))
        if self.blocks_itself:
            self.channel.block(self.subscriber)

    def deliver_pieces(self, pieces: list[bytes | memoryview]) -> None:
        self.deliver(b"".join(pieces))

    def close(self) -> None:
        self.closed = True

    def stats(self) -> ClientStats:
        subscriber = self.subscriber
        return ClientStats(
            ready_count=subscriber.ready_count,
            in_flight_count=subscriber.in_flight_count,
            message_count=subscriber.message_count,
            finish_count=subscriber.finish_count,
            requeue_count=subscriber.requeue_count,
        )

    # The client's side.

    def take_new(self) -> list[Message]:
        """What came since this was last asked."""
        new, self._new = self._new, []
        return new

    def new_bodies(self) -> list[bytes]:
        """The bodies of what came since this or `take_new` was last asked."""
        return [message.body for message in self.take_new()]

    def take_one(self) -> Message:
        """The one message that came since this was last asked."""
        (message,) = self.take_new()
        return message

    def ready(self, count: int) -> None:
        self.channel.set_ready(self.subscriber, count)
        self.channel.pump()

    def finish(self, *messages: Message) -> list[bytes]:
        unknown = self.channel.finish(self.subscriber, fin_lines([message.id for message in messages]))
        self.channel.pump()
        return unknown

    def requeue(self, message: Message, *, delay_ms: int = 0) -> None:
        self.channel.requeue(self.subscriber, message.id, delay_ns=delay_ms * NS_PER_MS)
        self.channel.pump()

    def touch(self, message: Message) -> None:
        self.channel.touch(self.subscriber, message.id, msg_timeout_ns=self.subscriber.msg_timeout_ns)

    def block(self) -> None:
        self.channel.block(self.subscriber)

    def unblock(self) -> None:
        self.channel.unblock(self.subscriber)
        self.channel.pump()

    def leave(self) -> None:
        self.channel.unsubscribe(self.subscriber)


class Rig:
    """A broker on a simulated disk, or on the files in `folder`; time stands still until `advance`."""

    def __init__(
        self,
        *,
        folder: Path | None = None,
        mem_queue_size: int = 10_000,
        mem_queue_bytes: int = NEVER,
        max_msg_timeout_ms: int = 900_000,
        max_channel_consumers: int = 0,
        requeues_on_disconnect: bool = False,
        max_bytes_per_file: int = 100 * 1024 * 1024,
        latency: LatencyConfig = NO_LATENCY_KEPT,
        limits: TopicLimits | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk()
        self._folder = folder
        self._limits = DiskLimits(max_bytes_per_file=max_bytes_per_file)
        self._config = TopicConfig(
            channel=ChannelLimits(
                mem_queue_size=mem_queue_size,
                mem_queue_bytes=mem_queue_bytes,
                max_msg_timeout_ns=max_msg_timeout_ms * NS_PER_MS,
                max_consumers=max_channel_consumers,
                requeues_on_disconnect=requeues_on_disconnect,
                latency=latency,
            ),
            limits_of=lambda _topic: limits,
        )
        self._start()

    def _start(self) -> None:
        self.timers = Timers()
        self.broker = Broker(config=self._config, store=self._store(), clock=self.clock, timers=self.timers)

    def _store(self) -> Store:
        if self._folder is None:
            return self.disk
        syncer = Syncer(clock=self.clock, timers=self.timers, inline=True)
        return DiskStore(self._folder, limits=self._limits, syncer=syncer, fs=UnsyncedFiles())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.close()

    def restart(self, *, down_ms: int = 1000, wall_ns: int | None = None) -> None:
        """Close the broker and start another on the same disk. Its monotonic clock starts anew, as after a reboot."""
        metadata = self.broker.metadata("test")
        self.broker.close()
        start_wall_ns = self.clock.wall_ns() if wall_ns is None else wall_ns
        self.clock = ManualClock(wall_ns=start_wall_ns + down_ms * NS_PER_MS, monotonic_ns=NS_PER_SECOND)
        self._start()
        self.broker.load(metadata)

    def save_metadata(self) -> None:
        """Have the broker believe that nsqd.dat is on the disk, as it is now."""
        self.broker.metadata("test")
        self.broker.metadata_saved()

    def advance(self, *, ms: float) -> None:
        """Let time pass, and ring what is due at the end of it."""
        self.clock.advance(ms=ms)
        self.run_due()

    def run_due(self) -> None:
        """What the daemon's timer does."""
        self.timers.run_due(self.clock.monotonic_ns())

    def topic(self, name: str = "t") -> Topic:
        return self.broker.topic(name)

    def channel(self, name: str = "c", *, topic: str = "t") -> Channel:
        return self.broker.topic(topic).channel(name)

    def consumer(self, *, rdy: int = 0, msg_timeout_ms: int = 60_000, locality: Locality = Locality.GLOBAL) -> Consumer:
        """A consumer of the channel `c` of the topic `t`."""
        return Consumer(self.channel(), rdy=rdy, msg_timeout_ms=msg_timeout_ms, locality=locality)

    def publish(self, *bodies: bytes, topic: str = "t") -> None:
        """An MPUB, or a PUB of one."""
        self.topic(topic).publish(*published(bodies))

    def publish_deferred(self, body: bytes, *, delay_ms: int, topic: str = "t") -> None:
        """A DPUB."""
        self.topic(topic).publish_deferred(published([body])[0], delay_ns=delay_ms * NS_PER_MS)

    def topic_stats(self, name: str = "t") -> TopicStats:
        return self.topic(name).stats()

    def stats(self, channel: str = "c", *, topic: str = "t") -> ChannelStats:
        """The state of a channel."""
        return self.channel(channel, topic=topic).stats()
