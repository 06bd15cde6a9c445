"""TLS that demands a certificate of the client but does not check who signed it: the policy `require`.

Python's ssl module cannot do that: OpenSSL needs a callback that overrules its verdict, and ssl offers none. pyOpenSSL
has such a callback, but connections of its own kind. `UnverifiedContext` and `UnverifiedConnection` give them the
interface of `ssl.SSLContext` and `ssl.SSLObject`, as far as event loops use it:

    socket -> incoming BIO -> pyOpenSSL's connection -> plain bytes
    socket <- outgoing BIO <- pyOpenSSL's connection <- plain bytes

The BIOs are the event loop's. Each step first takes what is in the incoming one, and moves what it makes to the
outgoing one at once. `pending` tells the event loop of bytes that are in neither.

A handshake still proves that the client has the key of the certificate it showed. So the key must be one that others
cannot compute.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

T = TypeVar("T")

SESSION_ID = b"emberq"
"""The name of the session cache. Without one, OpenSSL resumes no session of a client with a certificate."""
RECORD_BYTES = 16 * 1024
"""The most plain bytes in one TLS record, and so the most that one read from OpenSSL gives."""
OUTGOING_PIECE_BYTES = 64 * 1024
TOO_WEAK = frozenset({66, 67, 68})
"""OpenSSL's verdicts X509_V_ERR_EE_KEY_TOO_SMALL, _CA_KEY_TOO_SMALL and _CA_MD_TOO_WEAK; none is given at level 0."""


class UnverifiedContext:
    """Settings for handshakes as a server; never changed once built. Wrong files raise ssl.SSLError."""

    def __init__(self, *, certificate_path: str, key_path: str, min_version: int, ciphers: str) -> None:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(min_version)
        context.set_session_id(SESSION_ID)
        context.set_options(SSL.OP_NO_RENEGOTIATION)
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _accept)
        with _standard_errors():
            context.set_cipher_list(ciphers.encode())
            context.use_certificate_chain_file(certificate_path)
            context.use_privatekey(_private_key(key_path))
            context.check_privatekey()
        self._context = context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: ARG002 - the signature is ssl's; this is always a server
        server_hostname: str | bytes | None = None,  # noqa: ARG002
        session: ssl.SSLSession | None = None,  # noqa: ARG002
    ) -> ssl.SSLObject:
        """A connection that talks through these BIOs."""
        connection = SSL.Connection(self._context, None)
        connection.set_accept_state()
        return cast(ssl.SSLObject, UnverifiedConnection(connection, incoming, outgoing))


def _private_key(path: str) -> Any:
    """The key in a file. OpenSSL would ask for the password of an encrypted key on the terminal, so it is read here."""
    try:
        return load_pem_private_key(Path(path).read_bytes(), password=None)
    except TypeError as failure:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the private key is encrypted") from failure
    except (ValueError, UnsupportedAlgorithm) as failure:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, "no private key") from failure


def _accept(_connection: SSL.Connection, _certificate: Any, verdict: int, _depth: int, _is_good: int) -> bool:
    """Accept every certificate, whatever OpenSSL thinks of it, except one that is too weak for the security level.

    The key of such a certificate proves nothing: others may have computed it.
    """
    return verdict not in TOO_WEAK


class UnverifiedConnection:
    """The part of ssl.SSLObject that event loops and `TlsConnection` use. Owned by the loop's TLS transport."""

    def __init__(self, connection: SSL.Connection, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing
        self._may_hold_more = False
        """The connection was given bytes, and reads have not yet taken them all."""

    def do_handshake(self) -> None:
        self._take_arrived()
        self._step(self._connection.do_handshake)

    def read(self, size: int) -> bytes:
        """At most `size` plain bytes; none if the peer has closed its side properly."""
        self._take_arrived()
        return self._step(lambda: self._read(size))

    def _read(self, size: int) -> bytes:
        records: list[bytes] = []
        total_bytes = 0
        while total_bytes < size:
            try:
                record = self._connection.recv(min(size - total_bytes, RECORD_BYTES))
            except SSL.ZeroReturnError:
                self._may_hold_more = bool(records)  # the next read reports the end of the stream
                break
            except SSL.WantReadError:
                self._may_hold_more = False
                if not records:
                    raise
                break
            records.append(record)
            total_bytes += len(record)
        return b"".join(records)

    def write(self, data: bytes) -> int:
        """Takes nothing from the incoming BIO, whose size is how the event loop knows when to stop reading."""
        return self._step(lambda: self._connection.send(data))

    def pending(self) -> int:
        """Above 0 if a read may find bytes without more from the socket."""
        return self._connection.pending() or int(self._may_hold_more)

    def unwrap(self) -> None:
        """Close the TLS stream. SSLWantReadError until the peer has closed it too."""
        self._take_arrived()
        if not self._step(self._connection.shutdown):
            raise ssl.SSLWantReadError

    def _take_arrived(self) -> None:
        arrived = self._incoming.read()
        if arrived:
            self._connection.bio_write(arrived)
            self._may_hold_more = True

    def _step(self, work: Callable[[], T]) -> T:
        try:
            with _standard_errors():
                return work()
        finally:
            self._send()

    def _send(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(OUTGOING_PIECE_BYTES))
        except SSL.WantReadError:
            pass  # that was all

    def getpeercert(self) -> dict[str, Any]:
        """The common names in the peer's certificate, in the form that ssl returns."""
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        try:
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) if certificate else []
        except ValueError:
            names = []  # an unverified certificate may be malformed
        return {"subject": tuple((("commonName", str(name.value)),) for name in names)}

    def version(self) -> str:
        return self._connection.get_protocol_version_name()

    def cipher(self) -> tuple[str, str, int] | None:
        name = self._connection.get_cipher_name()
        if name is None:
            return None
        return name, self._connection.get_cipher_version() or "", self._connection.get_cipher_bits() or 0

    def selected_alpn_protocol(self) -> str | None:
        return self._connection.get_alpn_proto_negotiated().decode() or None

    def compression(self) -> None:
        """None: TLS compression is unsafe and off."""


@contextmanager
def _standard_errors() -> Iterator[None]:
    """Turn pyOpenSSL's errors into those of ssl."""
    try:
        yield
    except SSL.WantReadError as failure:
        raise ssl.SSLWantReadError from failure
    except SSL.Error as failure:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, _reason(failure)) from failure


def _reason(failure: SSL.Error) -> str:
    """OpenSSL's text, which pyOpenSSL keeps as (library, function, reason) triples."""
    queue = failure.args[0] if failure.args else ()
    reasons = [entry[2] for entry in queue if isinstance(entry, tuple)] if isinstance(queue, (list, tuple)) else []
    return ", ".join(reasons) or str(failure) or type(failure).__name__
