"""TLS contexts made from files and flags: a client's, and a server's whose certificates can be read again.

**A client's** (`client_context`) is made in one way by every program here:

    ca_file              the authorities to trust; None: those that the system trusts
    cert_file, key_file  what the client shows of itself, if a server asks for it
    verify               False: any server will do, under any name
    minimum              the lowest version of TLS to speak; None: OpenSSL's default

Callers word the error themselves, because each names its own flags.

**A server's** (`ServerTls`) is made of five flags that nsqd, nsqlookupd and nsqadmin have in common. Two of them decide
what a client has to show, `--tls-client-auth-policy` and `--tls-root-ca-file`:

    policy            certificate of the client
    unset             not asked for
    require           must be there and fit the client's key; who signed it does not matter
    require-verify    must be signed by an authority of the file, or of the system when there is no file

Python's ssl module has no `require`: it asks for certificates only to verify them. That policy is served by pyOpenSSL,
see `unverified_certificate`. nsqd takes any other policy for none, as the reference does.

Reloading. The event loop gets one context for good, `ReloadableContext`, which passes each handshake to the context
built last. So a reload is one assignment, open connections stay, and a reload that fails changes nothing.

Old versions. TLS 1.2 is the lowest unless `--tls-min-version` asks for less, and OpenSSL's level 2 is demanded: keys of
2048 bits (RSA) or 224 (elliptic curves), no signatures with MD5 or SHA-1. OpenSSL 3 speaks TLS 1.0 and 1.1 only at its
lowest level, at which weak keys and signatures pass too. So that level is set for an operator who asks for these
versions. A client that can do better gets better in any case. The order of cipher suites is the client's: all that are
left are sound, and the client knows which are fast on its machine.
"""

from __future__ import annotations

import enum
import logging
import ssl
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from emberq.base.flag import Words
from emberq.base.text import quoted

REQUIRE = "require"
REQUIRE_VERIFY = "require-verify"
CIPHERS = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
LEGACY_CIPHERS = "@SECLEVEL=0:ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:RSA+AES:!aNULL:!eNULL:!aDSS:!AESCCM"
"""For versions below 1.2, whose suites all have SHA-1 in them."""

_log = logging.getLogger(__name__)


# A client's.


class TlsFileError(Exception):
    """A file cannot be used; the text is that of `reason`."""

    def __init__(self, reason: OSError, *, is_authority: bool) -> None:
        super().__init__(str(reason))
        self.reason = reason
        """An ssl.SSLError if the file could be read but does not hold what it should."""
        self.is_authority = is_authority
        """Whether it is `ca_file`; otherwise it is `cert_file` or `key_file`."""


def client_context(
    *,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    verify: bool = True,
    minimum: ssl.TLSVersion | None = None,
) -> ssl.SSLContext:
    """A context for connections to servers; TlsFileError. An empty file name means the same as None."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as failure:  # ssl.SSLError is one
        raise TlsFileError(failure, is_authority=True) from failure
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file or None)
        except OSError as failure:
            raise TlsFileError(failure, is_authority=False) from failure
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if minimum is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the operator asked for TLS 1.0 or 1.1
            context.minimum_version = minimum
    return context


# A server's.


class TlsVersion(enum.IntEnum):
    """The lowest version of TLS accepted; the numbers are those of the TLS protocol."""

    TLS_1_0 = 0x0301
    TLS_1_1 = 0x0302
    TLS_1_2 = 0x0303
    TLS_1_3 = 0x0304


TLS_MIN_VERSION = Words(
    "version",
    {
        "tls1.0": TlsVersion.TLS_1_0,
        "tls1.1": TlsVersion.TLS_1_1,
        "tls1.2": TlsVersion.TLS_1_2,
        "tls1.3": TlsVersion.TLS_1_3,
    },
    aliases={"": TlsVersion.TLS_1_2},  # an empty key in a config file means the default
    refusal="unknown tlsVersionOption {}",
)


class TlsOptions(Protocol):
    """The options of a daemon that say how it speaks TLS."""

    @property
    def tls_cert(self) -> str: ...

    @property
    def tls_key(self) -> str: ...

    @property
    def tls_root_ca_file(self) -> str: ...

    @property
    def tls_client_auth_policy(self) -> str: ...

    @property
    def tls_min_version(self) -> TlsVersion: ...


class TlsError(Exception):
    """TLS cannot be offered as the options ask for it; the text says why."""


def check_tls(options: TlsOptions) -> None:
    """TlsError for options of which a part is missing, or that would ask for less than an operator may think."""
    policy = options.tls_client_auth_policy
    if policy not in ("", REQUIRE, REQUIRE_VERIFY):
        raise TlsError(f"--tls-client-auth-policy must be {REQUIRE} or {REQUIRE_VERIFY}, not {quoted(policy)}")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise TlsError("--tls-cert and --tls-key must be given together")
    if policy and not options.tls_cert:
        raise TlsError("cannot ask clients for certificates without --tls-cert and --tls-key")
    if options.tls_root_ca_file and policy != REQUIRE_VERIFY:
        raise TlsError(f"--tls-root-ca-file has no effect without --tls-client-auth-policy={REQUIRE_VERIFY}")


def loaded_tls(options: TlsOptions) -> ServerTls | None:
    """A daemon's TLS, ready for handshakes; None if it has no certificate. TlsError."""
    if not ServerTls.is_configured(options):
        return None
    tls = ServerTls(options)
    tls.load()
    return tls


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


class ServerTls:
    """A daemon's side of TLS. Owned by the daemon; `load` before use."""

    def __init__(self, options: TlsOptions) -> None:
        self._files = TlsFiles(options.tls_cert, options.tls_key, options.tls_root_ca_file)
        self._policy = options.tls_client_auth_policy
        self._min_version = options.tls_min_version
        self.context = ReloadableContext()
        """For the event loop: `start_tls`, or `create_server` for HTTPS."""

    @staticmethod
    def is_configured(options: TlsOptions) -> bool:
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
            raise TlsError(f"{self._files.certificate}, {self._files.key}: {openssl_text(failure)}") from failure

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
            raise TlsError(f"{self._files.root_ca}: {openssl_text(failure)}") from failure

    def _build_unverified(self) -> HandshakeContext:
        try:
            from emberq.base.unverified_certificate import UnverifiedContext
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


def openssl_reason(failure: ssl.SSLError) -> str:
    """OpenSSL's name of what went wrong, such as `HTTP_REQUEST`. Errors of pyOpenSSL have it as words."""
    name = getattr(failure, "reason", None)
    return name or (failure.strerror or "").upper().replace(" ", "_")


def openssl_text(failure: ssl.SSLError) -> str:
    """OpenSSL's text, without the line of C that Python adds."""
    return str(failure).split(" (_ssl.c:", maxsplit=1)[0]
