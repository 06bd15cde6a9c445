"""Topology-aware consumption: consumers in the server's own zone come first (rows 276, 277)."""

from __future__ import annotations

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client

EXPERIMENT = "topology-aware-consumption"


@pytest.mark.conformance(276)
@pytest.mark.nsqd(enable_experiment=(EXPERIMENT,), topology_zone="zone-1", topology_region="region-1")
def test_ready_consumers_of_the_same_zone_come_first(nsqd: NsqdHarness) -> None:
    here = [nsqd.consumer("t", "c", rdy=10, topology_zone="zone-1") for _ in range(2)]
    there = [nsqd.consumer("t", "c", rdy=10, topology_zone="zone-2") for _ in range(2)]
    for consumer in here + there:
        consumer.frames_until_now()
    producer = nsqd.connect()
    for _ in range(21):
        producer.pub("t", b"x")
        nsqd.settle()
    assert [len(consumer.messages_until_now()) for consumer in here] == [10, 10]
    assert sum(len(consumer.messages_until_now()) for consumer in there) == 1
    channel = nsqd.channel("t", "c")
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (20, 0, 1)


@pytest.mark.conformance(276)
@pytest.mark.nsqd(enable_experiment=(EXPERIMENT,), topology_zone="zone-1", topology_region="region-1")
def test_ready_consumers_of_the_same_region_come_second(nsqd: NsqdHarness) -> None:
    abroad = nsqd.consumer("t", "c", rdy=1, topology_zone="zone-9", topology_region="region-9")
    near = nsqd.consumer("t", "c", rdy=1, topology_zone="zone-2", topology_region="region-1")
    here = nsqd.consumer("t", "c", rdy=1, topology_zone="zone-1", topology_region="region-1")
    for consumer in (abroad, near, here):
        consumer.frames_until_now()
    producer = nsqd.connect()
    for consumer in (here, near, abroad):
        producer.pub("t", b"x")
        assert consumer.read_message().body == b"x"
    channel = nsqd.channel("t", "c")
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (1, 1, 1)


@pytest.mark.conformance(277)
def test_without_the_experiment_every_delivery_is_global(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=2)
    client.mpub("t", [b"x"] * 2)
    assert len(consumer.messages_until_now()) == 2
    channel = nsqd.channel("t", "c")
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (0, 0, 2)
