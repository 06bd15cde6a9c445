"""A certificate for the works with TLS, made for this run: none lies in the repository to expire one day."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFETIME = datetime.timedelta(days=2)


@cache
def tls_flags() -> tuple[str, ...]:
    """What makes an nsqd offer TLS."""
    folder = Path(_folder().name)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now + _LIFETIME)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return (f"--tls-cert={folder / 'certificate.pem'}", f"--tls-key={folder / 'key.pem'}")


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="bench-tls-")  # removed when this process ends
