"""The registry's rules one by one; `test_registry_properties` has them all at once."""

from __future__ import annotations

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.lookupd import registry as module
from emberq.lookupd.registry import Registry, TooManyKeysError, TopicProducer
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
    assert {key: registry.holders(key) for key in registry.all_keys() if key[1]} == {("a", "b"): [second]}
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


@pytest.fixture
def bounded(clock: ManualClock) -> Registry:
    """Three keys for a producer, and a minute for a key without one."""
    return Registry(
        clock=clock,
        inactive_timeout_ns=300 * NS_PER_SECOND,
        tombstone_lifetime_ns=45 * NS_PER_SECOND,
        unused_lifetime_ns=60 * NS_PER_SECOND,
        max_keys_of_producer=3,
    )


def test_a_producer_has_so_many_keys_and_no_more(bounded: Registry) -> None:
    producer, other = connect(bounded, 1), connect(bounded, 2)
    bounded.register(producer, topic="t", channel="c")
    bounded.register(producer, topic="u")
    bounded.register(producer, topic="t", channel="c")
    for topic, channel in (("v", None), ("t", "d"), ("u", "c")):
        with pytest.raises(TooManyKeysError):
            bounded.register(producer, topic=topic, channel=channel)
        bounded.register(other, topic="t")
    assert (list(bounded.topics()), list(bounded.channels("*"))) == (["t", "u"], ["c"])
    bounded.delete_topic("u")
    bounded.register(producer, topic="v")
    with pytest.raises(TooManyKeysError):
        bounded.register(producer, topic="w")


def test_a_key_without_producers_is_forgotten_after_its_lifetime(bounded: Registry, clock: ManualClock) -> None:
    producer, other = connect(bounded, 1), connect(bounded, 2)
    bounded.register(producer, topic="t", channel="c")
    bounded.register(other, topic="t")
    bounded.create_topic("made")
    clock.advance(seconds=30)
    bounded.disconnect(producer)
    bounded.create_channel(topic="made", channel="later")
    clock.advance(seconds=59)
    assert not bounded.forget_unused(limit=10)
    assert (list(bounded.topics()), sorted(bounded.channels("*"))) == (["t", "made"], ["c", "later"])
    clock.advance(seconds=2)
    assert not bounded.forget_unused(limit=10)
    assert (list(bounded.topics()), list(bounded.channels("*"))) == (["t"], [])
    clock.advance(seconds=3600)
    assert not bounded.forget_unused(limit=10)
    assert list(bounded.topics()) == ["t"]  # however long its producer is silent


def test_keys_are_forgotten_some_at_a_time(bounded: Registry, clock: ManualClock) -> None:
    for number in range(5):
        bounded.create_topic(str(number))
    clock.advance(seconds=61)
    assert bounded.forget_unused(limit=2)
    assert list(bounded.topics()) == ["2", "3", "4"]
    assert bounded.forget_unused(limit=3)
    assert not bounded.forget_unused(limit=3)
    assert (bounded.topic_count, bounded.unused_count) == (0, 0)


def test_a_key_that_is_used_again_begins_anew(bounded: Registry, clock: ManualClock) -> None:
    producer = connect(bounded, 1)
    bounded.create_topic("t")
    clock.advance(seconds=50)
    bounded.register(producer, topic="t")
    bounded.unregister_topic(producer, "t")
    clock.advance(seconds=50)
    assert not bounded.forget_unused(limit=10)
    assert list(bounded.topics()) == ["t"]


def test_of_very_many_unused_keys_the_oldest_go(bounded: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNUSED_KEYS", 3)
    producer = connect(bounded, 1)
    bounded.register(producer, topic="mine", channel="c")
    for number in range(5):
        bounded.create_topic(str(number))
    assert list(bounded.topics()) == ["mine", "2", "3", "4"]
    bounded.disconnect(producer)
    assert (list(bounded.topics()), list(bounded.channels("mine"))) == (["mine", "4"], ["c"])


def test_a_producer_with_very_many_keys_is_cleared_away_in_portions(
    bounded: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLEARED_AT_ONCE", 2)
    producer, other = connect(bounded, 1), connect(bounded, 2)
    bounded.register(producer, topic="t", channel="c")
    bounded.register(producer, topic="u")
    bounded.register(other, topic="t")
    bounded.disconnect(producer)
    assert (bounded.producers_of("t"), bounded.producers_of("u"), list(bounded.producers)) == ([other], [], [other])
    assert [bounded.holders(key) for key in bounded.all_keys()] == [[other], [], []]
    again = connect(bounded, 1)  # the same address, before all traces of the one before are gone
    bounded.register(again, topic="u")
    assert bounded.clear_away(limit=1)
    bounded.delete_channel(topic="t", channel="c")
    assert not bounded.clear_away(limit=10)
    assert bounded.producers_of("*") == [other, again]
    bounded.unregister_topic(again, "u")
    assert (again.key_count, bounded.unused_count, list(bounded.topics())) == (0, 1, ["t", "u"])
