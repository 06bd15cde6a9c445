from __future__ import annotations

from dataclasses import replace

import pytest

from emberq.cluster.topology import (
    ProducerTopic,
    by_hostname,
    producer_of_info,
    producers_of_lookup,
    producers_of_nodes,
    united,
)
from tests.support.cluster_rig import NODE

PEER = {
    "remote_address": "10.0.0.1:5000",
    "hostname": "host",
    "broadcast_address": "nsqd.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


@pytest.mark.conformance(252)
@pytest.mark.parametrize(
    ("broadcast_address", "node"),
    [
        ("host", "host:4151"),
        ("192.168.1.17", "192.168.1.17:4151"),
        ("fd4a:622f:d2f2::1", "[fd4a:622f:d2f2::1]:4151"),
    ],
)
def test_a_node_is_called_by_its_broadcast_address_and_http_port(broadcast_address: str, node: str) -> None:
    producer = replace(NODE, broadcast_address=broadcast_address)
    assert producer.node == producer.http_address == node
    assert producer.tcp_address == node.replace(":4151", ":4150")


def test_an_nsqd_that_the_user_named_is_asked_where_the_user_said() -> None:
    producer = producer_of_info(PEER, address="127.0.0.1:9999", topics=["b", "a"])
    assert (producer.node, producer.http_address) == ("nsqd.example:4151", "127.0.0.1:9999")
    assert producer.topics == (ProducerTopic("a"), ProducerTopic("b"))
    assert producer.remote_addresses is None


def test_a_lookup_names_producers_without_topics() -> None:
    (producer,) = producers_of_lookup({"channels": [], "producers": [PEER]})
    assert (producer.node, producer.topics, producer.remote_address) == ("nsqd.example:4151", (), "10.0.0.1:5000")


def test_nodes_come_with_sorted_topics_and_their_tombstones() -> None:
    node = PEER | {"topics": ["b", "a"], "tombstones": [True, False], "topology_zone": "z", "topology_region": "r"}
    (producer,) = producers_of_nodes({"producers": [node]}, lookupd="lookupd:4161")
    assert producer.topics == (ProducerTopic("a", tombstoned=False), ProducerTopic("b", tombstoned=True))
    assert producer.remote_addresses == ("lookupd:4161/10.0.0.1:5000",)
    assert (producer.topology_zone, producer.topology_region) == ("z", "r")


def test_an_old_nsqlookupd_tells_neither_tombstones_nor_remote_address() -> None:
    node = {key: value for key, value in PEER.items() if key != "remote_address"} | {"topics": ["a"]}
    (producer,) = producers_of_nodes({"producers": [node]}, lookupd="lookupd:4161")
    assert producer.topics == (ProducerTopic("a"),)
    assert producer.remote_addresses == ("lookupd:4161/N/A",)


def test_a_node_that_two_nsqlookupds_know_is_one_node_with_all_that_either_knows() -> None:
    first = replace(NODE, remote_addresses=("one/a",), topics=(ProducerTopic("b"), ProducerTopic("c")))
    second = replace(NODE, remote_addresses=("two/a",), topics=(ProducerTopic("a"), ProducerTopic("b", True)))
    (node,) = united([first, second])
    assert node.remote_addresses == ("one/a", "two/a")
    assert node.topics == (ProducerTopic("a"), ProducerTopic("b", True), ProducerTopic("c"))


def test_nodes_on_other_ports_are_other_nodes() -> None:
    assert len(united([NODE, replace(NODE, tcp_port=4250)])) == 2


def test_nodes_are_listed_by_host_name_and_older_ones_marked() -> None:
    nodes = [
        replace(NODE, hostname="c", version="1.2.1"),
        replace(NODE, hostname="a", version="1.3.0"),
        replace(NODE, hostname="b", version="1.3.0-emberq"),
        replace(NODE, hostname="d", version="unknown"),
    ]
    listed = [(node.hostname, node.out_of_date) for node in by_hostname(nodes)]
    assert listed == [("a", False), ("b", False), ("c", True), ("d", True)]
