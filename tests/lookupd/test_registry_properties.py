"""Whatever producers and operators do, the registry answers as the flat map of the specification would."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.lookupd.registry import Registry, TopicProducer
from tests.lookupd.registry_model import RegistryModel
from tests.lookupd.rig import new_peer

SETTINGS = {"inactive_timeout_ns": 30 * NS_PER_SECOND, "tombstone_lifetime_ns": 20 * NS_PER_SECOND}

# Few names, so that they meet.
producer_ids = st.sampled_from(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"])
nodes = st.sampled_from(["a:1", "b:1", "unknown:1"])
topic_names = st.sampled_from(["t", "u", "e#ephemeral"])
topic_patterns = topic_names | st.just("*") | st.just("unknown")
channel_names = st.sampled_from(["c", "d", "k#ephemeral"])
optional_channels = st.none() | channel_names


class RegistryMachine(RuleBasedStateMachine):
    """Does the same to the registry and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.registry = Registry(clock=self.clock, **SETTINGS)
        self.model = RegistryModel(clock=self.clock, **SETTINGS)
        self.connected: dict[str, TopicProducer] = {}

    @rule(producer_id=producer_ids, node=st.sampled_from(["a", "b"]))
    def connect(self, producer_id: str, node: str) -> None:
        if producer_id in self.connected:
            self.model.disconnect(producer_id)
        self.connected[producer_id] = self.registry.connect(new_peer(producer_id, broadcast_address=node, http_port=1))
        self.model.connect(producer_id, node=f"{node}:1")

    @rule(producer_id=producer_ids)
    def disconnect(self, producer_id: str) -> None:
        if producer_id in self.connected:
            self.registry.disconnect(self.connected.pop(producer_id))
            self.model.disconnect(producer_id)

    @rule(producer_id=producer_ids)
    def hear(self, producer_id: str) -> None:
        if producer_id in self.connected:
            self.registry.hear(self.connected[producer_id])
            self.model.hear(producer_id)

    @rule(producer_id=producer_ids, topic=topic_names, channel=optional_channels)
    def register(self, producer_id: str, topic: str, channel: str | None) -> None:
        if producer_id in self.connected:
            self.registry.register(self.connected[producer_id], topic=topic, channel=channel)
            self.model.register(producer_id, topic, channel)

    @rule(producer_id=producer_ids, topic=topic_names, channel=optional_channels)
    def unregister(self, producer_id: str, topic: str, channel: str | None) -> None:
        if producer_id not in self.connected:
            return
        producer = self.connected[producer_id]
        expected = self.model.unregister(producer_id, topic, channel)
        if channel is None:
            assert sorted(self.registry.unregister_topic(producer, topic)) == sorted(expected)
        else:
            self.registry.unregister_channel(producer, topic=topic, channel=channel)

    @rule(topic=topic_names, channel=optional_channels)
    def create(self, topic: str, channel: str | None) -> None:
        self.model.create(topic, channel)
        if channel is None:
            self.registry.create_topic(topic)
        else:
            self.registry.create_channel(topic=topic, channel=channel)

    @rule(topic=topic_patterns)
    def delete_topic(self, topic: str) -> None:
        self.registry.delete_topic(topic)
        self.model.delete_topic(topic)

    @rule(topic=topic_names, channel=channel_names)
    def delete_channel(self, topic: str, channel: str) -> None:
        deleted = self.registry.delete_channel(topic=topic, channel=channel)
        assert deleted == self.model.delete_channel(topic, channel)

    @rule(topic=topic_patterns, node=nodes)
    def tombstone(self, topic: str, node: str) -> None:
        self.registry.tombstone(topic=topic, node=node)
        self.model.tombstone(topic, node)

    @rule(seconds=st.sampled_from([1, 10, 20, 30]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @invariant()
    def names_agree(self) -> None:
        assert sorted(self.registry.topics()) == sorted(self.model.topics())
        assert self.registry.topic_count == len(self.model.topics())
        assert self.registry.channel_count == len(self.model.find("channel", "*", "*"))
        for topic in ("t", "u", "e#ephemeral", "*", "unknown"):
            assert self.registry.has_topic(topic) == bool(self.model.find("topic", topic, ""))
            assert sorted(self.registry.channels(topic)) == sorted(self.model.channels(topic))

    @invariant()
    def producers_agree(self) -> None:
        for topic in ("t", "u", "e#ephemeral", "*", "unknown"):
            found = [producer.peer.remote_address for producer in self.registry.producers_of(topic)]
            assert sorted(found) == sorted(self.model.producers_of(topic))
        assert {
            producer.peer.remote_address: {
                topic: self.registry.is_tombstoned(producer, topic) for topic in producer.topics
            }
            for producer in self.registry.active_producers()
        } == self.model.nodes()

    @invariant()
    def counts_agree(self) -> None:
        keys = {key: held for key, held in self.model.keys.items() if key[0] != "client"}
        assert self.registry.unused_count == sum(not held for held in keys.values())
        for producer_id, producer in self.connected.items():
            assert producer.key_count == sum(producer_id in held for held in keys.values())

    @invariant()
    def registrations_agree(self) -> None:
        found = {
            ("channel" if key[1] else "topic", *key): {each.peer.remote_address for each in self.registry.holders(key)}
            for key in self.registry.all_keys()
        }
        expected = {key: set(held) for key, held in self.model.keys.items() if key[0] != "client"}
        assert found == expected


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=100, stateful_step_count=40)
