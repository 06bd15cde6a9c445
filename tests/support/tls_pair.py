"""Both ends of a TLS connection in memory: no sockets, no loop, nothing to wait for.

`TlsPair` carries bytes between a server's context and a client's as an event loop would, and so shows what either end
would see: a finished handshake, an error, plain bytes.
"""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path

from tests.support.certificates import KeyPair

FLIGHTS = 6
"""Flights a handshake takes at most, and then some."""


def client_context(
    authority_path: Path,
    *,
    certificate: KeyPair | None = None,
    version: ssl.TLSVersion | None = None,
    is_old: bool = False,
) -> ssl.SSLContext:
    """A client that trusts the authority, shows a certificate if it has one, and speaks one version if told which.

    An old client (`is_old`, or one that speaks an old version) is content with weak keys and signatures.
    """
    context = ssl.create_default_context(cafile=str(authority_path))
    if is_old:
        context.set_ciphers("ALL:@SECLEVEL=0")
    if certificate is not None:
        context.load_cert_chain(certificate.certificate_path, certificate.key_path)
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # old versions are what some tests are about
            context.minimum_version = context.maximum_version = version
        if version < ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("ALL:@SECLEVEL=0")
    return context


class TlsPair:
    """A client and a server that talk to each other."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server_incoming, self.server_outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self.to_client, self.to_server, server_hostname="localhost")
        self.server = server.wrap_bio(self.server_incoming, self.server_outgoing, server_side=True)

    def shake_hands(self) -> None:
        """Do the handshake, or raise what either end raises. With TLS 1.3 the client is done before the server is."""
        done = {self.client: False, self.server: False}
        for _ in range(FLIGHTS):
            for end in (self.client, self.server):
                if not done[end]:
                    done[end] = _try_handshake(end)
                self.carry()
        assert all(done.values())

    def carry(self) -> None:
        """Bring to each end what the other has sent."""
        self.server_incoming.write(self.to_server.read())
        self.to_client.write(self.server_outgoing.read())

    def say_to_server(self, plain: bytes) -> None:
        """Send from the client; the bytes then wait at the server's end."""
        self.client.write(plain)
        self.carry()

    def heard_by_client(self) -> bytes:
        """All that the server has sent."""
        self.carry()
        heard = b""
        try:
            while piece := self.client.read(65536):
                heard += piece
        except ssl.SSLWantReadError:
            pass
        return heard


def _try_handshake(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
