from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import ClientFilter
from tests.support.cluster_rig import NODE, channel_entry, topic_entry


def client(number: int, **fields: Any) -> dict[str, Any]:
    return {"client_id": f"worker-{number}", "hostname": f"Host-{number}", "user_agent": "agent/1.0", **fields}


def sift(sieve: ClientFilter, **clients_by_node: list[dict[str, Any]]) -> list[str]:
    """Who is kept, of clients of several nodes."""
    for node, clients in clients_by_node.items():
        reader = StatsReader(replace(NODE, broadcast_address=node), sieve=sieve)
        (topic,) = reader.topics(
            {"topics": [topic_entry("t", channel_entry("c", clients=clients, client_count=len(clients)))]}
        )
        (channel,) = topic.channels
        assert (channel.clients, channel.client_count) == ((), len(clients))
    return [f"{kept.node.partition(':')[0]} {kept.client_id}" for kept in sieve.kept]


def test_the_first_are_kept_in_whichever_order_nodes_answer() -> None:
    first, second = [client(1), client(2)], [client(3), client(1)]
    expected = ["a worker-1", "a worker-2", "b worker-1"]
    assert sift(ClientFilter(limit=3), a=first, b=second) == expected
    assert sift(ClientFilter(limit=3), b=second, a=first) == expected


def test_all_that_match_are_counted() -> None:
    sieve = ClientFilter(limit=1)
    sift(sieve, a=[client(1), client(2)], b=[client(3)])
    assert (sieve.match_count, len(sieve.kept)) == (3, 1)


@pytest.mark.parametrize(
    ("search", "kept"),
    [
        ("", ["a worker-1", "a worker-2"]),
        ("WORKER-2", ["a worker-2"]),
        ("host-1", ["a worker-1"]),
        ("agent worker-1", ["a worker-1"]),
        ("10.0.0.2", ["a worker-2"]),
        ("a:4151", ["a worker-1", "a worker-2"]),
        ("worker-1 worker-2", []),
    ],
)
def test_every_word_of_a_search_must_be_somewhere(search: str, kept: list[str]) -> None:
    clients = [client(1), client(2, remote_address="10.0.0.2:5000")]
    sieve = ClientFilter(search=search, limit=10)
    assert sift(sieve, a=clients) == kept
    assert sieve.match_count == len(kept)
