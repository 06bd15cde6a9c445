"""Clients that register very much with nsqlookupd, and what becomes of the others and of nsqlookupd's memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lookupd_harness import LookupdHarness, Nsqd
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.waiting import wait_until

OK = b"\0\0\0\2OK"
CROWDING = b"E_INVALID there are too many topics and channels, and this nsqd has the most"
DEFAULT_LIMIT = 100_000
BYSTANDER_S = 0.1
"""So long nsqlookupd works at most before it answers a client that has nothing to do with the flood, but for one time
in a hundred."""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(log_path=tmp_path / "log") as running:
        yield running


def registrations(count: int, *, prefix: str = "flood") -> bytes:
    return b"".join(b"REGISTER %b%d\n" % (prefix.encode(), number) for number in range(count))


def flood(address: tuple[str, int], count: int) -> Nsqd:
    """A client that has sent very many registrations, and reads no answers to them meanwhile."""
    client = Nsqd(address)
    client.identify()
    sending = threading.Thread(target=lambda: _send(client, registrations(count)), daemon=True)
    sending.start()
    return client


def _send(client: Nsqd, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it is cut off in the midst of it
        client.send(data)


def drain(client: Nsqd) -> None:
    """Read all answers and look at none."""
    with contextlib.suppress(OSError):  # closed meanwhile
        while client.socket.recv(65536):
            pass


def read_answers(client: Nsqd) -> tuple[int, bytes]:
    """How many were OK, and what came last instead; empty if a reset was faster."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := client.socket.recv(65536):
            received += data
    count = received.count(OK)
    return count, bytes(received[count * len(OK) + 4 :])


@pytest.mark.lookupd(max_registrations=1000)
def test_an_nsqd_registers_as_much_as_it_may_and_no_more(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd()
    client.send(registrations(999) + b"REGISTER t c\nREGISTER t c\nREGISTER flood0\n")
    assert [client.read() for _ in range(1002)] == [b"OK"] * 1002  # what it has, it may register again
    assert (
        client.command("REGISTER one.more") == b"E_INVALID REGISTER of more topics and channels than one nsqd may have"
    )
    client.expect_closed()
    assert "one.more" not in lookupd.topics()


@pytest.mark.lookupd(max_registrations=10)
def test_what_is_unregistered_makes_room(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd()
    for number in range(50):
        client.register(f"t{number}", "c")
        client.unregister(f"t{number}", "c")
        client.unregister(f"t{number}")
        client.register("deleted", "c")
        assert lookupd.post("/topic/delete?topic=deleted").status == 200
    client.ping()


@pytest.mark.lookupd(max_registrations=100)
def test_many_clients_with_many_names_each_do_not_drive_out_the_others(lookupd: LookupdHarness) -> None:
    honest = lookupd.nsqd("orders", "users")
    flooding = [lookupd.nsqd() for _ in range(15)]
    for number, client in enumerate(flooding):
        client.send(registrations(100, prefix=f"flood{number}."))
        assert client.read_exactly(100 * len(OK)).startswith(OK)
    assert {"orders", "users"} <= set(lookupd.topics())
    honest.register("new")
    assert lookupd.producer_count("orders") == lookupd.producer_count("new") == 1
    used = sum(len(node["topics"]) for node in lookupd.nodes())
    assert 900 <= used <= 1000
    assert flooding[0].read() == CROWDING


def test_a_flood_ends_at_the_limit(lookupd: LookupdHarness) -> None:
    client = flood(lookupd.daemon.tcp_address, DEFAULT_LIMIT + 10_000)
    count, last = read_answers(client)
    assert count <= DEFAULT_LIMIT
    assert last in (b"", b"E_INVALID REGISTER of more topics and channels than one nsqd may have")
    client.close()


def test_others_are_answered_in_time_during_a_flood(process: NsqlookupdProcess) -> None:
    address = ("127.0.0.1", process.tcp_port)
    bystander = Nsqd(address)
    bystander.identify()
    floods = [flood(address, DEFAULT_LIMIT - 1) for _ in range(2)]
    for client in floods:
        threading.Thread(target=drain, args=(client,), daemon=True).start()
    waits = pings(process, bystander, duration_s=3)
    for client in floods:
        client.reset()
    waits += pings(process, bystander, duration_s=0.5)  # while what they registered is cleared away
    bystander.close()
    assert sorted(waits)[len(waits) * 99 // 100] < BYSTANDER_S, sorted(waits)[-5:]


def pings(process: NsqlookupdProcess, client: Nsqd, *, duration_s: float) -> list[float]:
    """How long nsqlookupd worked until each answer, in seconds."""
    waits = []
    ends_s = time.monotonic() + duration_s
    while time.monotonic() < ends_s:
        began_s = process.worked_s
        client.ping()
        waits.append(process.worked_s - began_s)
        time.sleep(0.005)
    return waits


def test_what_no_nsqd_has_had_for_a_day_is_forgotten(lookupd: LookupdHarness) -> None:
    client, other = lookupd.nsqd(), lookupd.nsqd("used")
    client.send(registrations(5000) + b"REGISTER flood c\nREGISTER used c\n")
    assert [client.read() for _ in range(5002)] == [b"OK"] * 5002
    lookupd.leave(client)
    wait_until(lambda: lookupd.call(lambda: lookupd.daemon.registry.unused_count) == 5003)  # but for `used`
    lookupd.post("/topic/create?topic=created")
    assert len(lookupd.topics()) == 5003
    pass_hours(lookupd, 23)
    assert len(lookupd.topics()) == 5003
    pass_hours(lookupd, 2)
    wait_until(lambda: lookupd.topics() == ["used"])
    assert lookupd.channels("used") == []
    assert lookupd.channels("flood") == []
    assert lookupd.get("/lookup?topic=flood").error == (404, "TOPIC_NOT_FOUND")
    other.register("flood", "c")
    pass_hours(lookupd, 25)
    assert lookupd.channels("flood") == ["c"]


def pass_hours(lookupd: LookupdHarness, hours: int) -> None:
    """Move the clock, and have done what is due then, some of which makes more due."""
    lookupd.call(lambda: lookupd.clock.advance(seconds=hours * 3600))
    for _ in range(20):
        lookupd.call(lookupd.daemon.run_timers)


def test_a_client_that_leaves_takes_its_names_along_sooner_or_later(lookupd: LookupdHarness) -> None:
    """However many clients come and go with new names, what is kept of them is bounded."""
    for prefix in ("a", "b", "c"):
        client = lookupd.nsqd()
        threading.Thread(target=_send, args=(client, registrations(40_000, prefix=prefix)), daemon=True).start()
        assert client.read_exactly(40_000 * len(OK)) == OK * 40_000
        lookupd.leave(client)
    wait_until(lambda: lookupd.call(lambda: lookupd.daemon.registry.topic_count) <= 100_000)
    assert lookupd.topics()[-1].startswith("c")
