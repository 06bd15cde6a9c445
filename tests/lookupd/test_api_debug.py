"""GET /debug shows the registry as it is."""

from __future__ import annotations

from typing import Any

from emberq.lookupd.api import PRODUCERS_PER_TURN
from tests.support.lookupd_harness import NODE, LookupdHarness

NEVER_NS = -6795364578871345152


def debug(lookupd: LookupdHarness) -> dict[str, Any]:
    document: dict[str, Any] = lookupd.get("/debug").json()
    return document


def test_an_empty_registry_is_an_empty_object(lookupd: LookupdHarness) -> None:
    lookupd.post("/channel/create?topic=t&channel=c")
    assert lookupd.get("/debug").body == b"{}"


def test_every_key_with_producers_is_shown_in_order(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("u", topology_zone="z", topology_region="r")
    nsqd.register("t", "c")
    heard_ns = lookupd.clock.wall_ns()
    lookupd.advance(ms=10)
    shown = {
        "broadcast_address": "nsqd.example",
        "hostname": "host",
        "http_port": 4151,
        "id": nsqd.address,
        "last_update": heard_ns,
        "tcp_port": 4150,
        "tombstoned": False,
        "tombstoned_at": NEVER_NS,
        "topology_region": "r",
        "topology_zone": "z",
        "version": "1.3.0",
    }
    found = debug(lookupd)
    assert list(found) == ["channel:t:c", "client::", "topic:t:", "topic:u:"]
    assert all(producers == [shown] for producers in found.values())
    assert list(found["client::"][0]) == sorted(shown)


def test_a_ping_moves_the_last_update(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd()
    lookupd.advance(ms=10)
    nsqd.ping()
    assert debug(lookupd)["client::"][0]["last_update"] == lookupd.clock.wall_ns()


def test_a_tombstone_is_shown_at_its_topic_even_when_it_has_expired(lookupd: LookupdHarness) -> None:
    lookupd.nsqd("t", "u").register("t", "c")
    lookupd.post(f"/topic/tombstone?topic=t&node={NODE}")
    tombstoned_ns = lookupd.clock.wall_ns()
    lookupd.advance(ms=60_000)
    flags = {
        key: (producers[0]["tombstoned"], producers[0]["tombstoned_at"]) for key, producers in debug(lookupd).items()
    }
    assert flags == {
        "channel:t:c": (False, NEVER_NS),
        "client::": (False, NEVER_NS),
        "topic:t:": (True, tombstoned_ns),
        "topic:u:": (False, NEVER_NS),
    }


def test_a_dump_of_many_keys_is_complete(lookupd: LookupdHarness) -> None:
    topics = [f"t{number}" for number in range(3 * PRODUCERS_PER_TURN)]
    nsqd = lookupd.nsqd()
    nsqd.send("".join(f"REGISTER {topic}\n" for topic in topics).encode())
    for _ in topics:
        assert nsqd.read() == b"OK"
    assert list(debug(lookupd)) == ["client::", *sorted(f"topic:{topic}:" for topic in topics)]
