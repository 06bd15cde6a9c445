"""A stranger between client and nsqd speaks in clear, then lets the client shake hands: nothing of it may be executed.

The client believes that all nsqd hears comes from it, and takes the answers to the stranger's commands for its own.
"""

from __future__ import annotations

import json
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from emberq.nsqd.options import TlsRequired
from emberq.wire.compression import PIECE_BYTES
from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.raw_client import ERROR, Client, Frame
from tests.support.stream_upgrade import TranslatedSocket, snappy_chunks, start_deflate, start_snappy, start_tls
from tests.support.tls_pair import client_context
from tests.wire import reference_snappy as snappy

CUT_OFF = (ssl.SSLError, ConnectionError, EOFError)
"""How a client finds out that nsqd does not go on."""
REFUSED = Frame(ERROR, b"E_INVALID cannot IDENTIFY in current state")


def with_size(line: bytes, body: bytes) -> bytes:
    return line + b"\n" + struct.pack(">i", len(body)) + body


ASKS_FOR_TLS = with_size(b"IDENTIFY", json.dumps({"feature_negotiation": True, "tls_v1": True}).encode())
INJECTED = with_size(b"PUB injected", b"by a stranger")


@pytest.fixture
def closed(start_nsqd: StartNsqd, authority: Authority) -> NsqdHarness:
    """An nsqd that serves clients with a certificate of the authority alone."""
    return start_nsqd(
        tls_required=TlsRequired.YES,
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=str(authority.path),
        **authority.issue("server").options(),
    )


@pytest.fixture
def honest(authority: Authority) -> ssl.SSLContext:
    """The client's side of TLS."""
    return client_context(authority.path, certificate=authority.issue("client"))


def publish_as_the_client(client: Client, honest: ssl.SSLContext) -> None:
    """The client shakes hands on the connection that the stranger has prepared, and publishes."""
    start_tls(client, honest)
    client.pub("expected", b"by the client")


# Through a compressed stream, which may hold more than nsqd has looked at when it begins the handshake.


def inject_by_snappy(client: Client) -> None:
    """Padding ends the piece that nsqd takes first, so that the PUB stays behind in the codec."""
    start_snappy(client)
    below = cast(TranslatedSocket, client.socket).below
    below.sendall(snappy_chunks(ASKS_FOR_TLS) + snappy.chunk(snappy.PADDING, b"") + snappy_chunks(INJECTED))


def inject_by_deflate(client: Client) -> None:
    """What stands in one piece with the IDENTIFY is dropped with it; the PUB stands in the next."""
    start_deflate(client)
    padding = b"NOP\n" * ((PIECE_BYTES - len(ASKS_FOR_TLS)) // 4) + b" " * (-len(ASKS_FOR_TLS) % 4)
    client.send(ASKS_FOR_TLS + padding + INJECTED)


INJECTIONS: dict[str, Callable[[Client], None]] = {"snappy": inject_by_snappy, "deflate": inject_by_deflate}


@pytest.mark.parametrize("compression", INJECTIONS)
def test_what_came_compressed_in_clear_is_not_executed_after_the_handshake(
    closed: NsqdHarness, honest: ssl.SSLContext, compression: str
) -> None:
    client = closed.connect()
    client.identify(**{compression: True})
    INJECTIONS[compression](client)
    answer = client.read_frame()
    client.socket = cast(TranslatedSocket, client.socket).below
    with suppress(*CUT_OFF):
        publish_as_the_client(client, honest)
    assert not closed.has_topic("injected")
    assert answer == REFUSED


# In clear.


@pytest.mark.parametrize("in_one_packet", [True, False])
def test_what_came_in_clear_behind_the_identify_is_not_executed(
    closed: NsqdHarness, honest: ssl.SSLContext, in_one_packet: bool
) -> None:
    client = closed.connect()
    if in_one_packet:
        client.send(ASKS_FOR_TLS + INJECTED)
        client.read_response()
    else:
        client.send(ASKS_FOR_TLS)
        client.read_response()
        client.send(INJECTED)
    with suppress(*CUT_OFF):
        publish_as_the_client(client, honest)
    assert not closed.has_topic("injected")
    assert closed.has_topic("expected") == in_one_packet


# A second IDENTIFY.


def encrypted(client: Client, honest: ssl.SSLContext) -> None:
    client.identify(tls_v1=True)
    start_tls(client, honest)


def deflated(client: Client, _honest: ssl.SSLContext) -> None:
    client.identify(deflate=True)
    start_deflate(client)


def snapped(client: Client, _honest: ssl.SSLContext) -> None:
    client.identify(snappy=True)
    start_snappy(client)


@pytest.mark.parametrize("upgrade", [encrypted, deflated, snapped])
@pytest.mark.parametrize("wishes", [{}, {"tls_v1": True}, {"snappy": True}], ids=["nothing", "tls", "snappy"])
def test_identify_is_refused_once_the_stream_is_upgraded(
    closed: NsqdHarness,
    honest: ssl.SSLContext,
    upgrade: Callable[[Client, ssl.SSLContext], None],
    wishes: dict[str, Any],
) -> None:
    client = closed.connect()
    upgrade(client, honest)
    client.send_identify(feature_negotiation=True, **wishes)
    assert client.read_frame() == REFUSED


def test_identify_may_be_repeated_before_the_upgrade(closed: NsqdHarness, honest: ssl.SSLContext) -> None:
    client = closed.connect()
    assert client.identify()["tls_v1"] is False
    encrypted(client, honest)
    client.pub("expected", b"-")


# Authorization.


def test_an_authorization_of_before_the_handshake_does_not_count_after_it(
    start_nsqd: StartNsqd, authority: Authority
) -> None:
    with AuthServer(grant(entry(), identity="stranger")) as server:
        nsqd = start_nsqd(auth_http_address=(server.address,), **authority.issue("server").options())
        client = nsqd.connect()
        client.command(b"AUTH", b"the stranger's secret")
        client.read_response()
        encrypted(client, client_context(authority.path))
        client.command(b"PUB expected", b"in the stranger's name")
        client.expect_fatal("E_AUTH_FIRST AUTH required before PUB")


def test_a_client_authorizes_itself_after_the_handshake(start_nsqd: StartNsqd, authority: Authority) -> None:
    with AuthServer(grant(entry(), identity="client")) as server:
        nsqd = start_nsqd(auth_http_address=(server.address,), **authority.issue("server").options())
        client = nsqd.connect()
        client.command(b"AUTH", b"the stranger's secret")
        client.read_response()
        encrypted(client, client_context(authority.path))
        client.command(b"AUTH", b"the client's secret")
        client.read_response()
        client.pub("expected", b"-")
        assert [question.params["tls"] for question in server.questions] == [["false"], ["true"]]
