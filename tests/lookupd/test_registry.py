"""The registry's rules one by one; `test_registry_properties` has them all at once."""

from __future__ import annotations

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.lookupd.registry import Registry, TopicProducer
from tests.lookupd.rig import new_peer


@pytest.fixture
def registry(clock: ManualClock) -> Registry:
    return Registry(clock=clock, inactive_timeout_ns=300 * NS_PER_SECOND, tombstone_lifetime_ns=45 * NS_PER_SECOND)


def connect(registry: Registry, number: int) -> TopicProducer:
    """The producer of that number: 10.0.0.1:1 called node1:4151, and so on."""
    return registry.connect(new_peer(f"10.0.0.{number}:1", broadcast_address=f"node{number}"))


@pytest.mark.conformance(226)
def test_producers_are_found_by_key_and_by_wildcard_and_keys_stay_until_they_are_deleted(registry: Registry) -> None:
    first, second, third = (connect(registry, number) for number in (1, 2, 3))
    registry.register(first, topic="a")
    registry.register(second, topic="a", channel="b")
    registry.register(third, topic="d")
    registry.register(first, topic="t")

    assert registry.producers_of("a") == [first, second]
    assert list(registry.topics()) == ["a", "d", "t"]
    assert {channel: list(holders.values()) for _, channel, holders in registry.registrations() if channel} == {
        "b": [second]
    }
    assert list(registry.channels("*")) == ["b"]
    assert set(registry.producers_of("*")) == {first, second, third}

    registry.tombstone(topic="a", node="node1:4151")
    assert registry.producers_of("a") == [second]
    assert registry.producers_of("t") == [first]

    registry.delete_topic("d")
    registry.delete_topic("t")
    for producer in (first, second, third):
        registry.disconnect(producer)
    assert (list(registry.topics()), list(registry.channels("a"))) == (["a"], ["b"])
    assert registry.delete_channel(topic="a", channel="b")
    registry.delete_topic("a")
    assert (registry.topic_count, registry.channel_count) == (0, 0)


def test_a_producer_whose_address_comes_again_replaces_the_one_before(registry: Registry) -> None:
    before = connect(registry, 1)
    registry.register(before, topic="t", channel="c")
    after = connect(registry, 1)
    assert registry.producers_of("t") == []
    registry.register(after, topic="t")
    registry.disconnect(before)
    assert registry.producers_of("t") == [after]


def test_unregistering_a_topic_tells_which_channels_were_still_registered(registry: Registry) -> None:
    producer, other = connect(registry, 1), connect(registry, 2)
    registry.register(producer, topic="t", channel="b")
    registry.register(producer, topic="t", channel="c")
    registry.unregister_channel(producer, topic="t", channel="b")
    registry.register(other, topic="t", channel="d")
    assert registry.unregister_topic(producer, "t") == ["c"]
    assert registry.unregister_topic(producer, "t") == []
    assert list(registry.channels("t")) == ["b", "c", "d"]


def test_a_channel_may_outlive_its_ephemeral_topic(registry: Registry) -> None:
    producer = connect(registry, 1)
    registry.register(producer, topic="t#ephemeral", channel="c")
    registry.unregister_topic(producer, "t#ephemeral")
    assert not registry.has_topic("t#ephemeral")
    assert list(registry.channels("t#ephemeral")) == ["c"]
    registry.delete_topic("t#ephemeral")
    assert list(registry.channels("t#ephemeral")) == []


def test_a_deleted_topic_can_be_registered_anew_without_its_tombstone(registry: Registry) -> None:
    producer = connect(registry, 1)
    registry.register(producer, topic="t")
    registry.tombstone(topic="t", node="node1:4151")
    registry.delete_topic("t")
    assert list(producer.topics) == []
    registry.register(producer, topic="t")
    assert registry.producers_of("t") == [producer]


def test_a_tombstone_for_every_topic_hides_all_topics_of_that_node_alone(registry: Registry) -> None:
    producer, other = connect(registry, 1), connect(registry, 2)
    for topic in ("t", "u"):
        registry.register(producer, topic=topic)
        registry.register(other, topic=topic)
    registry.tombstone(topic="*", node="node1:4151")
    assert registry.producers_of("*") == [other]


def test_an_inactive_producer_comes_back_when_it_is_heard(registry: Registry, clock: ManualClock) -> None:
    producer = connect(registry, 1)
    registry.register(producer, topic="t")
    clock.advance(seconds=300)
    assert registry.active_producers() == [producer]
    clock.advance(ms=1)
    assert (registry.active_producers(), registry.producers_of("t")) == ([], [])
    assert list(registry.producers) == [producer]
    registry.hear(producer)
    assert (registry.active_producers(), registry.producers_of("t")) == ([producer], [producer])


def test_a_jump_of_the_wall_clock_hides_nobody(registry: Registry, clock: ManualClock) -> None:
    producer = connect(registry, 1)
    registry.register(producer, topic="t")
    clock.set_wall(clock.wall_ns() + 3600 * NS_PER_SECOND)
    assert registry.producers_of("t") == [producer]


def test_equal_names_are_kept_once(registry: Registry) -> None:
    first, second = connect(registry, 1), connect(registry, 2)
    registry.register(first, topic="".join(("top", "ic")))
    registry.register(second, topic="".join(("to", "pic")))
    (one,), (other,) = first.topics, second.topics
    assert one is other
