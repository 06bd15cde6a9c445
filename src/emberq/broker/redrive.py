"""Redrive: messages of a dead-letter topic go back to where they came from, to be tried again.

    channel of the dead-letter topic ──take out──> origin topic ──stored──> done with here

Each message is published to the topic that its envelope names, or to the one that was asked for, without the envelope.
All channels of that topic get it, not only the one in which it died. Messages without an envelope stay, unless a topic
was asked for.

It is done in portions, so that others have their turn in between, and ends with what waited in the channel when it
began: what dies again meanwhile is left for the next time. What stays is held until the end, or it would come up again
and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from emberq.broker.batch import Span
from emberq.broker.channel import Channel
from emberq.broker.error import BrokerError, StoreError
from emberq.broker.layout import PUBLISHED_HEADER
from emberq.broker.pending import Pending
from emberq.storage.errors import StorageError
from emberq.wire.dead_letter import decode_dead_letter
from emberq.wire.message import Message
from emberq.wire.name import is_valid_name

PORTION_COUNT = 500
PORTION_BYTES = 192 * 1024
"""What is moved before others have their turn: some milliseconds of work, and what fits into one batch, so that it is
known how much of it was stored."""
MAX_LEFT_COUNT = 10_000
"""With so many messages that stay, the run ends: they are held in memory."""


PublishTo = Callable[[str, bytes, Sequence[int]], Pending | None]
"""As `Topic.publish` of the topic of that name, which is made if it is missing."""


class _Traveller(NamedTuple):
    """A message on its way."""

    span: Span
    """It alone, as the channel knows it."""
    topic: str
    body: bytes


class Redrive:
    """One run over one channel. `next_portion` is to be called until `is_done`, each time when the last one is settled;
    then `end`, however it went.

    `to` is a topic to publish to whatever the envelopes say.
    """

    def __init__(
        self, publish: PublishTo, channel: Channel, *, to: str | None = None, max_count: int | None = None
    ) -> None:
        self._publish_to = publish
        self._channel = channel
        self._to = to
        self._unseen_count = channel.depth
        """How many messages are still to be looked at."""
        self._max_count = self._unseen_count if max_count is None else max_count
        self._portion: Pending
        """What tells how the portion under way ends."""
        self._groups_under_way = 0
        self._failure: Exception | None = None
        self._left: list[Span] = []
        """Messages that stay because nobody knows where they belong."""
        self.moved_count = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to be moved."""
        is_enough = self.moved_count >= self._max_count or len(self._left) >= MAX_LEFT_COUNT
        return is_enough or self._unseen_count <= 0

    @property
    def left_count(self) -> int:
        """How many messages stay because nobody knows where they belong."""
        return len(self._left)

    def end(self) -> None:
        """Give back what stays."""
        for span in self._left:
            self._channel.departures.put_back(span)
        self._channel.pump()

    def next_portion(self) -> Pending:
        """Move some messages; settled when they are stored where they belong, or with the reason why some are not."""
        self._portion = Pending()
        groups: dict[str, list[_Traveller]] = {}
        for traveller in self._take():
            groups.setdefault(traveller.topic, []).append(traveller)
        self._groups_under_way = len(groups) + 1
        for topic, travellers in groups.items():
            self._publish(topic, travellers)
        self._group_ended()
        return self._portion

    def _take(self) -> list[_Traveller]:
        """The next messages that are to go somewhere."""
        room = min(PORTION_COUNT, self._unseen_count, self._max_count - self.moved_count)
        taken = self._channel.take_out(max_count=room, max_bytes=PORTION_BYTES)
        if taken is None:
            self._unseen_count = 0  # somebody else was faster, or it cannot be read now
            return []
        singles = [
            Span(span.batch, index, index + 1, span.attempts)
            for span in taken
            for index in range(span.start, span.stop)
        ]
        self._unseen_count -= max(1, len(singles))  # at least one was taken, even if it had to be put off
        self._channel.departures.add(singles)
        travellers: list[_Traveller] = []
        for span in singles:
            (message,) = span.messages(1)
            topic, body = self._destination(message)
            if topic is None:
                self._left.append(span)
            else:
                travellers.append(_Traveller(span, topic, body))
        return travellers

    def _destination(self, message: Message) -> tuple[str | None, bytes]:
        """Where a message goes, None if nowhere, and what is published there."""
        letter = decode_dead_letter(message.body)
        topic = self._to or (letter.topic if letter is not None else "")
        body = message.body if letter is None else letter.body
        is_possible = is_valid_name(topic) and topic != self._channel.topic_name and bool(body)
        return topic if is_possible else None, body

    def _publish(self, topic: str, travellers: list[_Traveller]) -> None:
        blob = b"".join([PUBLISHED_HEADER.pack(len(each.body)) + each.body for each in travellers])
        ends = list(accumulate(PUBLISHED_HEADER.size + len(each.body) for each in travellers))
        try:
            pending = self._publish_to(topic, blob, ends)
        except StoreError as refusal:
            self._stored(travellers, refusal, stored_count=refusal.stored_count)
        except (BrokerError, StorageError) as refusal:
            self._stored(travellers, refusal, stored_count=0)
        else:
            if pending is None:
                self._stored(travellers, None, stored_count=len(travellers))
            else:
                pending.when_settled(
                    lambda failure: self._stored(
                        travellers, failure, stored_count=len(travellers) if failure is None else 0
                    )
                )

    def _stored(self, travellers: list[_Traveller], failure: Exception | None, *, stored_count: int) -> None:
        """The first `stored_count` are where they belong; the others stay."""
        channel = self._channel
        for traveller in travellers[:stored_count]:
            channel.departures.moved(traveller.span, 1)
        for traveller in travellers[stored_count:]:
            channel.departures.put_back(traveller.span)
        self.moved_count += stored_count
        channel.redriven_count += stored_count
        self._failure = self._failure or failure
        self._group_ended()

    def _group_ended(self) -> None:
        self._groups_under_way -= 1
        if not self._groups_under_way:
            self._channel.pump()
            self._portion.settle(self._failure)
