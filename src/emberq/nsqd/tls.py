"""TLS as nsqd offers it, on its TCP connections after IDENTIFY and on HTTPS, and what a handshake agreed on.

Two flags decide what a client has to show, `--tls-client-auth-policy` and `--tls-root-ca-file`:

    policy            certificate of the client
    unset, or other   not asked for
    require           must be there and fit the client's key; who signed it does not matter
    require-verify    must be signed by an authority of the file, or of the system when there is no file

Python's ssl module has no `require`: it asks for certificates only to verify them. That policy is served by pyOpenSSL,
see `unverified_certificate`.

Reloading. The event loop gets one context for good, `ReloadableContext`, which passes each handshake to the context
built last. So a reload is one assignment, open connections stay, and a reload that fails changes nothing.

Old versions. TLS 1.2 is the lowest unless `--tls-min-version` asks for less, and OpenSSL's level 2 is demanded: keys of
2048 bits (RSA) or 224 (elliptic curves), no signatures with MD5 or SHA-1. OpenSSL 3 speaks TLS 1.0 and 1.1 only at its
lowest level, at which weak keys and signatures pass too. So that level is set for an operator who asks for these
versions. A client that can do better gets better in any case. The order of cipher suites is the client's: all that are
left are sound, and the client knows which are fast on its machine.

`TlsConnection` is what /stats and the authorization servers are told about a connection, in the reference's words.
OpenSSL has its own names of cipher suites; the numbers behind them are IANA's. Thirteen numbers have a name in the
reference's answers, all others show as `Unknown 4865`.
"""

from __future__ import annotations

import logging
import ssl
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

from emberq.nsqd.options import NsqdOptions, TlsVersion

REQUIRE = "require"
REQUIRE_VERIFY = "require-verify"
CIPHERS = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
LEGACY_CIPHERS = "@SECLEVEL=0:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:RSA+AES:!aNULL:!eNULL:!aDSS:!AESCCM"
"""For versions below 1.2, whose suites all have SHA-1 in them."""

_log = logging.getLogger(__name__)


class TlsError(Exception):
    """TLS cannot be offered as the options ask for it; the text says why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files that a context is built from. `check` names one that is missing, which OpenSSL's errors do not."""

    certificate: str
    key: str
    root_ca: str

    def check(self) -> None:
        if not (self.certificate and self.key):
            raise TlsError("--tls-cert and --tls-key must be given together")
        for path in filter(None, (self.certificate, self.key, self.root_ca)):
            try:
                Path(path).open("rb").close()
            except OSError as failure:
                raise TlsError(f"open {path}: {failure.strerror}") from failure


class HandshakeContext(Protocol):
    """What an event loop uses of a TLS context."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject: ...


class ReloadableContext(ssl.SSLContext):
    """A context that leaves each handshake to the one that is `current` then."""

    current: HandshakeContext

    def __new__(cls) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **options)


class LimitedContext(ssl.SSLContext):
    """Leaves handshakes to another context, as long as there is room for a connection.

    For a listener whose connections begin by a handshake: no part of ours sees them before it is done, and a client may
    never do it.
    """

    _context: ssl.SSLContext
    _has_room: Callable[[], bool]

    def __new__(cls, context: ssl.SSLContext, *, has_room: Callable[[], bool]) -> Self:
        limited = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        limited._context = context
        limited._has_room = has_room
        return limited

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        if not self._has_room():
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "too many connections")
        return self._context.wrap_bio(*args, **options)


class ServerTls:
    """nsqd's side of TLS. Owned by the daemon; `load` before use."""

    def __init__(self, options: NsqdOptions) -> None:
        self._files = TlsFiles(options.tls_cert, options.tls_key, options.tls_root_ca_file)
        self._policy = options.tls_client_auth_policy
        self._min_version = options.tls_min_version
        self.context = ReloadableContext()
        """For the event loop: `start_tls`, or `create_server` for HTTPS."""

    @staticmethod
    def is_configured(options: NsqdOptions) -> bool:
        """Whether the options ask for TLS. One of the two files is enough to ask; `load` refuses it."""
        return bool(options.tls_cert or options.tls_key)

    def load(self) -> None:
        """Read the files; TlsError if they cannot be used."""
        try:
            self.context.current = self._build()
        except TlsError as failure:
            raise TlsError(f"failed to build TLS config - {failure}") from failure

    def reload(self) -> None:
        """Read the files again, for all handshakes from now on. If they cannot be used, the old ones stay in use."""
        try:
            self.load()
        except TlsError as failure:
            _log.error("TLS: %s; the certificate in use stays", failure)
        else:
            _log.info("TLS: now using the certificate that is in %s", self._files.certificate)

    def _build(self) -> HandshakeContext:
        self._files.check()
        try:
            return self._build_unverified() if self._policy == REQUIRE else self._build_standard()
        except ssl.SSLError as failure:
            raise TlsError(f"{self._files.certificate}, {self._files.key}: {_reason(failure)}") from failure

    def _build_standard(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_ciphers(ciphers_for(self._min_version))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the operator asked for TLS 1.0 or 1.1
            context.minimum_version = ssl.TLSVersion(self._min_version)
        context.load_cert_chain(self._files.certificate, self._files.key, password=_refuse_encrypted_key)
        if self._policy == REQUIRE_VERIFY:
            self._verify_clients(context)
        return context

    def _verify_clients(self, context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        if not self._files.root_ca:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
            return
        try:
            context.load_verify_locations(cafile=self._files.root_ca)
        except ssl.SSLError as failure:
            raise TlsError(f"{self._files.root_ca}: {_reason(failure)}") from failure

    def _build_unverified(self) -> HandshakeContext:
        try:
            from emberq.nsqd.unverified_certificate import UnverifiedContext
        except ImportError as missing:
            remedy = "pip install 'emberq[client-certificates]'"
            raise TlsError(f"--tls-client-auth-policy={REQUIRE} needs pyOpenSSL: {remedy}") from missing
        return UnverifiedContext(
            certificate_path=self._files.certificate,
            key_path=self._files.key,
            min_version=self._min_version,
            ciphers=ciphers_for(self._min_version),
        )


def ciphers_for(min_version: TlsVersion) -> str:
    """The cipher suites up to TLS 1.2, as OpenSSL names them; those of 1.3 are all sound and always on."""
    return LEGACY_CIPHERS if min_version < TlsVersion.TLS_1_2 else CIPHERS


def _refuse_encrypted_key() -> str:
    """Without this OpenSSL would ask for the password on the terminal."""
    raise TlsError("the private key is encrypted")


def _reason(failure: ssl.SSLError) -> str:
    """OpenSSL's text, without the line of C that Python adds."""
    return str(failure).split(" (_ssl.c:", maxsplit=1)[0]


# What a handshake agreed on.


@dataclass(frozen=True, slots=True)
class TlsConnection:
    """What was agreed in a handshake."""

    version: str
    cipher_suite: str
    negotiated_protocol: str
    """By ALPN; empty if none was offered."""
    peer_common_name: str
    """The subject's common name in the client's certificate; empty without one."""

    @classmethod
    def of(cls, agreed: ssl.SSLObject) -> TlsConnection:
        """Read it from `transport.get_extra_info("ssl_object")`, after the handshake."""
        cipher = agreed.cipher()
        return cls(
            version=version_name(agreed.version() or ""),
            cipher_suite=suite_name(cipher[0] if cipher else ""),
            negotiated_protocol=agreed.selected_alpn_protocol() or "",
            peer_common_name=common_name(agreed.getpeercert()),
        )


_VERSION_NAMES = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}
_SUITE_NAMES = {
    0x0005: "TLS_RSA_WITH_RC4_128_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}


def version_name(openssl_name: str) -> str:
    return _VERSION_NAMES.get(openssl_name, f"Unknown {openssl_name}")


def suite_name(openssl_name: str) -> str:
    number = _suite_numbers().get(openssl_name, 0)
    return _SUITE_NAMES.get(number, f"Unknown {number}")


@cache
def _suite_numbers() -> dict[str, int]:
    """IANA's number of every suite that this OpenSSL knows. OpenSSL puts two bytes of its own in front."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    return {suite["name"]: suite["id"] & 0xFFFF for suite in context.get_ciphers()}


def common_name(certificate: dict[str, Any] | None) -> str:
    """The common name in a certificate as `getpeercert` returns it; of several, the last."""
    name = ""
    for relative_name in (certificate or {}).get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                name = value
    return name
