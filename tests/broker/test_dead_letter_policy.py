"""Which channel gives up, and after how often: kept, forgotten with the channel, and never in a circle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.broker.error import PolicyCycleError
from emberq.storage.data_folder import ChannelPolicy, PolicyEntry
from emberq.storage.error import MetadataError
from tests.broker.dead_letters import give_up_after
from tests.broker.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        yield rig


def test_a_channel_has_no_policy_until_it_gets_one(rig: Rig) -> None:
    channel = rig.channel()
    assert rig.broker.policy(channel) is None
    assert rig.stats().policy is None
    give_up_after(rig, 3)
    assert rig.broker.policy(channel) == ChannelPolicy(max_attempts=3, dead_letter_topic="dead")
    assert rig.stats().policy == rig.broker.policy(channel)


def test_a_policy_is_saved_when_it_is_set(rig: Rig) -> None:
    give_up_after(rig, 3)
    (entry,) = rig.disk.policies
    assert (entry.topic, entry.channel, entry.policy.max_attempts) == ("t", "c", 3)
    rig.broker.set_policy(rig.channel(), None)
    assert rig.disk.policies == []


def test_a_policy_goes_with_its_channel(rig: Rig) -> None:
    give_up_after(rig, 3)
    give_up_after(rig, 3, channel="other")
    rig.topic().delete_channel("c")
    assert [entry.channel for entry in rig.disk.policies] == ["other"]
    assert rig.broker.policy(rig.channel()) is None
    rig.broker.delete_topic("t")
    assert rig.disk.policies == []


def test_the_policy_of_an_ephemeral_channel_is_not_saved(rig: Rig) -> None:
    give_up_after(rig, 3, channel="c#ephemeral")
    assert rig.disk.policies == []
    assert rig.broker.policy(rig.channel("c#ephemeral")) is not None


def test_a_policy_waits_for_a_channel_that_does_not_exist_yet(tmp_path: Path) -> None:
    with Rig(folder=tmp_path) as rig:
        give_up_after(rig, 3)
    with Rig(folder=tmp_path) as rig:
        rig.broker.load(rig.broker.metadata("test"))
        assert rig.stats().policy == ChannelPolicy(max_attempts=3, dead_letter_topic="dead")


def test_a_policy_that_cannot_be_saved_does_not_hold(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_entries: object) -> None:
        raise MetadataError("no space left on device")

    give_up_after(rig, 3)
    monkeypatch.setattr(rig.disk, "save_policies", refuse)
    with pytest.raises(MetadataError):
        give_up_after(rig, 4)
    assert rig.stats().policy == ChannelPolicy(max_attempts=3, dead_letter_topic="dead")
    rig.topic().delete_channel("c")  # which succeeds all the same
    assert rig.topic().find_channel("c") is None


def test_a_topic_is_not_its_own_dead_letter_topic(rig: Rig) -> None:
    with pytest.raises(PolicyCycleError, match="dead letters of t in t would come back to t"):
        give_up_after(rig, 3, dead="t")
    assert rig.disk.policies == []


def test_dead_letters_do_not_come_back_by_a_longer_way(rig: Rig) -> None:
    give_up_after(rig, 3, topic="a", dead="b")
    give_up_after(rig, 3, topic="b", dead="c")
    with pytest.raises(PolicyCycleError):
        give_up_after(rig, 3, topic="c", dead="a")
    with pytest.raises(PolicyCycleError):
        give_up_after(rig, 3, topic="c", channel="other", dead="b")
    give_up_after(rig, 3, topic="c", dead="d")


def test_a_policy_may_be_replaced_by_one_that_goes_elsewhere(rig: Rig) -> None:
    give_up_after(rig, 3, topic="a", dead="b")
    give_up_after(rig, 3, topic="b", dead="c")
    give_up_after(rig, 3, topic="a", dead="c")
    give_up_after(rig, 3, topic="b", dead="a")
    assert rig.broker.policy(rig.channel(topic="b")) == ChannelPolicy(max_attempts=3, dead_letter_topic="a")


def test_the_dead_of_a_dead_letter_topic_go_on(rig: Rig) -> None:
    give_up_after(rig, 1, topic="a", dead="b")
    give_up_after(rig, 1, topic="b", dead="c")
    assert {entry.topic: entry.policy.dead_letter_topic for entry in rig.disk.policies} == {"a": "b", "b": "c"}


def test_a_circle_that_was_written_into_the_file_does_not_hold_up_new_policies(rig: Rig) -> None:
    there = ChannelPolicy(max_attempts=1, dead_letter_topic="there")
    back = ChannelPolicy(max_attempts=1, dead_letter_topic="here")
    rig.disk.policies = [
        PolicyEntry("dead", "c", back),
        PolicyEntry("here", "c", there),
        PolicyEntry("there", "c", back),
    ]
    rig.restart()
    give_up_after(rig, 3, dead="dead")
    assert rig.stats().policy == ChannelPolicy(max_attempts=3, dead_letter_topic="dead")
