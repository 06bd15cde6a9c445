"""Which nsqd has which topic: the database of nsqlookupd, without I/O.

There are two kinds of *key*, topics and channels of topics, and each key has the *producers* (connected nsqds) that
registered it. The rules, which are those of the reference:

- Keys outlive their producers. A key goes only when an operator deletes it, or, if its name is ephemeral, when a
  producer unregisters it and no other is left. Disconnecting is not unregistering: then even ephemeral keys stay.
- Registering again changes nothing.
- A tombstone hides one producer from the look-ups of one topic until it has lasted its lifetime, or until the producer
  unregisters the topic; registering again does not clear it.
- A producer that has been silent for the inactivity timeout is hidden too, until it is heard of again.
- Keys may exist without each other: a channel's topic may have been ephemeral and gone.

The topic `*` in a question, in `tombstone` and in `delete_topic` means every topic. No topic can be called so.

Indexes. Topics are found by name, channels by topic, and each producer knows its topics, so only `*` visits all keys. A
producer has no list of its channels: registering a channel registers its topic too, and unregistering a topic
unregisters its channels, so all channels of a producer are channels of its topics.

A large cluster has hundreds of thousands of keys, most with few producers. A key costs a name and one small dict.
Names are interned, for the same ones occur again and again: in every producer's list, and in channels of many topics.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import NamedTuple

from emberq.base.clock import Clock
from emberq.http.message import encode_json
from emberq.wire.lookup import NsqdIdentity
from emberq.wire.parameter import is_ephemeral

EVERY_TOPIC = "*"


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

    __slots__ = ("heard_ns", "peer", "tombstones", "topics")

    def __init__(self, peer: RegisteredNsqd, *, heard_ns: int) -> None:
        self.peer = peer
        self.heard_ns = heard_ns
        """When it last sent anything, by the monotonic clock."""
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

    def __init__(self, *, clock: Clock, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._clock = clock
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._producers: Producers = {}
        self._topics: dict[str, Producers] = {}
        self._channels: dict[str, dict[str, Producers]] = {}
        """By topic, then by name."""

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
        """The producer has this topic and, if named, this channel of it; returns what it did not have before."""
        producer_id = producer.peer.remote_address
        is_new_channel = False
        if channel is not None:
            holders = self._channel_key(topic, channel)
            is_new_channel = producer_id not in holders
            holders[producer_id] = producer
        holders = self._topic_key(topic)
        is_new_topic = producer_id not in holders
        holders[producer_id] = producer
        producer.topics[sys.intern(topic)] = None
        return NewKeys(topic=is_new_topic, channel=is_new_channel)

    def unregister_channel(self, producer: TopicProducer, *, topic: str, channel: str) -> bool:
        """The producer no longer has this channel; False if it did not have it."""
        holders = self._channels.get(topic, {}).get(channel)
        if holders is None:
            return False
        had_it = holders.pop(producer.peer.remote_address, None) is not None
        if not holders and is_ephemeral(channel):
            self.delete_channel(topic=topic, channel=channel)
        return had_it

    def unregister_topic(self, producer: TopicProducer, topic: str) -> list[str]:
        """The producer no longer has this topic; returns the channels of it that it still had."""
        producer_id = producer.peer.remote_address
        channels = self._channels.get(topic, {})
        still_registered = [channel for channel, holders in channels.items() if producer_id in holders]
        for channel in still_registered:
            self.unregister_channel(producer, topic=topic, channel=channel)
        producer.topics.pop(topic, None)
        producer.tombstones.pop(topic, None)
        holders = self._topics.get(topic)
        if holders is not None:
            holders.pop(producer_id, None)
            if not holders and is_ephemeral(topic):
                del self._topics[topic]
        return still_registered

    def disconnect(self, producer: TopicProducer) -> None:
        """The producer is gone; all its keys stay. Does nothing if it is gone already."""
        producer_id = producer.peer.remote_address
        if self._producers.get(producer_id) is not producer:
            return
        del self._producers[producer_id]
        for topic in producer.topics:
            self._topics[topic].pop(producer_id, None)
            for holders in self._channels.get(topic, {}).values():
                holders.pop(producer_id, None)

    # What operators do.

    def create_topic(self, topic: str) -> None:
        """Create the key of a topic, if it does not exist."""
        self._topic_key(topic)

    def create_channel(self, *, topic: str, channel: str) -> None:
        """Create the keys of a channel and its topic, if they do not exist."""
        self._channel_key(topic, channel)
        self._topic_key(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget the topic, or every topic, with all channels. Producers do not register them again by themselves."""
        for name in list(self._matching(topic, self._topics)):
            for producer in self._topics.pop(name).values():
                producer.topics.pop(name, None)
                producer.tombstones.pop(name, None)
        for name in list(self._matching(topic, self._channels)):
            del self._channels[name]

    def delete_channel(self, *, topic: str, channel: str) -> bool:
        """Forget the channel; False if it does not exist."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        del channels[channel]
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
        is_active = self._activity_test()
        found: Producers = {}
        for name in self._matching(topic, self._topics):
            for producer_id, producer in self._topics[name].items():
                if is_active(producer) and not (producer.tombstones and self.is_tombstoned(producer, name)):
                    found[producer_id] = producer
        return list(found.values())

    def active_producers(self) -> list[TopicProducer]:
        """Every producer that is not inactive, whatever its tombstones."""
        return list(filter(self._activity_test(), self._producers.values()))

    def is_tombstoned(self, producer: TopicProducer, topic: str) -> bool:
        """Whether a tombstone hides the producer from look-ups of the topic now."""
        tombstoned_ns = producer.tombstones.get(topic)
        return tombstoned_ns is not None and self._clock.monotonic_ns() - tombstoned_ns < self._tombstone_lifetime_ns

    def registrations(self) -> Iterator[tuple[str, str, Producers]]:
        """Every key that has producers: topic, channel (empty for a topic) and producers."""
        for topic, holders in self._topics.items():
            if holders:
                yield topic, "", holders
        for topic, channels in self._channels.items():
            for channel, holders in channels.items():
                if holders:
                    yield topic, channel, holders

    @property
    def producers(self) -> Collection[TopicProducer]:
        """Every connected producer."""
        return self._producers.values()

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def channel_count(self) -> int:
        return sum(map(len, self._channels.values()))

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
