"""Clients that bring TLS as it was: an old version, or a certificate that others can forge."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from http.client import HTTPSConnection

import pytest

from emberq.base.tls import TlsVersion
from tests.conftest import StartNsqd
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.stream_upgrade import start_tls
from tests.support.tls_pair import client_context

CUT_OFF = (ssl.SSLError, ConnectionError, EOFError)
"""How a client finds out that it is not wanted: which of them it is depends on how far it has got by then."""


@pytest.fixture
def start_secure(start_nsqd: StartNsqd, authority: Authority) -> StartNsqd:
    """Starts an nsqd that verifies the certificates of clients."""

    def start(**options: object) -> NsqdHarness:
        return start_nsqd(
            tls_client_auth_policy="require-verify",
            tls_root_ca_file=str(authority.path),
            **authority.issue("server").options(),
            **options,
        )

    return start


def publish_over_tcp(nsqd: NsqdHarness, context: ssl.SSLContext) -> None:
    client = nsqd.connect()
    client.identify(tls_v1=True)
    start_tls(client, context)
    client.pub("t", b"-")


def publish_over_https(nsqd: NsqdHarness, context: ssl.SSLContext) -> None:
    address = nsqd.nsqd.https_address
    assert isinstance(address, tuple)
    connection = HTTPSConnection("localhost", address[1], context=context, timeout=30)
    connection.request("POST", "/pub?topic=t", b"-")
    assert connection.getresponse().read() == b"OK"
    connection.close()


Publish = Callable[[NsqdHarness, ssl.SSLContext], None]

by_both_ways = pytest.mark.parametrize("publish", [publish_over_tcp, publish_over_https])


@by_both_ways
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_an_old_version_is_spoken_only_when_the_operator_asks_for_it(
    start_secure: StartNsqd, authority: Authority, publish: Publish, version: ssl.TLSVersion
) -> None:
    context = client_context(authority.path, certificate=authority.issue("client"), version=version)
    nsqd = start_secure()
    with pytest.raises(CUT_OFF):
        publish(nsqd, context)
    nsqd.restart(tls_min_version=TlsVersion.TLS_1_0)
    publish(nsqd, context)


@by_both_ways
def test_a_weak_certificate_lets_a_client_in_only_when_the_operator_asks_for_old_versions(
    start_secure: StartNsqd, authority: Authority, publish: Publish
) -> None:
    context = client_context(authority.path, certificate=authority.issue("weak", rsa_bits=1024), is_old=True)
    nsqd = start_secure()
    with pytest.raises(CUT_OFF):
        publish(nsqd, context)
    nsqd.restart(tls_min_version=TlsVersion.TLS_1_0)
    publish(nsqd, context)
