"""A client's TLS context, made from files and flags: the one way in which every program here makes one.

    ca_file              the authorities to trust; None: those that the system trusts
    cert_file, key_file  what the client shows of itself, if a server asks for it
    verify               False: any server will do, under any name
    minimum              the lowest version of TLS to speak; None: OpenSSL's default

Callers word the error themselves, because each names its own flags.
"""

from __future__ import annotations

import ssl
import warnings


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
