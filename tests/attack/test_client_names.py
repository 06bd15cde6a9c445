"""A client that gives itself long names, which nsqd keeps and shows as long as the client stays."""

from __future__ import annotations

import pytest

from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client

NAMES = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
CLIENTS = 5
MAX_SHOWN_BYTES = 5_000
"""Of one client, in /stats."""


def identified(nsqd: NsqdHarness) -> Client:
    client = nsqd.connect()
    client.identify(**{name: name[0] * 12_000 for name in NAMES})
    return client


@pytest.mark.parametrize("target", ["/stats", "/stats?format=json", "/metrics"])
def test_long_names_do_not_make_long_statistics(nsqd: NsqdHarness, http: HttpClient, target: str) -> None:
    before_bytes = len(http.get(target).body)
    for _ in range(CLIENTS):
        consumer = identified(nsqd)
        consumer.sub("t", "c")
        consumer.pub("t", b"-")
    answer = http.get(target)
    assert answer.status == 200
    assert len(answer.body) - before_bytes < 2 * CLIENTS * MAX_SHOWN_BYTES


def test_a_long_name_is_still_known_by_its_beginning(nsqd: NsqdHarness) -> None:
    identified(nsqd).sub("t", "c")
    (client,) = nsqd.channel("t", "c").clients
    assert client.user_agent == "u" * 256
