"""nsqlookupd behind TLS: who gets in, who does not, and what the others notice of it."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, KeyPair, self_signed
from tests.support.lookupd_harness import IDENTITY, LookupdHarness
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.raw_connection import RawConnection
from tests.support.tls_pair import client_context
from tests.support.waiting import PATIENCE_S, wait_until

SILENT_COUNT = 1000
BYSTANDER_S = 0.1
"""So long nsqlookupd works at most before it answers another client, but for one time in a hundred."""
CUT_OFF = (ssl.SSLError, ConnectionError, EOFError)


def closed_options(authority: Authority) -> dict[str, Any]:
    """Options of an nsqlookupd that serves only clients with a certificate."""
    return {
        **authority.issue("server").options(),
        "tls_client_auth_policy": "require-verify",
        "tls_root_ca_file": str(authority.path),
    }


@pytest.fixture
def closed(authority: Authority) -> Iterator[LookupdHarness]:
    with LookupdHarness(**closed_options(authority)) as running:
        yield running


@pytest.fixture
def trusted(authority: Authority) -> ssl.SSLContext:
    """How a client with a certificate speaks."""
    return client_context(authority.path, certificate=authority.issue("client"))


def connect(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(address, timeout=PATIENCE_S)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def identify(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """The answer to an nsqd's first command."""
    body = json.dumps(IDENTITY).encode()
    with connect(address, context) as client:
        client.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        with client.makefile("rb") as answers:
            (size,) = struct.unpack(">i", _exactly(answers.read(4), 4))
            return _exactly(answers.read(size), size)


def _exactly(data: bytes | None, size: int) -> bytes:
    if data is None or len(data) < size:
        raise EOFError("cut off")
    return data


def ask(address: tuple[str, int], context: ssl.SSLContext, path: str = "/ping") -> bytes:
    connection = HTTPSConnection("localhost", address[1], context=context, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_clients_with_a_certificate_register_and_look_up(closed: LookupdHarness, trusted: ssl.SSLContext) -> None:
    assert b"broadcast_address" in identify(closed.daemon.tcp_address, trusted)
    assert ask(closed.daemon.http_address, trusted) == b"OK"
    assert ask(closed.daemon.http_address, trusted, "/nodes").startswith(b'{"producers":')


@pytest.mark.parametrize("port", ["tcp_address", "http_address"])
@pytest.mark.parametrize("said", [b"  V1IDENTIFY\n\0\0\0\2{}", b"GET /nodes HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_nothing_is_answered_in_clear(closed: LookupdHarness, port: str, said: bytes) -> None:
    client = RawConnection(getattr(closed.daemon, port))
    client.send(said)
    answer = client.read_until_eof()
    assert len(answer) <= 7, answer  # an alert of TLS at most
    client.close()


@pytest.mark.parametrize("shown", ["nothing", "a certificate of its own"])
def test_a_client_without_a_certificate_of_ours_gets_no_answer(
    closed: LookupdHarness, authority: Authority, tmp_path: Path, shown: str
) -> None:
    certificate: KeyPair | None = None if shown == "nothing" else self_signed(tmp_path, "stranger")
    context = client_context(authority.path, certificate=certificate)
    with pytest.raises(CUT_OFF):
        identify(closed.daemon.tcp_address, context)
    with pytest.raises(CUT_OFF):
        ask(closed.daemon.http_address, context)


def test_a_renewed_certificate_is_used_after_a_reload(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    context = client_context(authority.path)
    with LookupdHarness(**authority.issue("server").options()) as lookupd:

        def serial_number() -> object:
            with connect(lookupd.daemon.tcp_address, context) as client:
                certificate = client.getpeercert()
                assert certificate is not None
                return certificate["serialNumber"]

        before = serial_number()
        pair = authority.issue("server")
        assert serial_number() == before
        lookupd.call(lookupd.daemon.reload)
        renewed = serial_number()
        assert renewed != before
        pair.certificate_path.write_text("nonsense")
        with caplog.at_level(logging.ERROR):
            lookupd.call(lookupd.daemon.reload)
        assert "the certificate in use stays" in caplog.text
        assert serial_number() == renewed


def test_a_plain_connection_that_says_nothing_is_closed(lookupd: LookupdHarness) -> None:
    silent, partial = lookupd.connect(magic=b""), lookupd.connect(magic=b"  V")
    lookupd.settle()
    lookupd.advance(ms=9_900)
    greeted = lookupd.connect()
    lookupd.settle()  # it has greeted before its time is over
    lookupd.advance(ms=200)
    silent.expect_closed()
    partial.expect_closed()
    lookupd.advance(ms=60_000)
    greeted.identify()


# Many of them.


@pytest.fixture
def process(tmp_path: Path, authority: Authority) -> Iterator[NsqlookupdProcess]:
    options = closed_options(authority)
    flags = (f"--{name.replace('_', '-')}={value}" for name, value in options.items())
    with NsqlookupdProcess(*flags, log_path=tmp_path / "log") as running:
        yield running
    assert "Traceback" not in running.log


def slowest_of(count: int, process: NsqlookupdProcess, context: ssl.SSLContext) -> float:
    """How long nsqlookupd works until a bystander has its answer, at worst but for one time in a hundred."""
    waits = []
    connection = HTTPSConnection("localhost", process.http_port, context=context, timeout=PATIENCE_S)
    for _ in range(count):
        began_s = process.worked_s
        connection.request("GET", "/ping")
        assert connection.getresponse().read() == b"OK"
        waits.append(process.worked_s - began_s)
    connection.close()
    return sorted(waits)[-1 - count // 100]


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01"], ids=["nothing", "half a handshake"])
def test_a_thousand_half_handshakes_keep_no_other_client_waiting(
    process: NsqlookupdProcess, trusted: ssl.SSLContext, said: bytes
) -> None:
    tcp, http = ("127.0.0.1", process.tcp_port), ("127.0.0.1", process.http_port)
    with ExitStack() as silent:
        for number in range(SILENT_COUNT):
            client = silent.enter_context(socket.create_connection((tcp, http)[number % 2], timeout=PATIENCE_S))
            client.sendall(said)
        assert slowest_of(200, process, trusted) < BYSTANDER_S
        assert b"broadcast_address" in identify(tcp, trusted)
    wait_until(lambda: ": refused " in process.log)


def test_garbage_keeps_no_other_client_waiting(process: NsqlookupdProcess, trusted: ssl.SSLContext) -> None:
    tcp, http = ("127.0.0.1", process.tcp_port), ("127.0.0.1", process.http_port)
    for number in range(200):
        client = RawConnection((tcp, http)[number % 2])
        client.send(bytes([number]) * 2000)
        client.close()
    assert slowest_of(200, process, trusted) < BYSTANDER_S
    assert b"broadcast_address" in identify(tcp, trusted)
