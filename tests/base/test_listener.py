"""Listening: a plain port, and one whose connections begin by TLS."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from emberq.base import listener
from emberq.base.listener import HandshakeServer, Listener, ListenError
from emberq.base.tls import loaded_tls
from emberq.lookupd.options import LookupdOptions
from tests.support.certificates import Authority, self_signed
from tests.support.raw_connection import RawConnection
from tests.support.server_thread import ServerThread
from tests.support.tls_pair import client_context
from tests.support.waiting import PATIENCE_S, wait_until


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class EchoServer(ServerThread):
    """A listener in a thread of its own."""

    def __init__(self, address: str = "127.0.0.1:0", **options: Any) -> None:
        super().__init__("echo")
        self.listener = Listener(address, Echo, label="ECHO", **options)

    def start(self) -> None:
        self._await(self.listener.bind())
        self._await(self.listener.serve())

    def stop(self) -> None:
        self._await(self.listener.close())

    def _move_time(self, *, ms: int) -> None:
        raise NotImplementedError

    def connect(self) -> RawConnection:
        return self._kept(RawConnection(self.listener.address))

    def connect_by_tls(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        address = self.listener.address
        assert isinstance(address, tuple)
        plain = socket.create_connection(address, timeout=PATIENCE_S)
        try:
            return self._kept(context.wrap_socket(plain, server_hostname="localhost"))
        except BaseException:
            plain.close()
            raise


def expect_echo(client: ssl.SSLSocket) -> None:
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"


@pytest.fixture
def start(authority: Authority) -> Iterator[Callable[..., EchoServer]]:
    """Starts a server that speaks TLS; options are those of daemons, `has_room` the listener's."""
    with ExitStack() as running:

        def start(*, has_room: Callable[[], bool] | None = None, **options: Any) -> EchoServer:
            tls = loaded_tls(LookupdOptions(**(authority.issue("server").options() | options)))
            assert tls is not None
            return running.enter_context(EchoServer(tls=tls.context, has_room=has_room))

        yield start


StartEcho = Callable[..., EchoServer]


# Plain.


def test_a_plain_port_is_served_once_it_is_bound() -> None:
    with EchoServer() as server:
        client = server.connect()
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"
        assert server.listener.port == server.listener.address[1]


def test_a_unix_socket_is_removed_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with EchoServer(str(path)) as server:
        assert server.listener.port == -1
        client = server.connect()
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"
    assert not path.exists()


def test_an_address_that_is_taken_is_named() -> None:
    with EchoServer() as server:
        host, port = cast(tuple[str, int], server.listener.address)
        with pytest.raises(ListenError, match=rf"^listen \({host}:{port}\) failed - ") as raised:
            EchoServer(f"{host}:{port}").__enter__()
        assert raised.value.__cause__ is not None


# TLS.


def test_a_client_of_tls_is_served(start: StartEcho, authority: Authority) -> None:
    expect_echo(start().connect_by_tls(client_context(authority.path)))


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if ": refused " in record.getMessage()]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"  V1", "it does not speak TLS, and this port speaks nothing else"),
        (b"GET /ping HTTP/1.1\r\n\r\n", "it asked by plain HTTP, and this port speaks TLS only"),
        (b"\x16\x03\x01\x00\x05hello", "the handshake failed: "),
        (b"", "it left before the handshake was done"),
    ],
    ids=["NSQ", "HTTP", "half of TLS", "nothing"],
)
def test_a_client_that_does_not_speak_tls_is_cut_off_and_the_log_says_why(
    start: StartEcho, authority: Authority, caplog: pytest.LogCaptureFixture, said: bytes, reason: str
) -> None:
    server = start()
    client = server.connect()
    address = client.address
    client.send(said + bytes(20) * bool(said))
    if not said:
        client.half_close()
    assert b"hello" not in client.read_until_eof()
    wait_until(lambda: bool(refusals(caplog)))
    assert refusals(caplog)[0].startswith(f"ECHO: refused {address}: {reason}")
    expect_echo(server.connect_by_tls(client_context(authority.path)))


def test_a_client_without_the_certificate_that_is_asked_for_is_refused(
    start: StartEcho, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(tls_client_auth_policy="require-verify", tls_root_ca_file=str(authority.path))
    strange = self_signed(tmp_path, "stranger")
    for certificate, reason in (
        (None, "it showed no certificate, which --tls-client-auth-policy asks for"),
        (strange, "its certificate is not accepted: "),
    ):
        caplog.clear()
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            expect_echo(server.connect_by_tls(client_context(authority.path, certificate=certificate)))
        wait_until(lambda: bool(refusals(caplog)))
        assert reason in refusals(caplog)[0]
        time.sleep(listener.LOG_INTERVAL_NS / 1e9)  # the log gets a line in this time
    expect_echo(server.connect_by_tls(client_context(authority.path, certificate=authority.issue("client"))))


def test_a_client_without_any_certificate_is_refused_where_any_will_do(
    start: StartEcho, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(tls_client_auth_policy="require")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        expect_echo(server.connect_by_tls(client_context(authority.path)))
    wait_until(lambda: bool(refusals(caplog)))
    assert "it showed no certificate, which --tls-client-auth-policy asks for" in refusals(caplog)[0]
    expect_echo(server.connect_by_tls(client_context(authority.path, certificate=self_signed(tmp_path, "stranger"))))


def test_a_client_that_does_not_trust_us_is_told_from_one_that_we_do_not_trust(
    start: StartEcho, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ssl.SSLCertVerificationError):
        start().connect_by_tls(client_context(Authority(other, "other").path))
    wait_until(lambda: bool(refusals(caplog)))
    assert "it does not trust the authority of our certificate" in refusals(caplog)[0]


def test_a_silent_client_is_cut_off_in_time(
    start: StartEcho, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "MAX_HANDSHAKE_SECONDS", 0.2)
    server = start()
    silent, hesitant = server.connect(), server.connect()
    hesitant.send(b"\x16\x03\x01")  # the beginning of a handshake
    silent.expect_closed()
    hesitant.expect_closed()
    wait_until(lambda: bool(refusals(caplog)))
    assert refusals(caplog)[0].endswith(": no handshake within 0.2 s")


def test_failures_without_number_leave_few_lines_in_the_log(start: StartEcho, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    began_s = time.monotonic()
    for _ in range(100):
        client = server.connect()
        client.send(b"garbage" * 10)
        client.read_until_eof()
    lasted_s = time.monotonic() - began_s
    assert 1 <= len(refusals(caplog)) <= 2 + lasted_s


def test_silent_clients_make_room_for_those_that_come(
    start: StartEcho, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "MAX_HANDSHAKES", 3)
    server = start()
    silent = [server.connect() for _ in range(3)]
    server.settle()
    clients = [server.connect_by_tls(client_context(authority.path)) for _ in range(5)]
    for client in clients:
        expect_echo(client)
    silent[0].expect_closed()
    assert refusals(caplog)[0] == f"ECHO: refused {silent[0].address}: too many handshakes at a time"
    silent[2].socket.settimeout(0.1)
    with pytest.raises(TimeoutError):  # once there is room, the others may go on
        silent[2].expect_eof()


def test_without_room_a_connection_is_closed_before_the_handshake(start: StartEcho, authority: Authority) -> None:
    has_room = False
    server = start(has_room=lambda: has_room)
    server.connect().expect_closed()
    has_room = True
    expect_echo(server.connect_by_tls(client_context(authority.path)))


def test_closing_ends_handshakes_and_leaves_connections(start: StartEcho, authority: Authority) -> None:
    server = start()
    client, waiting = server.connect_by_tls(client_context(authority.path)), server.connect()
    expect_echo(client)
    server.settle()
    server.stop()
    waiting.expect_closed()
    expect_echo(client)


class Exhausted(socket.socket):
    """A listening socket for whose connections there is no descriptor, for a while."""

    is_exhausted = True

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@contextmanager
def exhausted() -> Iterator[Exhausted]:
    with Exhausted() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.mark.loop("uvloop")
async def test_connections_are_accepted_again_when_there_are_descriptors(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = loaded_tls(LookupdOptions(**authority.issue("server").options()))
    assert tls is not None
    with exhausted() as listening:
        server = HandshakeServer(listening, Echo, tls.context, label="ECHO", has_room=None)
        server.start()
        with caplog.at_level(logging.WARNING):
            connecting = asyncio.ensure_future(
                asyncio.open_connection(
                    *listening.getsockname(), ssl=client_context(authority.path), server_hostname="localhost"
                )
            )
            await asyncio.sleep(3 * listener.PAUSE_SECONDS)
        assert caplog.messages == ["ECHO: cannot accept connections: too many open files"]
        listening.is_exhausted = False
        reader, writer = await asyncio.wait_for(connecting, PATIENCE_S)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        await writer.wait_closed()
        server.close()
