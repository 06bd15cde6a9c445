"""Dead letters: what becomes of messages that were tried often enough.

    channel ──would be delivered once more──> undertaker ──publish──> dead-letter topic ──stored──> done with here

A channel with a policy hands such messages to its undertaker instead of a consumer. The undertaker puts each into an
envelope that tells where it comes from (see `wire.dead_letter`) and publishes what has come together as one batch, in a
turn of its own. Until the batch is stored the messages belong to the channel. If it cannot be stored they are put off
for a while, so that a dead-letter topic on a full disk does not hold up the living.

Bounds: the channel delivers nothing while BUSY_COUNT messages wait here, so a long backlog of dead letters passes
through in portions. A portion is one batch of the dead-letter topic, of which it is known how much was stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.batch import Span
from emberq.broker.error import BrokerError, StoreError
from emberq.broker.layout import PUBLISHED_HEADER
from emberq.broker.pending import Pending
from emberq.storage.errors import StorageError
from emberq.storage.policy import ChannelPolicy
from emberq.wire.dead_letter import DeadLetter, encode_dead_letter
from emberq.wire.message import Message

if TYPE_CHECKING:
    from emberq.broker.channel import Channel

BUSY_COUNT = 1000
PIECE_COUNT = 64
PIECE_BYTES = 32 * 1024
PORTION_BYTES = 128 * 1024
"""A portion is filled with pieces of spans until it has this size. A piece makes less than that, because envelopes at
most double the bodies and add some hundred bytes to each; so a portion fits into one batch (MAX_BATCH_BYTES)."""
RETRY_NS = 5 * NS_PER_SECOND
"""How long messages are put off that the dead-letter topic did not take."""

Publish = Callable[[bytes, Sequence[int]], Pending | None]
"""As `Topic.publish` of the dead-letter topic, which is made if it is missing."""

_log = logging.getLogger(__name__)


class Undertaker:
    """Brings messages of one channel to its dead-letter topic. Owned by the channel."""

    def __init__(
        self,
        channel: Channel,
        policy: ChannelPolicy,
        publish: Publish,
        *,
        max_message_bytes: int,
        clock: Clock,
        timers: Timers,
    ) -> None:
        self.policy = policy
        self._channel = channel
        self._publish = publish
        self._max_message_bytes = max_message_bytes
        self._clock = clock
        self._alarm = timers.alarm(self._bury_portion)
        self._waiting: deque[Span] = deque()
        self._count = 0
        """Messages that wait here or are on their way to the disk."""
        self._refused_until_ns = 0

    def __repr__(self) -> str:
        return f"<Undertaker of {self._channel.name} to {self.policy.dead_letter_topic}, {self._count} under way>"

    @property
    def is_busy(self) -> bool:
        """Whether it should not be given more for now; the channel is pumped when that changes."""
        return self._count >= BUSY_COUNT

    def take(self, span: Span) -> None:
        """These messages have been taken from the channel's queue and are to be buried."""
        now_ns = self._clock.monotonic_ns()
        pieces = _pieces(span)
        self._channel.departures.add(pieces)
        if now_ns < self._refused_until_ns:
            for piece in pieces:
                self._channel.departures.put_back(piece, delay_ns=self._refused_until_ns - now_ns)
            return
        self._waiting.extend(pieces)
        self._count += sum(piece.count for piece in pieces)
        self._alarm.set_earlier(now_ns)

    def _bury_portion(self) -> None:
        portion, letters = self._next_portion()
        if self._waiting:
            self._alarm.set_earlier(self._clock.monotonic_ns())
        if not letters:
            self._channel.pump()
            return
        blob = b"".join([PUBLISHED_HEADER.pack(len(letter)) + letter for letter in letters])
        ends = list(accumulate(PUBLISHED_HEADER.size + len(letter) for letter in letters))
        try:
            pending = self._publish(blob, ends)
        except StoreError as refusal:
            self._settled(portion, refusal, stored_count=refusal.stored_count)
        except (BrokerError, StorageError) as refusal:
            self._settled(portion, refusal)
        else:
            if pending is None:
                self._settled(portion, None)
            else:
                pending.when_settled(lambda failure: self._settled(portion, failure))

    def _next_portion(self) -> tuple[list[Span], list[bytes]]:
        portion: list[Span] = []
        letters: list[bytes] = []
        size = 0
        while self._waiting and size < PORTION_BYTES:
            span = self._waiting[0]
            if portion and span.batch.body_bytes(span.start, span.stop) > PIECE_BYTES:
                break  # a message that makes a large piece by itself begins a portion
            self._waiting.popleft()
            if span not in self._channel.departures:
                self._count -= span.count  # the channel was emptied
                continue
            fresh = [self._letter(message) for message in span.messages(span.count)]
            size += sum(map(len, fresh))
            portion.append(span)
            letters += fresh
        return portion, letters

    def _letter(self, message: Message) -> bytes:
        letter = DeadLetter(
            topic=self._channel.topic_name,
            channel=self._channel.name,
            id=message.id.decode("ascii", "backslashreplace"),
            attempts=message.attempts,
            timestamp_ns=message.timestamp_ns,
            reason=f"not finished in {message.attempts} attempts",
            body=message.body,
        )
        encoded = encode_dead_letter(letter, max_bytes=self._max_message_bytes)
        if encoded is None:
            _log.warning(
                "CHANNEL(%s): message %s is too big for an envelope, its bare body goes to %s",
                self._channel.name,
                letter.id,
                self.policy.dead_letter_topic,
            )
        return message.body if encoded is None else encoded

    def _settled(self, portion: list[Span], failure: Exception | None, *, stored_count: int = 0) -> None:
        """It is known what became of a portion: all is stored, or only the first `stored_count`."""
        channel = self._channel
        for span in portion:
            count = span.count
            self._count -= count
            stored = count if failure is None else min(count, stored_count)
            stored_count -= stored
            if channel.departures.moved(span, stored):
                channel.dead_letter_count += stored
            if stored < count:
                channel.departures.put_back(span, delay_ns=RETRY_NS)
        if failure is not None:
            self._refused_until_ns = self._clock.monotonic_ns() + RETRY_NS
            _log.error(
                "CHANNEL(%s): dead letters could not be published to %s - %s",
                channel.name,
                self.policy.dead_letter_topic,
                failure,
            )
        channel.pump()


def _pieces(span: Span) -> list[Span]:
    """The same messages in spans that make no more than one portion."""
    pieces: list[Span] = []
    while span.count:
        fitting = span.batch.fitting(span.start, max_count=min(PIECE_COUNT, span.count), max_bytes=PIECE_BYTES)
        pieces.append(span.split(fitting))
    return pieces
