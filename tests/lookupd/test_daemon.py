"""nsqlookupd starts completely or not at all, and leaves nothing open."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from emberq.base.program import StartError
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions
from tests.support.lookupd_harness import LookupdHarness


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


def is_free(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_it_says_where_it_listens_and_when_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emberq"), LookupdHarness() as lookupd:
        tcp = "{}:{}".format(*lookupd.daemon.tcp_address)
        http = "{}:{}".format(*lookupd.daemon.http_address)
    assert [record.getMessage() for record in caplog.records] == [
        f"TCP: listening on {tcp}",
        f"HTTP: listening on {http}",
        f"TCP: closing {tcp}",
        f"HTTP: closing {http}",
    ]


def test_stopping_closes_every_connection() -> None:
    with LookupdHarness() as lookupd:
        clients = [lookupd.nsqd("t"), lookupd.connect()]
        clients[1].ping()
        addresses = ["{}:{}".format(*address) for address in (lookupd.daemon.tcp_address, lookupd.daemon.http_address)]
        lookupd.stop()
        for client in clients:
            client.expect_closed()
        assert all(map(is_free, addresses))


async def test_a_taken_http_address_stops_the_start_and_frees_the_other(taken_address: str) -> None:
    daemon = Nsqlookupd(LookupdOptions(tcp_address="127.0.0.1:0", http_address=taken_address))
    with pytest.raises(StartError) as caught:
        await daemon.start()
    with pytest.raises(RuntimeError):
        _ = daemon.tcp_address
    assert str(caught.value).startswith(f"listen ({taken_address}) failed - ")


def test_options_that_cannot_work_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(StartError, match="--tombstone-lifetime"):
        Nsqlookupd(LookupdOptions(tombstone_lifetime_ns=-1))


def test_a_reload_changes_nothing() -> None:
    with LookupdHarness() as lookupd:
        lookupd.nsqd("t")
        lookupd.call(lookupd.daemon.reload)
        assert lookupd.producer_count("t") == 1
