"""POST /topic/…, where something goes wrong behind it. The rest is in the conformance tests."""

from __future__ import annotations

import pytest

from emberq.nsqd.api.channel import TopicApi
from emberq.storage.error import MetadataError
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode, refusal_of, request


def test_a_pause_that_cannot_be_saved_is_a_failure(rig: Rig) -> None:
    def fail() -> None:
        raise MetadataError("open nsqd.dat: read-only file system")

    rig.topic("t")
    api = TopicApi(rig.broker, fail)
    assert refusal_of(api.pause, request("topic=t")) == (500, "INTERNAL_ERROR")
    assert refusal_of(api.unpause, request("topic=t")) == (500, "INTERNAL_ERROR")


def test_a_pause_is_saved_before_it_is_answered(rig: Rig) -> None:
    node = RigNode(rig)
    topic = rig.topic("t")
    api = TopicApi(rig.broker, node.persist_metadata)
    api.pause(request("topic=t"))
    assert (topic.paused, node.persisted_count) == (True, 1)
    api.unpause(request("topic=t"))
    assert (topic.paused, node.persisted_count) == (False, 2)


def test_no_topic_is_made_while_the_broker_closes(rig: Rig) -> None:
    api = TopicApi(rig.broker, lambda: None)
    rig.broker.close()
    assert refusal_of(api.create, request("topic=t")) == (500, "INTERNAL_ERROR")


@pytest.mark.parametrize("name", ["a$", "", "*"])
def test_only_creating_and_emptying_care_how_a_name_looks(rig: Rig, name: str) -> None:
    api = TopicApi(rig.broker, lambda: None)
    for handler in (api.create, api.empty):
        assert refusal_of(handler, request(f"topic={name}")) == (400, "INVALID_TOPIC")
    for handler in (api.delete, api.pause, api.unpause):
        assert refusal_of(handler, request(f"topic={name}")) == (404, "TOPIC_NOT_FOUND")


def test_creating_a_topic_again_changes_nothing(rig: Rig) -> None:
    api = TopicApi(rig.broker, lambda: None)
    api.create(request("topic=t"))
    rig.publish(b"kept")
    api.create(request("topic=t"))
    assert rig.topic_stats().depth == 1
