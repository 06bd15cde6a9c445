"""What a TLS handshake with a client agreed on, as /stats and authorization servers are told, in the reference's words.

OpenSSL has its own names of cipher suites; the numbers behind them are IANA's. Thirteen numbers have a name in the
reference's answers, all others show as `Unknown 4865`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cache
from typing import Any


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
