"""Upgrades of the stream during IDENTIFY, who may connect at all, and HTTPS."""

from __future__ import annotations

import http.client
import socket
import ssl
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from OpenSSL import SSL

from emberq.nsqd.options import TlsRequired
from tests.conftest import StartNsqd
from tests.support.certificates import Authority, KeyPair, self_signed
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client
from tests.support.stream_upgrade import start_deflate, start_snappy, start_tls
from tests.support.tls_pair import client_context
from tests.wire import reference_snappy as snappy

CUT_OFF = (ssl.SSLError, ConnectionError, EOFError)
"""How a client finds out that it is not wanted: which of them it is depends on how far it has got by then."""

LARGE_BODY = bytes(range(250)) * 512
"""128,000 bytes: more than a chunk of snappy or a record of TLS may hold."""

COMPRESSIONS: dict[str, Callable[[Client], None]] = {"deflate": start_deflate, "snappy": start_snappy}
each_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


class Certificates:
    """Everybody's certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.server = self.authority.issue("server")
        self.signed = self.authority.issue("signed")
        self.self_signed = self_signed(folder, "self-signed")
        self.untrusted = Authority(folder, "stranger").issue("untrusted")

    def client(self, certificate: KeyPair | None = None, *, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """A client that trusts our authority, and shows a certificate if told which."""
        return client_context(self.authority.path, certificate=certificate, version=version)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_secure(start_nsqd: StartNsqd, certificates: Certificates) -> StartNsqd:
    """Starts nsqd with a certificate, HTTP and HTTPS."""

    def start(**options: Any) -> NsqdHarness:
        fixed = {
            "tls_root_ca_file": str(certificates.authority.path),
            "http_address": "127.0.0.1:0",
            "https_address": "127.0.0.1:0",
            **certificates.server.options(),
        }
        return start_nsqd(**(fixed | options))

    return start


def connect_with_tls(nsqd: NsqdHarness, context: ssl.SSLContext, **wishes: Any) -> Client:
    """A connection that has agreed on TLS."""
    client = nsqd.connect()
    assert client.identify(tls_v1=True, **wishes)["tls_v1"] is True
    start_tls(client, context)
    return client


def check_messages_pass(client: Client) -> None:
    """Publish and consume on one connection, a large body among them."""
    client.sub("t", "c")
    for body in (b"small", LARGE_BODY):
        client.pub("t", body)
    client.rdy(2)
    messages = client.read_messages(2)
    assert sorted((message.body for message in messages), key=len) == [b"small", LARGE_BODY]
    for message in messages:
        client.fin(message)
    assert client.frames_until_now() == []


def only_client(nsqd: NsqdHarness) -> Any:
    """The statistics of the one consumer there is."""
    (client,) = nsqd.channel("t", "c").clients
    return client


def patient_tls(below: socket.socket, *, suite: bytes = b"") -> SSL.Connection:
    """A TLS connection that can do what Python's cannot: choose a suite of TLS 1.3, and read after its goodbye."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    if suite:
        context.set_tls13_ciphersuites(suite)
    below.settimeout(None)  # pyOpenSSL does not wait on sockets that have one
    connection = SSL.Connection(context, below)
    connection.set_connect_state()
    connection.do_handshake()
    return connection


# TLS


@pytest.mark.conformance(143)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_goes_on_inside_tls(
    start_secure: StartNsqd, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    client = connect_with_tls(start_secure(), certificates.client(version=version))
    check_messages_pass(client)


@pytest.mark.conformance(144)
@pytest.mark.parametrize("required", [TlsRequired.YES, TlsRequired.TCP_HTTPS])
def test_where_tls_is_required_nothing_goes_before_it(start_secure: StartNsqd, required: TlsRequired) -> None:
    client = start_secure(tls_required=required).connect()
    client.command(b"SUB t c")
    client.expect_fatal("E_INVALID cannot SUB in current state (TLS required)")


@pytest.mark.conformance(145)
@pytest.mark.parametrize("command", ["NOP", "NONSENSE"])
def test_where_tls_is_required_even_nop_and_nonsense_are_too_early(start_secure: StartNsqd, command: str) -> None:
    client = start_secure(tls_required=TlsRequired.YES).connect()
    client.command(command.encode())
    client.expect_fatal(f"E_INVALID cannot {command} in current state (TLS required)")


def test_where_tls_is_required_an_identify_without_it_changes_nothing(start_secure: StartNsqd) -> None:
    client = start_secure(tls_required=TlsRequired.YES).connect()
    assert client.identify()["tls_v1"] is False
    client.command(b"PUB t", b"in clear")
    client.expect_fatal("E_INVALID cannot PUB in current state (TLS required)")


def test_where_tls_is_required_it_opens_the_way(start_secure: StartNsqd, certificates: Certificates) -> None:
    client = connect_with_tls(start_secure(tls_required=TlsRequired.YES), certificates.client())
    check_messages_pass(client)


def refused_client(nsqd: NsqdHarness, context: ssl.SSLContext) -> None:
    """A client that does not get into TLS: it is cut off, in the handshake or right after its own part of it."""
    with pytest.raises(CUT_OFF):
        connect_with_tls(nsqd, context)


@pytest.mark.conformance(146)
def test_require_refuses_clients_without_a_certificate(start_secure: StartNsqd, certificates: Certificates) -> None:
    refused_client(start_secure(tls_client_auth_policy="require"), certificates.client())


@pytest.mark.conformance(147)
def test_require_takes_any_certificate(start_secure: StartNsqd, certificates: Certificates) -> None:
    nsqd = start_secure(tls_client_auth_policy="require")
    check_messages_pass(connect_with_tls(nsqd, certificates.client(certificates.self_signed)))


@pytest.mark.conformance(148)
def test_require_verify_takes_only_what_the_authority_signed(
    start_secure: StartNsqd, certificates: Certificates
) -> None:
    nsqd = start_secure(tls_client_auth_policy="require-verify")
    refused_client(nsqd, certificates.client())
    refused_client(nsqd, certificates.client(certificates.untrusted))
    check_messages_pass(connect_with_tls(nsqd, certificates.client(certificates.signed)))


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_means_that_tls_is_required(start_secure: StartNsqd, policy: str) -> None:
    client = start_secure(tls_client_auth_policy=policy).connect()
    client.nop()
    client.expect_fatal("E_INVALID cannot NOP in current state (TLS required)")


def test_bytes_that_are_not_tls_end_only_their_own_connection(
    start_secure: StartNsqd, certificates: Certificates
) -> None:
    nsqd = start_secure()
    client = nsqd.connect()
    client.identify(tls_v1=True)
    client.send(b"PUB t\n\x00\x00\x00\x02in clear all the same")
    client.expect_closed()
    check_messages_pass(connect_with_tls(nsqd, certificates.client()))


def test_heartbeats_wait_until_the_handshake_is_done(start_secure: StartNsqd, certificates: Certificates) -> None:
    nsqd = start_secure()
    client = nsqd.connect()
    client.identify(tls_v1=True, heartbeat_interval=1000)
    nsqd.settle()
    nsqd.advance(ms=1500)
    start_tls(client, certificates.client())
    nsqd.advance(ms=1000)
    client.expect_heartbeat()


def test_nsqd_stops_while_a_client_shakes_hands(start_secure: StartNsqd) -> None:
    nsqd = start_secure()
    client = nsqd.connect()
    client.identify(tls_v1=True)
    nsqd.settle()
    nsqd.stop()
    client.expect_closed()


def test_an_error_is_told_inside_tls(start_secure: StartNsqd, certificates: Certificates) -> None:
    client = connect_with_tls(start_secure(), certificates.client())
    client.command(b"NONSENSE")
    client.expect_fatal("E_INVALID invalid command NONSENSE")


def test_a_command_is_answered_though_the_client_says_goodbye_behind_it(start_secure: StartNsqd) -> None:
    client = start_secure().connect()
    client.identify(tls_v1=True)
    connection = patient_tls(client.socket)
    client.socket = cast(socket.socket, connection)
    client.expect_ok()
    client.command(b"PUB t", b"last words")
    connection.shutdown()
    client.expect_ok()
    with pytest.raises(SSL.ZeroReturnError):  # nsqd's own goodbye
        connection.recv(1)


def test_a_reload_changes_the_certificate_and_cuts_nobody_off(start_secure: StartNsqd, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "second-authority")
    nsqd = start_secure(**authority.issue("server").options())
    context = client_context(authority.path)
    before = connect_with_tls(nsqd, context)
    authority.issue("server")  # into the same files
    nsqd.call(nsqd.nsqd.reload)
    after = connect_with_tls(nsqd, context)
    assert serial_number(after) != serial_number(before)
    check_messages_pass(before)


def serial_number(client: Client) -> Any:
    certificate = cast(ssl.SSLSocket, client.socket).getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


@pytest.mark.conformance(280)
def test_stats_name_the_version_and_the_suite(start_secure: StartNsqd) -> None:
    nsqd = start_secure()
    client = nsqd.connect()
    client.identify(tls_v1=True)
    client.socket = cast(socket.socket, patient_tls(client.socket, suite=b"TLS_AES_128_GCM_SHA256"))
    client.expect_ok()
    client.sub("t", "c")
    stats = only_client(nsqd)
    assert (stats.tls, stats.tls_version, stats.tls_cipher_suite) == (True, "TLS1.3", "Unknown 4865")


# Compression


@pytest.mark.conformance(149, 150)
@each_compression
def test_a_connection_goes_on_compressed(client: Client, compression: str) -> None:
    assert client.identify(**{compression: True})[compression] is True
    COMPRESSIONS[compression](client)
    check_messages_pass(client)


@pytest.mark.conformance(151)
@each_compression
def test_compression_goes_inside_tls(start_secure: StartNsqd, certificates: Certificates, compression: str) -> None:
    client = connect_with_tls(start_secure(), certificates.client(), **{compression: True})
    COMPRESSIONS[compression](client)
    check_messages_pass(client)


@pytest.mark.conformance(152)
@each_compression
def test_stats_name_the_compression_and_the_user_agent(nsqd: NsqdHarness, client: Client, compression: str) -> None:
    client.identify(user_agent="judge/1.0", **{compression: True})
    COMPRESSIONS[compression](client)
    client.sub("t", "c")
    stats = only_client(nsqd)
    assert stats.user_agent == "judge/1.0"
    assert {"deflate": stats.deflate, "snappy": stats.snappy} == {name: name == compression for name in COMPRESSIONS}


@pytest.mark.conformance(42)
@pytest.mark.parametrize("level", range(1, 10))
@pytest.mark.nsqd(max_deflate_level=9)
def test_every_deflate_level_works(client: Client, level: int) -> None:
    assert client.identify(deflate=True, deflate_level=level)["deflate_level"] == level
    start_deflate(client, level)
    client.pub("t", LARGE_BODY)


@each_compression
def test_a_compression_that_is_turned_off_is_declined(start_nsqd: StartNsqd, compression: str) -> None:
    client = start_nsqd(**{compression: False}).connect()
    assert client.identify(**{compression: True})[compression] is False
    client.pub("t", b"in clear")


@each_compression
def test_heartbeats_are_compressed_too(nsqd: NsqdHarness, client: Client, compression: str) -> None:
    client.identify(heartbeat_interval=1000, **{compression: True})
    COMPRESSIONS[compression](client)
    nsqd.advance(ms=1000)
    client.expect_heartbeat()


@each_compression
def test_an_error_is_told_in_the_compressed_stream(client: Client, compression: str) -> None:
    client.identify(**{compression: True})
    COMPRESSIONS[compression](client)
    client.command(b"NONSENSE")
    client.expect_fatal("E_INVALID invalid command NONSENSE")


@each_compression
def test_bytes_behind_the_identify_are_lost(nsqd: NsqdHarness, client: Client, compression: str) -> None:
    body = b'{"feature_negotiation":true,"%b":true}' % compression.encode()
    client.send(b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body + b"PUB lost\n\x00\x00\x00\x01x")
    client.read_response()
    COMPRESSIONS[compression](client)
    client.pub("t", b"found")
    assert not nsqd.has_topic("lost")


@each_compression
def test_garbage_ends_only_its_own_connection_and_without_a_word(
    nsqd: NsqdHarness, client: Client, compression: str
) -> None:
    client.identify(**{compression: True})
    COMPRESSIONS[compression](client)
    below = cast(Any, client.socket).below
    below.sendall(b"\x07 this is not compressed in any way" * 10)
    client.expect_closed()
    nsqd.connect().pub("t", b"others go on")


def nop_bomb(compression: str) -> bytes:
    """A few kilobytes that stand for 1 MiB of NOPs, and a PUB behind them."""
    pub = b"PUB t\n\x00\x00\x00\x04boom"
    if compression == "deflate":
        deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflater.compress(b"NOP\n" * (256 << 10) + pub) + deflater.flush(zlib.Z_SYNC_FLUSH)
    nops: list[snappy.Element] = [snappy.Literal(b"NOP\n"), *[snappy.Copy(4, 64, 2)] * 1023]
    return snappy.compressed_chunk(nops) * 16 + snappy.uncompressed_chunk(pub)


@each_compression
def test_a_bomb_keeps_nobody_else_waiting(nsqd: NsqdHarness, compression: str) -> None:
    bomber, bystander = nsqd.connect(), nsqd.connect()
    bomber.identify(**{compression: True})
    COMPRESSIONS[compression](bomber)
    bystander.pub("t", b"before")
    cast(Any, bomber.socket).below.sendall(nop_bomb(compression))
    bystander.pub("t", b"meanwhile")
    assert not bomber.has_input()  # nsqd is still at its NOPs
    bomber.expect_ok()


# HTTP and HTTPS


def publish(nsqd: NsqdHarness, context: ssl.SSLContext) -> tuple[int, bytes]:
    """POST /pub over HTTPS; status and body of the answer."""
    address = nsqd.nsqd.https_address
    assert isinstance(address, tuple)
    connection = http.client.HTTPSConnection("localhost", address[1], context=context, timeout=10)
    try:
        connection.request("POST", "/pub?topic=t", b"by https")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def plain_http(nsqd: NsqdHarness) -> HttpClient:
    address = nsqd.nsqd.http_address
    assert address is not None
    return HttpClient(address)


def check_plain_http_is_refused(nsqd: NsqdHarness) -> None:
    address = nsqd.nsqd.https_address
    assert isinstance(address, tuple)
    answer = plain_http(nsqd).request("POST", "/pub?topic=t", b"in clear")
    assert (answer.status, answer.text) == (403, f'{{"message": "TLS_REQUIRED", "https_port": {address[1]}}}')


@pytest.mark.conformance(200)
def test_require_closes_plain_http_and_takes_any_certificate_on_https(
    start_secure: StartNsqd, certificates: Certificates
) -> None:
    nsqd = start_secure(tls_client_auth_policy="require")
    check_plain_http_is_refused(nsqd)
    for certificate in (certificates.signed, certificates.self_signed, certificates.untrusted):
        assert publish(nsqd, certificates.client(certificate)) == (200, b"OK")
    with pytest.raises(CUT_OFF):
        publish(nsqd, certificates.client())


@pytest.mark.conformance(201)
def test_require_verify_closes_plain_http_and_verifies_on_https(
    start_secure: StartNsqd, certificates: Certificates
) -> None:
    nsqd = start_secure(tls_client_auth_policy="require-verify")
    check_plain_http_is_refused(nsqd)
    for certificate in (None, certificates.untrusted, certificates.self_signed):
        with pytest.raises(CUT_OFF):
            publish(nsqd, certificates.client(certificate))
    assert publish(nsqd, certificates.client(certificates.signed)) == (200, b"OK")


@pytest.mark.conformance(202)
def test_plain_http_stays_open_where_tls_is_required_for_the_rest(start_secure: StartNsqd) -> None:
    nsqd = start_secure(tls_client_auth_policy="require-verify", tls_required=TlsRequired.TCP_HTTPS)
    answer = plain_http(nsqd).request("POST", "/pub?topic=t", b"in clear")
    assert (answer.status, answer.body) == (200, b"OK")


def test_https_without_a_policy_asks_for_no_certificate(start_secure: StartNsqd, certificates: Certificates) -> None:
    assert publish(start_secure(), certificates.client()) == (200, b"OK")
