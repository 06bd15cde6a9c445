"""What nsqlookupd logs of its clients, and at which level: the lines of the Go nsqlookupd that operators search for."""

from __future__ import annotations

import logging
import socket
import struct

import pytest

from emberq.lookupd.session import MAX_SHOWN
from tests.support.lookupd_harness import NODE, LookupdHarness, Nsqd
from tests.support.waiting import wait_until


class Log:
    """What the daemon in this process has logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "emberq")

    def lines(self, client: Nsqd | None = None) -> list[str]:
        """Level and text, with `A` for the client's address; no lines of HTTP requests."""
        records = [record for record in list(self._caplog.records) if record.name.startswith("emberq.lookupd")]
        lines = [f"{record.levelname} {record.getMessage()}" for record in records]
        return lines if client is None else [line.replace(client.address, "A") for line in lines]

    def clear(self) -> None:
        self._caplog.clear()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


NEW = "INFO TCP: new client(A)"
MAGIC = "INFO CLIENT(A): desired protocol magic '  V1'"
IDENTIFIED = [
    "INFO CLIENT(A): IDENTIFY Address:nsqd.example TCP:4150 HTTP:4151 Version:1.3.0",
    "INFO DB: client(A) REGISTER category:client key: subkey:",
]


def test_keys_are_logged_as_they_come_and_go(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.connect()
    client.identify()
    assert log.lines(client) == [NEW, MAGIC, *IDENTIFIED]
    for command, lines in (
        ("REGISTER t c", ["REGISTER category:channel key:t subkey:c", "REGISTER category:topic key:t subkey:"]),
        ("REGISTER t d", ["REGISTER category:channel key:t subkey:d"]),
        ("REGISTER t d", []),
        ("UNREGISTER t d", ["UNREGISTER category:channel key:t subkey:d"]),
        ("UNREGISTER t d", []),
        ("UNREGISTER t c", ["UNREGISTER category:channel key:t subkey:c"]),
        ("UNREGISTER t", ["UNREGISTER category:topic key:t subkey:"]),
        ("UNREGISTER t", []),
    ):
        log.clear()
        client.command(command)
        assert log.lines(client) == [f"INFO DB: client(A) {line}" for line in lines]


def test_a_ping_is_logged_with_the_time_since_the_last(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.nsqd()
    lookupd.advance(ms=15_000)
    client.command("PING")
    assert log.lines(client)[-1] == "INFO CLIENT(A): pinged (last ping 15s)"


def test_a_client_that_leaves_is_logged(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.nsqd("t")
    log.clear()
    client.socket.shutdown(socket.SHUT_WR)
    lines = [
        "INFO PROTOCOL(V1): [A] exiting ioloop",
        "INFO DB: client(A) UNREGISTER category:client key: subkey:",
        "ERROR client(A) - EOF",
    ]
    wait_until(lambda: log.lines(client) == lines)


def test_an_error_is_logged_when_it_happens_and_at_the_end(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.connect()
    client.command("WHAT")
    wrong = "E_INVALID invalid command WHAT"
    lines = [NEW, MAGIC, f"ERROR [A] - {wrong}", "INFO PROTOCOL(V1): [A] exiting ioloop", f"ERROR client(A) - {wrong}"]
    wait_until(lambda: log.lines(client) == lines)


def test_a_client_of_another_protocol_is_logged(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.connect(magic=b"GET ")
    client.read()
    magic = "INFO CLIENT(A): desired protocol magic 'GET '"
    wait_until(lambda: log.lines(client) == [NEW, magic, "ERROR client(A) bad protocol magic 'GET '"])


def test_a_client_that_leaves_before_its_magic_is_logged(lookupd: LookupdHarness, log: Log) -> None:
    lookupd.connect(magic=b" ").close()
    wait_until(lambda: "INFO failed to read protocol version - EOF" in log.lines())


def test_a_connection_that_is_reset_is_logged(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.nsqd()
    address = client.address
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_until(lambda: f"ERROR client({address}) - connection reset by peer" in log.lines())


def test_no_error_is_logged_when_nsqlookupd_stops(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.nsqd("t")
    lookupd.stop()
    assert "INFO PROTOCOL(V1): [A] exiting ioloop" in log.lines(client)
    assert not [line for line in log.lines() if line.startswith("ERROR")]


def test_what_an_nsqd_tells_of_itself_is_logged_up_to_a_bound(lookupd: LookupdHarness, log: Log) -> None:
    client = lookupd.connect()
    client.identify(broadcast_address="x" * 5000, version="y" * 5000)
    line = f"INFO CLIENT(A): IDENTIFY Address:{'x' * MAX_SHOWN} TCP:4150 HTTP:4151 Version:{'y' * MAX_SHOWN}"
    assert line in log.lines(client)


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("/topic/create?topic=t", "DB: adding topic(t)"),
        ("/channel/create?topic=t&channel=c", "DB: adding channel(c) in topic(t)"),
        ("/topic/tombstone?topic=t&node=" + NODE, f"DB: setting tombstone for producer@{NODE} of topic(t)"),
        ("/channel/delete?topic=t&channel=known", "DB: removing channel(known) from topic(t)"),
        ("/topic/delete?topic=t", "DB: removing topic(t)"),
    ],
)
def test_what_operators_change_is_logged(lookupd: LookupdHarness, log: Log, target: str, line: str) -> None:
    lookupd.post("/channel/create?topic=t&channel=known")
    lookupd.post(target)
    assert f"INFO {line}" in log.lines()
