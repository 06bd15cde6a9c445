"""Dead letters: messages that were tried often enough leave their channel, and may be brought back.

    channel ──would be delivered once more──> forwarder ──publish──> dead-letter topic ──stored──> dropped here

`DeadLetterForwarder`: a channel with a policy hands such messages to its forwarder instead of a consumer. The forwarder
puts each into an envelope that tells where it comes from (see `wire.dead_letter`), and publishes what has come together
as one batch, in a turn of its own. Until the batch is as durable as the messages were, they belong to the channel: in a
journaled topic a power failure must not be able to take it any more, whatever the sync mode. If it cannot be stored
they are deferred for a while, so that a dead-letter topic on a full disk does not hold up other messages. The channel
delivers nothing while BUSY_COUNT messages wait here, so a long backlog of dead letters passes through in portions. A
portion is one batch of the dead-letter topic, of which it is known how much was stored.

`PolicyBook`: which channels give up on messages, and where those go. Dead letters must not come back to the topic they
died in, neither directly nor by way of the policies of other channels: every round would wrap them into one more
envelope. The dead-letter topic of a journaled topic is journaled too (see `Broker`), or a process that dies would take
messages with it that were on the disk.

    channel of the dead-letter topic ──take out──> topic of origin ──stored──> dropped here

`Redrive`: messages of a dead-letter topic are tried again. Each is published without its envelope to the topic that the
envelope names, or to the one that was asked for. All channels of that topic get it, not only the one in which it died.
Messages without an envelope stay, unless a topic was asked for. A redrive works in portions, so that the event loop has
other turns in between, and ends with what waited in the channel when it began: messages that die again meanwhile are
left for the next redrive. Messages that stay are held until the end, or they would come up again and again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.batch import Span
from emberq.broker.channel import Channel
from emberq.broker.error import BrokerError, PolicyCycleError, StoreError
from emberq.broker.layout import PUBLISHED_HEADER
from emberq.broker.store import Store
from emberq.broker.topic import Pending
from emberq.storage.data_folder import ChannelPolicy, PolicyEntry
from emberq.storage.error import StorageError
from emberq.wire.dead_letter import DeadLetter, RedriveTarget, encode_dead_letter, target_of
from emberq.wire.frame import WireMessage
from emberq.wire.parameter import is_ephemeral

BUSY_COUNT = 1000
PIECE_COUNT = 64
PIECE_BYTES = 32 * 1024
PORTION_BYTES = 128 * 1024
"""A portion is filled with pieces of spans until it has this size. A piece makes less than that, because envelopes at
most double the bodies and add some hundred bytes to each. So a portion fits into one batch (MAX_BATCH_BYTES)."""
RETRY_NS = 5 * NS_PER_SECOND
"""How long messages are deferred that the dead-letter topic did not take."""

Publish = Callable[[bytes, Sequence[int]], Pending | None]
"""As `Topic.publish_durably` of the dead-letter topic; it is created if there is none."""

_log = logging.getLogger(__name__)


class DeadLetterForwarder:
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
        self._alarm = timers.alarm(self._publish_portion)
        self._waiting: deque[Span] = deque()
        self._count = 0
        """Messages that wait here or are being stored."""
        self._refused_until_ns = 0

    def __repr__(self) -> str:
        return f"<DeadLetterForwarder {self._channel.name} to {self.policy.dead_letter_topic}, {self._count} under way>"

    @property
    def is_busy(self) -> bool:
        return self._count >= BUSY_COUNT

    def take(self, span: Span) -> None:
        now_ns = self._clock.monotonic_ns()
        pieces = _pieces(span)
        self._channel.in_transit.add(pieces)
        if now_ns < self._refused_until_ns:
            for piece in pieces:
                self._channel.in_transit.put_back(piece, delay_ns=self._refused_until_ns - now_ns)
            return
        self._waiting.extend(pieces)
        self._count += sum(piece.count for piece in pieces)
        self._alarm.set_earlier(now_ns)

    def _publish_portion(self) -> None:
        portion, letters = self._next_portion()
        if self._waiting:
            self._alarm.set_earlier(self._clock.monotonic_ns())
        if not letters:
            self._channel.pump()
            return
        try:
            pending = self._publish(*_published(letters))
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
                break  # one large message is a large piece: it begins a portion
            self._waiting.popleft()
            if span not in self._channel.in_transit:
                self._count -= span.count  # the channel was emptied
                continue
            fresh = [self._letter(message) for message in span.messages(span.count)]
            size += sum(map(len, fresh))
            portion.append(span)
            letters += fresh
        return portion, letters

    def _letter(self, message: WireMessage) -> bytes:
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
        """All messages of a portion are stored or, after a failure, the first `stored_count`."""
        channel = self._channel
        for span in portion:
            count = span.count
            self._count -= count
            stored = count if failure is None else min(count, stored_count)
            stored_count -= stored
            if channel.in_transit.moved(span, stored):
                channel.dead_letter_count += stored
            if stored < count:
                channel.in_transit.put_back(span, delay_ns=RETRY_NS)
        if failure is not None:
            self._refused_until_ns = self._clock.monotonic_ns() + RETRY_NS
            _log.error(
                "CHANNEL(%s): dead letters could not be published to %s - %s",
                channel.name,
                self.policy.dead_letter_topic,
                failure,
            )
        channel.pump()


def _published(bodies: Sequence[bytes]) -> tuple[bytes, Sequence[int]]:
    """Bodies in the layout that `Topic.publish` takes, and where each ends."""
    blob = b"".join([PUBLISHED_HEADER.pack(len(body)) + body for body in bodies])
    return blob, list(accumulate(PUBLISHED_HEADER.size + len(body) for body in bodies))


def _pieces(span: Span) -> list[Span]:
    """The same messages in spans that each fit into one portion."""
    pieces: list[Span] = []
    while span.count:
        fitting = span.batch.fitting(span.start, max_count=min(PIECE_COUNT, span.count), max_bytes=PIECE_BYTES)
        pieces.append(span.split(fitting))
    return pieces


# Policies.

_Key: TypeAlias = tuple[str, str]
"""Topic and channel."""


class PolicyBook:
    """The policies of all channels. Owned by the broker.

    Those of ephemeral channels are not saved. A saved policy of a channel that does not exist yet is kept for it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._policies: dict[_Key, ChannelPolicy] = {}

    def load(self) -> None:
        """Bring back the policies of an earlier run. StorageError if they cannot be read."""
        for entry in self._store.load_policies():
            self._policies[entry.topic, entry.channel] = entry.policy

    def get(self, channel: Channel) -> ChannelPolicy | None:
        return self._policies.get(_key(channel))

    def set(self, channel: Channel, policy: ChannelPolicy | None) -> None:
        """Replace the policy of a channel by a checked one; None removes it. StorageError leaves all as it was."""
        if policy == self.get(channel):
            return
        changed = dict(self._policies)
        if policy is None:
            changed.pop(_key(channel), None)
        else:
            changed[_key(channel)] = policy
        self._save(changed)
        self._policies = changed

    def forget(self, channel: Channel) -> None:
        """The channel has been deleted."""
        try:
            self.set(channel, None)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to remove its policy - %s", channel.name, failure)

    def forget_topic(self, topic: str) -> None:
        """The topic has been deleted, with all its channels."""
        kept = {key: policy for key, policy in self._policies.items() if key[0] != topic}
        if len(kept) == len(self._policies):
            return
        try:
            self._save(kept)
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to remove its policies - %s", topic, failure)
        else:
            self._policies = kept

    def check(self, topic: str, channel: str, policy: ChannelPolicy) -> None:
        """PolicyCycleError if dead letters of the topic would come back to it."""
        if topic in self.reached(topic, channel, policy):
            raise PolicyCycleError(topic, dead_letter_topic=policy.dead_letter_topic)

    def reached(self, topic: str, channel: str, policy: ChannelPolicy) -> frozenset[str]:
        """Where dead letters come by this policy of a channel, and from there by the policies of other channels."""
        others = {key: other for key, other in self._policies.items() if key != (topic, channel)}
        return _closure(
            policy.dead_letter_topic,
            lambda names: {other.dead_letter_topic for key, other in others.items() if key[0] in names},
        )

    def sources(self, topic: str) -> frozenset[str]:
        """This topic, and those whose dead letters come to it, also by way of others."""
        return _closure(
            topic,
            lambda names: {key[0] for key, policy in self._policies.items() if policy.dead_letter_topic in names},
        )

    def _save(self, policies: dict[_Key, ChannelPolicy]) -> None:
        entries = [
            PolicyEntry(topic, channel, policy)
            for (topic, channel), policy in policies.items()
            if not is_ephemeral(topic) and not is_ephemeral(channel)
        ]
        self._store.save_policies(entries)


def _key(channel: Channel) -> _Key:
    return channel.topic_name, channel.name


def _closure(name: str, neighbours: Callable[[frozenset[str]], Iterable[str]]) -> frozenset[str]:
    """This name, its neighbours, the neighbours of those, and so on."""
    reached = newly = frozenset((name,))
    while newly:
        newly = frozenset(neighbours(newly)) - reached
        reached |= newly
    return reached


# Redrive.

REDRIVE_PORTION_COUNT = 500
REDRIVE_PORTION_BYTES = 192 * 1024
"""What is moved in one turn of the event loop: some milliseconds of work. It fits into one batch, so that it is known
how much of it was stored."""
MAX_LEFT_COUNT = 10_000
"""A redrive ends when so many messages stay, because they are held in memory."""

PublishTo = Callable[[str, bytes, Sequence[int]], Pending | None]
"""As `Topic.publish_durably` of the topic of that name; it is created if there is none."""


class _Traveller(NamedTuple):
    """A message on its way to its target. The span holds it alone."""

    span: Span
    target: RedriveTarget


class Redrive:
    """One run over one channel.

    The caller calls `next_portion` until `is_done`, each time when the last portion is settled; then `end`, also after
    a failure. `to` is the topic to publish to, instead of those that the envelopes name.
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
        """Settled when all groups of the portion under way have ended."""
        self._groups_under_way = 0
        """A group is the messages of a portion that go to one topic."""
        self._failure: Exception | None = None
        self._left: list[Span] = []
        """Messages that stay because they have no target."""
        self.moved_count = 0

    @property
    def is_done(self) -> bool:
        """Whether there is nothing more to be moved."""
        is_enough = self.moved_count >= self._max_count or len(self._left) >= MAX_LEFT_COUNT
        return is_enough or self._unseen_count <= 0

    @property
    def left_count(self) -> int:
        """How many messages stay because they have no target."""
        return len(self._left)

    def end(self) -> None:
        """Give the messages that stay back to the channel."""
        for span in self._left:
            self._channel.in_transit.put_back(span)
        self._channel.pump()

    def next_portion(self) -> Pending:
        """Move some messages; settled when they are stored in their topics, or with the reason why some are not."""
        self._portion = Pending()
        groups: dict[str, list[_Traveller]] = {}
        for traveller in self._take():
            groups.setdefault(traveller.target.topic, []).append(traveller)
        self._groups_under_way = len(groups) + 1
        for topic, travellers in groups.items():
            self._publish(topic, travellers)
        self._group_ended()
        return self._portion

    def _take(self) -> list[_Traveller]:
        """Take the next messages out of the channel; those that have a target."""
        room = min(REDRIVE_PORTION_COUNT, self._unseen_count, self._max_count - self.moved_count)
        taken = self._channel.take_out(max_count=room, max_bytes=REDRIVE_PORTION_BYTES)
        if taken is None:
            self._unseen_count = 0  # consumers were faster, or the queue cannot be read now
            return []
        singles = [
            Span(span.batch, index, index + 1, span.attempts)
            for span in taken
            for index in range(span.start, span.stop)
        ]
        self._unseen_count -= max(1, len(singles))  # at least one was taken, even if it had to be deferred
        self._channel.in_transit.add(singles)
        travellers: list[_Traveller] = []
        for span in singles:
            (message,) = span.messages(1)
            target = target_of(message.body, to=self._to)
            if target is None or target.topic == self._channel.topic_name:
                self._left.append(span)
            else:
                travellers.append(_Traveller(span, target))
        return travellers

    def _publish(self, topic: str, travellers: list[_Traveller]) -> None:
        try:
            pending = self._publish_to(topic, *_published([traveller.target.body for traveller in travellers]))
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
        """The first `stored_count` are stored in their topic; the others stay."""
        channel = self._channel
        for traveller in travellers[:stored_count]:
            channel.in_transit.moved(traveller.span, 1)
        for traveller in travellers[stored_count:]:
            channel.in_transit.put_back(traveller.span)
        self.moved_count += stored_count
        channel.redriven_count += stored_count
        self._failure = self._failure or failure
        self._group_ended()

    def _group_ended(self) -> None:
        self._groups_under_way -= 1
        if not self._groups_under_way:
            self._channel.pump()
            self._portion.settle(self._failure)
