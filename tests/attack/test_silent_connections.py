"""Connections that are opened and say nothing: they go away by themselves, and take from nsqd nothing that it needs."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPSConnection

import pytest

from tests.conftest import StartNsqd, StartNsqdProcess
from tests.integration.listening import ANY_HTTP_PORT, ANY_HTTPS_PORT, port_of
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import Client
from tests.support.raw_connection import RawConnection
from tests.support.tls_pair import client_context
from tests.support.waiting import PATIENCE_S

MAX_OPEN_FILES = 160
SILENT_CONNECTIONS = 300
TOPICS = 20
"""Each needs a file for the messages that do not stay in memory."""


# The first bytes.


@pytest.mark.parametrize("magic", [b"", b"  V"], ids=["nothing", "most of the magic"])
def test_a_connection_whose_magic_does_not_come_is_closed(nsqd: NsqdHarness, magic: bytes) -> None:
    silent = nsqd.connect(magic=magic)
    nsqd.settle()
    nsqd.advance(ms=9_900)
    assert not silent.has_input()
    nsqd.advance(ms=200)
    silent.expect_eof()


def test_a_client_that_has_greeted_may_take_its_time(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    nsqd.settle()
    nsqd.advance(ms=29_000)
    client.pub("t", b"here I am")


# Descriptors.


@pytest.fixture
def nsqd_with_few_files(start_nsqd_process: StartNsqdProcess, authority: Authority) -> Iterator[NsqdProcess]:
    """An nsqd that puts every message on the disk, and may have few files open."""
    server = authority.issue("server")
    tls = (f"--tls-cert={server.certificate_path}", f"--tls-key={server.key_path}")
    nsqd = start_nsqd_process("--mem-queue-size=0", ANY_HTTP_PORT, ANY_HTTPS_PORT, *tls)
    nsqd.limit_open_files(MAX_OPEN_FILES)
    yield nsqd
    assert "Traceback" not in nsqd.log


def port(nsqd: NsqdProcess, listener: str) -> int:
    return nsqd.tcp_port if listener == "TCP" else port_of(nsqd, listener)


@pytest.mark.parametrize("listener", ["TCP", "HTTP", "HTTPS"])
def test_silent_connections_leave_descriptors_for_files(nsqd_with_few_files: NsqdProcess, listener: str) -> None:
    nsqd = nsqd_with_few_files
    address = ("127.0.0.1", port(nsqd, listener))
    publisher = nsqd.connect()
    publisher.pub("before", b"-")
    with ExitStack() as silent:
        for _ in range(SILENT_CONNECTIONS):
            with suppress(ConnectionError):
                silent.enter_context(socket.create_connection(address))
        for number in range(TOPICS):
            publisher.pub(f"t{number}", b"to the disk")
    publisher.pub("after", b"-")
    nsqd.connect().pub("after", b"others are served again")


def test_a_connection_for_which_there_is_no_descriptor_is_told_so(nsqd_with_few_files: NsqdProcess) -> None:
    nsqd = nsqd_with_few_files
    clients = [nsqd.connect(magic=b"") for _ in range(SILENT_CONNECTIONS)]
    clients[-1].expect_fatal(
        "E_TOO_MANY_CONNECTIONS nsqd needs the file descriptors that are left (ulimit -n)",
    )


# Limits that an operator sets.


def refused(client: Client, reason: str) -> None:
    client.expect_fatal(f"E_TOO_MANY_CONNECTIONS {reason}")


@pytest.mark.nsqd(max_connections=2)
def test_connections_beyond_the_limit_are_refused_until_one_leaves(nsqd: NsqdHarness) -> None:
    first, second = nsqd.connect(), nsqd.connect()
    first.pub("t", b"-")
    second.pub("t", b"-")
    refused(nsqd.connect(magic=b""), "more than 2 connections (--max-connections)")
    first.close()
    nsqd.settle()
    third = nsqd.connect()
    third.pub("t", b"-")
    second.pub("t", b"-")


@pytest.mark.nsqd(max_connections=2)
def test_connections_of_http_count_too(nsqd: NsqdHarness) -> None:
    over_tcp, over_http = nsqd.connect(), RawConnection(nsqd.http_address)
    over_tcp.pub("t", b"-")
    over_http.send(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
    assert over_http.read_exactly(12) == b"HTTP/1.1 200"
    refused(nsqd.connect(magic=b""), "more than 2 connections (--max-connections)")
    too_many = RawConnection(nsqd.http_address)
    answer = too_many.read_until_eof()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b'\r\n\r\n{"message":"TOO_MANY_CONNECTIONS"}')
    over_http.close()
    nsqd.settle()
    assert HttpClient(nsqd.http_address).get("/ping").text == "OK"


@pytest.mark.nsqd(max_connections_per_address=2)
def test_one_address_does_not_keep_others_out(nsqd: NsqdHarness) -> None:
    greedy = [nsqd.connect() for _ in range(2)]
    for client in greedy:
        client.pub("t", b"-")
    refused(nsqd.connect(magic=b""), "more than 2 connections from 127.0.0.1 (--max-connections-per-address)")
    address = nsqd.nsqd.tcp_address
    assert isinstance(address, tuple)
    with socket.create_connection(address, source_address=("127.0.0.2", 0)) as other:
        other.sendall(b"  V2PUB t\n\x00\x00\x00\x01x")
        assert other.recv(10) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    greedy[0].close()
    nsqd.settle()
    nsqd.connect().pub("t", b"-")


def https_answer(nsqd: NsqdHarness, authority: Authority) -> bytes:
    """What a client hears that sends nothing."""
    address = nsqd.nsqd.https_address
    assert isinstance(address, tuple)
    connection = client_context(authority.path).wrap_socket(
        socket.create_connection(address, timeout=PATIENCE_S), server_hostname="localhost"
    )
    with connection:
        return connection.recv(65536)


def test_a_connection_of_https_beyond_the_limit_is_refused_before_the_handshake(
    start_nsqd: StartNsqd, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = start_nsqd(max_connections=1, **authority.issue("server").options())
    nsqd.connect().pub("t", b"-")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        https_answer(nsqd, authority)
    assert "refused a connection from a client of HTTPS: more than 1 connections (--max-connections)" in caplog.messages


def test_connections_of_https_count_for_their_address(start_nsqd: StartNsqd, authority: Authority) -> None:
    nsqd = start_nsqd(max_connections_per_address=1, **authority.issue("server").options())
    client = nsqd.connect()
    client.pub("t", b"-")
    assert https_answer(nsqd, authority).startswith(b"HTTP/1.1 503 ")
    client.close()
    nsqd.settle()
    context = client_context(authority.path)
    address = nsqd.nsqd.https_address
    assert isinstance(address, tuple)
    connection = HTTPSConnection("localhost", address[1], context=context, timeout=PATIENCE_S)
    connection.request("GET", "/ping")
    assert connection.getresponse().read() == b"OK"
    connection.close()


def test_refusals_do_not_flood_the_log(start_nsqd: StartNsqd, caplog: pytest.LogCaptureFixture) -> None:
    nsqd = start_nsqd(max_connections=1)
    nsqd.connect().pub("t", b"-")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            refused(nsqd.connect(magic=b""), "more than 1 connections (--max-connections)")
        assert len(caplog.records) == 1
        nsqd.advance(ms=10_000)
        refused(nsqd.connect(magic=b""), "more than 1 connections (--max-connections)")
    assert len(caplog.records) == 2
    assert caplog.messages[1].endswith(
        ": more than 1 connections (--max-connections); 49 others were refused before",
    )
