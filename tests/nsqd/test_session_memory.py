"""A connection that is gone leaves nothing behind, without the help of the garbage collector."""

from __future__ import annotations

import gc
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import StartNsqd
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client
from tests.support.stream_upgrade import start_deflate, start_snappy, start_tls
from tests.support.tls_pair import client_context
from tests.support.waiting import wait_until

ROUNDS = 20
OF_CONNECTIONS = ("emberq.base.", "emberq.nsqd.", "emberq.wire.", "uvloop.", "ssl.", "_ssl.", "zlib.", "cramjam.")
KEPT_A_WHILE = {"emberq.base.timers.Alarm"}
"""Alarms that were discarded leave the heap by and by."""


class Visits:
    """What clients do before they are gone, each in its own way."""

    def __init__(self, start_nsqd: StartNsqd, authority: Authority) -> None:
        self.nsqd: NsqdHarness = start_nsqd(**authority.issue("server").options())
        self._tls = client_context(authority.path)

    def plain(self, client: Client) -> None:
        client.mpub("t", [b"a", b"b"])

    def consumer(self, client: Client) -> None:
        client.sub("t", "c")
        client.rdy(5)

    def cut_in_the_middle(self, client: Client) -> None:
        client.send(b"MPUB t\n" + struct.pack(">III", 500_008, 1, 500_000) + bytes(100_000))

    def refused(self, client: Client) -> None:
        client.send(b"NONSENSE\n")

    def tls(self, client: Client) -> None:
        client.identify(tls_v1=True)
        start_tls(client, self._tls)
        client.mpub("t", [b"a"])

    def deflate(self, client: Client) -> None:
        client.identify(deflate=True)
        start_deflate(client)
        client.mpub("t", [b"a"])

    def snappy(self, client: Client) -> None:
        client.identify(snappy=True)
        start_snappy(client)
        client.mpub("t", [b"a"])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def census() -> Counter[str]:
    """How many objects of nsqd's connections, and of what they stand on, there are of each class."""
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter({name: count for name, count in kinds.items() if name.startswith(OF_CONNECTIONS)})


@pytest.mark.parametrize("kind", ["plain", "consumer", "cut_in_the_middle", "refused", "tls", "deflate", "snappy"])
def test_a_connection_that_is_gone_is_freed(
    start_nsqd: StartNsqd, authority: Authority, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "emberq")  # a record that is kept holds an error, and that its frames
    visits = Visits(start_nsqd, authority)
    nsqd = visits.nsqd
    visit: Callable[[Client], None] = getattr(visits, kind)

    def come_and_go() -> None:
        client = Client(nsqd.nsqd.tcp_address)
        visit(client)
        nsqd.settle()
        client.close()
        del client
        wait_until(lambda: 'nsqd_connections{protocol="tcp"} 0' in HttpClient(nsqd.http_address).get("/metrics").text)

    come_and_go()
    with without_collector():
        before = census()
        for _ in range(ROUNDS):
            come_and_go()
        left = {name: count for name, count in (census() - before).items() if count >= ROUNDS / 2}
    assert set(left) <= KEPT_A_WHILE, left
