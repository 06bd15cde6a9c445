"""Which nsqd has which topic: the database of nsqlookupd, without I/O.

There are two kinds of *key*, topics and channels of topics, and each key has the *producers* (connected nsqds) that
registered it. The rules, which are those of the reference but for the last two:

- Keys outlive their producers. A key goes when an operator deletes it, or, if its name is ephemeral, when a
  producer unregisters it and no other is left. Disconnecting is not unregistering: then even ephemeral keys stay.
- Registering again changes nothing.
- A tombstone hides one producer from the look-ups of one topic until it has lasted its lifetime, or until the producer
  unregisters the topic; registering again does not clear it.
- A producer that has been silent for the inactivity timeout is hidden too, until it is heard of again.
- Keys may exist without each other: a channel's topic may have been ephemeral and gone.
- A producer may register so many keys and no more (TooManyKeysError). When all producers together have more different
  ones than there may be, the registry is *crowded*, and the one that has the most is to be sent away.
- A key without producers is *unused*. One that has been unused for its lifetime is forgotten, and so is the one that
  was unused for longest when there are more than MAX_UNUSED_KEYS. Else what one client made up would stay for ever.

The topic `*` in a question, in `tombstone` and in `delete_topic` means every topic. No topic can be called so.

Indexes. Topics are found by name, channels by topic, and each producer knows its topics, so only `*` visits all keys. A
producer has no list of its channels: registering a channel registers its topic too, and unregistering a topic
unregisters its channels, so all channels of a producer are channels of its topics.

Portions. A producer that leaves is found no more at once. Of very many keys it is cleared away some at a time
(`clear_away`), because other clients wait meanwhile; the same holds for keys that are forgotten (`forget_unused`).

A large cluster has hundreds of thousands of keys, most with few producers. A key costs a name and one small dict.
Names are interned, for the same ones occur again and again: in every producer's list, and in channels of many topics.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import NamedTuple

from emberq.base.clock import Clock
from emberq.http.message import encode_json
from emberq.wire.lookup import NsqdIdentity
from emberq.wire.parameter import is_ephemeral

EVERY_TOPIC = "*"
MAX_UNUSED_KEYS = 100_000
"""Some 40 MB. Those of an nsqd that is restarted are unused for some seconds, and it may have very many."""
CLEARED_AT_ONCE = 500
"""Keys of a producer that leaves; to clear them away takes a few milliseconds."""
NO_LIMIT = 1 << 62
_GONE_NS = -NO_LIMIT

Key = tuple[str, str]
"""A topic, and the channel of it; empty for the topic itself."""


class TooManyKeysError(Exception):
    """A producer has registered as many topics and channels as it may."""


class RegisteredNsqd:
    """An nsqd: where its connection comes from, and what it said of itself. Immutable."""

    __slots__ = ("encoded", "identity", "node", "remote_address")

    def __init__(self, remote_address: str, identity: NsqdIdentity) -> None:
        self.remote_address = remote_address
        """`ip:port` of its connection: its id."""
        self.identity = identity
        self.node = f"{identity.broadcast_address}:{identity.http_port}"
        """The name by which operators tombstone it."""
        self.encoded = encode_json({"remote_address": remote_address, **asdict(identity)}).decode()
        """The JSON that look-ups show, in the order of the reference. It is read far more often than made."""

    def __repr__(self) -> str:
        return f"<Peer {self.remote_address} ({self.node})>"


class TopicProducer:
    """A connected nsqd. Owned by the registry; others read it."""

    __slots__ = ("heard_ns", "key_count", "peer", "tombstones", "topics")

    def __init__(self, peer: RegisteredNsqd, *, heard_ns: int) -> None:
        self.peer = peer
        self.heard_ns = heard_ns
        """When it last sent anything, by the monotonic clock; before all time once it is gone."""
        self.key_count = 0
        """Topics and channels that it has."""
        self.topics: dict[str, None] = {}
        """The topics it registered, in that order; a dict because it is the smallest ordered set there is."""
        self.tombstones: dict[str, int] = {}
        """The topics it is tombstoned for, and since when, by the monotonic clock. Expired ones stay, unused."""

    def __repr__(self) -> str:
        return f"<Producer {self.peer.remote_address} ({self.peer.node}), {len(self.topics)} topics>"


class NewKeys(NamedTuple):
    """Which keys a registration made the producer a holder of."""

    topic: bool
    channel: bool


Producers = dict[str, TopicProducer]
"""By their ids."""


class Registry:
    """All keys and producers. One owner, one thread: the daemon's."""

    def __init__(
        self,
        *,
        clock: Clock,
        inactive_timeout_ns: int,
        tombstone_lifetime_ns: int,
        unused_lifetime_ns: int = NO_LIMIT,
        max_keys_of_producer: int = NO_LIMIT,
        max_keys: int = NO_LIMIT,
    ) -> None:
        self._clock = clock
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._unused_lifetime_ns = unused_lifetime_ns
        self._max_keys_of_producer = max_keys_of_producer
        self._max_keys = max_keys
        self._producers: Producers = {}
        self._topics: dict[str, Producers] = {}
        self._channels: dict[str, dict[str, Producers]] = {}
        """By topic, then by name."""
        self._channel_count = 0
        self._leaving: deque[Iterator[None]] = deque()
        """Producers that are gone while some keys still name them; each step clears away one key."""
        self._unused: dict[Key, int] = {}
        """Keys without producers and since when, by the monotonic clock; the one that is unused for longest first."""

    # What producers do.

    def connect(self, peer: RegisteredNsqd) -> TopicProducer:
        """A new producer, without topics."""
        stale = self._producers.get(peer.remote_address)
        if stale is not None:  # an address comes again only after its connection has ended
            self.disconnect(stale)
        producer = TopicProducer(peer, heard_ns=self._clock.monotonic_ns())
        self._producers[peer.remote_address] = producer
        return producer

    def hear(self, producer: TopicProducer) -> None:
        """The producer has sent something."""
        producer.heard_ns = self._clock.monotonic_ns()

    def register(self, producer: TopicProducer, *, topic: str, channel: str | None = None) -> NewKeys:
        """The producer has this topic and, if named, this channel of it; returns what it did not have before.

        TooManyKeysError if it has enough; then nothing has changed.
        """
        if producer.key_count >= self._max_keys_of_producer and not self._has(producer, topic, channel):
            raise TooManyKeysError
        is_new_channel = False
        if channel is not None:
            is_new_channel = self._hold(self._channel_key(topic, channel), producer, (topic, channel))
        is_new_topic = self._hold(self._topic_key(topic), producer, (topic, ""))
        producer.topics[sys.intern(topic)] = None
        return NewKeys(topic=is_new_topic, channel=is_new_channel)

    def _has(self, producer: TopicProducer, topic: str, channel: str | None) -> bool:
        producer_id = producer.peer.remote_address
        has_channel = channel is None or self._channels.get(topic, {}).get(channel, {}).get(producer_id) is producer
        return has_channel and self._topics.get(topic, {}).get(producer_id) is producer

    def _hold(self, holders: Producers, producer: TopicProducer, key: Key) -> bool:
        """Make the producer one of a key's holders; False if it was one before."""
        producer_id = producer.peer.remote_address
        if holders.get(producer_id) is producer:
            return False
        if not holders:
            self._unused.pop(key, None)
        holders[producer_id] = producer
        producer.key_count += 1
        return True

    def _let_go(self, holders: Producers, producer: TopicProducer) -> bool:
        """Make the producer none of a key's holders; False if it was none before."""
        producer_id = producer.peer.remote_address
        if holders.get(producer_id) is not producer:
            return False
        del holders[producer_id]
        producer.key_count -= 1
        return True

    def unregister_channel(self, producer: TopicProducer, *, topic: str, channel: str) -> bool:
        """The producer no longer has this channel; False if it did not have it."""
        holders = self._channels.get(topic, {}).get(channel)
        if holders is None:
            return False
        had_it = self._let_go(holders, producer)
        if not holders and is_ephemeral(channel):
            self.delete_channel(topic=topic, channel=channel)
        elif had_it and not holders:
            self._now_unused((topic, channel))
        return had_it

    def unregister_topic(self, producer: TopicProducer, topic: str) -> list[str]:
        """The producer no longer has this topic; returns the channels of it that it still had."""
        producer_id = producer.peer.remote_address
        channels = self._channels.get(topic, {})
        still_registered = [name for name, holders in channels.items() if holders.get(producer_id) is producer]
        for channel in still_registered:
            self.unregister_channel(producer, topic=topic, channel=channel)
        producer.topics.pop(topic, None)
        producer.tombstones.pop(topic, None)
        holders = self._topics.get(topic)
        if holders is not None:
            had_it = self._let_go(holders, producer)
            if not holders and is_ephemeral(topic):
                self._unused.pop((topic, ""), None)
                del self._topics[topic]
            elif had_it and not holders:
                self._now_unused((topic, ""))
        return still_registered

    def disconnect(self, producer: TopicProducer) -> None:
        """The producer is gone; all its keys stay. Does nothing if it is gone already.

        If it has very many, `clear_away` is to be called until all is done.
        """
        producer_id = producer.peer.remote_address
        if self._producers.get(producer_id) is not producer:
            return
        del self._producers[producer_id]
        producer.heard_ns = _GONE_NS
        self._leaving.append(self._released(producer))
        if producer.key_count <= CLEARED_AT_ONCE:
            for _ in self._leaving.pop():
                pass

    def clear_away(self, *, limit: int) -> bool:
        """Take producers that are gone out of their keys, at most of so many; whether more are to be cleared away."""
        while limit > 0 and self._leaving:
            cleared = sum(1 for _ in islice(self._leaving[0], limit))
            if cleared < limit:
                self._leaving.popleft()
            limit -= cleared
        return bool(self._leaving)

    def _released(self, producer: TopicProducer) -> Iterator[None]:
        """Takes the producer out of one key at each step. Between two steps anything may happen to the keys."""
        for topic in list(producer.topics):
            for channel in ("", *self._channels.get(topic, ())):
                holders = self._channels.get(topic, {}).get(channel) if channel else self._topics.get(topic)
                if holders is not None and self._let_go(holders, producer) and not holders:
                    self._now_unused((topic, channel))
                yield

    # What operators do.

    def create_topic(self, topic: str) -> None:
        """Create the key of a topic, if it does not exist."""
        if not self._topic_key(topic):
            self._now_unused((topic, ""))

    def create_channel(self, *, topic: str, channel: str) -> None:
        """Create the keys of a channel and its topic, if they do not exist."""
        if not self._channel_key(topic, channel):
            self._now_unused((topic, channel))
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget the topic, or every topic, with all channels. Producers do not register them again by themselves."""
        for name in list(self._matching(topic, self._topics)):
            self._unused.pop((name, ""), None)
            for producer in self._topics.pop(name).values():
                producer.key_count -= 1
                producer.topics.pop(name, None)
                producer.tombstones.pop(name, None)
        for name in list(self._matching(topic, self._channels)):
            for channel in list(self._channels[name]):
                self.delete_channel(topic=name, channel=channel)

    def delete_channel(self, *, topic: str, channel: str) -> bool:
        """Forget the channel; False if it does not exist."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        self._unused.pop((topic, channel), None)
        self._channel_count -= 1
        for producer in channels.pop(channel).values():
            producer.key_count -= 1
        if not channels:
            del self._channels[topic]
        return True

    def tombstone(self, *, topic: str, node: str) -> None:
        """Hide the producers called `node` from look-ups of the topic, or with `*` of each of their topics."""
        now_ns = self._clock.monotonic_ns()
        for name in self._matching(topic, self._topics):
            for producer in self._topics[name].values():
                if producer.peer.node == node:
                    producer.tombstones[sys.intern(name)] = now_ns

    # Keys without producers.

    def forget_unused(self, *, limit: int) -> bool:
        """Forget keys that have been unused for their lifetime, at most `limit`; whether more are to be forgotten."""
        oldest_ns = self._clock.monotonic_ns() - self._unused_lifetime_ns
        for _ in range(limit):
            key, since_ns = next(iter(self._unused.items()), (None, 0))
            if key is None or since_ns > oldest_ns:
                return False
            self._forget(key)
        return True

    def _now_unused(self, key: Key) -> None:
        """The last producer of a key is gone, or an operator asked for the key: its lifetime begins."""
        self._unused.pop(key, None)
        self._unused[sys.intern(key[0]), sys.intern(key[1])] = self._clock.monotonic_ns()
        if len(self._unused) > MAX_UNUSED_KEYS:
            self._forget(next(iter(self._unused)))

    def _forget(self, key: Key) -> None:
        topic, channel = key
        if channel:
            self.delete_channel(topic=topic, channel=channel)
        else:
            del self._unused[key]
            del self._topics[topic]

    @property
    def unused_count(self) -> int:
        """Keys without producers."""
        return len(self._unused)

    # Look-ups.

    def has_topic(self, topic: str) -> bool:
        """Whether the topic exists; with `*`, whether any does."""
        return any(True for _ in self._matching(topic, self._topics))

    def topics(self) -> Iterable[str]:
        """The names of all topics, each once."""
        return self._topics.keys()

    def channels(self, topic: str) -> Iterable[str]:
        """The names of the channels of a topic, or of all topics, each once."""
        if topic != EVERY_TOPIC:
            return self._channels.get(topic, {}).keys()
        return dict.fromkeys(chain.from_iterable(self._channels.values())).keys()

    def producers_of(self, topic: str) -> list[TopicProducer]:
        """The producers of a topic, or of any topic, that are neither inactive nor tombstoned for it; each once."""
        if topic == EVERY_TOPIC:
            return [producer for producer in self.active_producers() if self._is_shown_somewhere(producer)]
        is_active, holders = self._activity_test(), self._topics.get(topic, {})
        return [
            producer
            for producer in holders.values()
            if is_active(producer) and not (producer.tombstones and self.is_tombstoned(producer, topic))
        ]

    def _is_shown_somewhere(self, producer: TopicProducer) -> bool:
        """Whether it has a topic for which no tombstone hides it."""
        if not producer.tombstones:
            return bool(producer.topics)
        return any(not self.is_tombstoned(producer, topic) for topic in producer.topics)

    def active_producers(self) -> list[TopicProducer]:
        """Every producer that is not inactive, whatever its tombstones."""
        return list(filter(self._activity_test(), self._producers.values()))

    def is_tombstoned(self, producer: TopicProducer, topic: str) -> bool:
        """Whether a tombstone hides the producer from look-ups of the topic now."""
        tombstoned_ns = producer.tombstones.get(topic)
        return tombstoned_ns is not None and self._clock.monotonic_ns() - tombstoned_ns < self._tombstone_lifetime_ns

    def all_keys(self) -> list[Key]:
        """Every key, with or without producers."""
        topics = [(topic, "") for topic in self._topics]
        return topics + [(topic, channel) for topic, channels in self._channels.items() for channel in channels]

    def holders(self, key: Key) -> list[TopicProducer]:
        """The producers that have registered a key; none if there is no such key."""
        topic, channel = key
        holders = self._channels.get(topic, {}).get(channel, {}) if channel else self._topics.get(topic, {})
        return [producer for producer in holders.values() if producer.heard_ns != _GONE_NS]

    @property
    def producers(self) -> Collection[TopicProducer]:
        """Every connected producer."""
        return self._producers.values()

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def channel_count(self) -> int:
        return self._channel_count

    @property
    def is_crowded(self) -> bool:
        """Whether producers have more keys than there may be, and none is just leaving with some of them."""
        used_count = len(self._topics) + self._channel_count - len(self._unused)
        return used_count > self._max_keys and not self._leaving

    # Keys.

    def _topic_key(self, topic: str) -> Producers:
        holders = self._topics.get(topic)
        if holders is None:
            holders = self._topics[sys.intern(topic)] = {}
        return holders

    def _channel_key(self, topic: str, channel: str) -> Producers:
        channels = self._channels.get(topic)
        if channels is None:
            channels = self._channels[sys.intern(topic)] = {}
        holders = channels.get(channel)
        if holders is None:
            holders = channels[sys.intern(channel)] = {}
            self._channel_count += 1
        return holders

    @staticmethod
    def _matching(topic: str, keys: dict[str, dict[str, Producers]] | dict[str, Producers]) -> Iterable[str]:
        """The existing names that `topic` stands for."""
        if topic == EVERY_TOPIC:
            return keys
        return (topic,) if topic in keys else ()

    def _activity_test(self) -> Callable[[TopicProducer], bool]:
        oldest_ns = self._clock.monotonic_ns() - self._inactive_timeout_ns
        return lambda producer: producer.heard_ns >= oldest_ns
