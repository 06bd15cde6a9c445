"""Certificates made on the fly, so that none lies in the repository to expire one day.

An `Authority` signs; what it signs is written as PEM files, the form in which nsqd and clients take it:

    authority = Authority(folder, "trusted")
    authority.path                        its own certificate, for --tls-root-ca-file and a client's cafile
    authority.issue("client")             a `KeyPair`: two files, certificate and key
    self_signed(folder, "loner")          a `KeyPair` that nobody vouches for
"""

from __future__ import annotations

import datetime
import ipaddress
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from OpenSSL import crypto

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

LIFETIME = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key."""

    certificate_path: Path
    key_path: Path

    def options(self) -> dict[str, Any]:
        """nsqd's options that make it serve with this certificate."""
        return {"tls_cert": str(self.certificate_path), "tls_key": str(self.key_path)}


class Authority:
    """Signs certificates for this machine's loopback addresses."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._certificate = (
            _unsigned(self._name, issuer=self._name, key=self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, common_name: str, *, rsa_bits: int = 0, digest: str = "") -> KeyPair:
        """A certificate signed by this authority, in files named after it; weak, if that is asked for."""
        key: PrivateKey = ec.generate_private_key(ec.SECP256R1())
        if rsa_bits:
            key = rsa.generate_private_key(65537, rsa_bits)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = _for_loopback(_unsigned(_named(common_name), issuer=self._name, key=key))
        certificate = certificate.add_extension(signer, critical=False)
        signed = certificate.sign(self._key, hashes.SHA256())
        if digest:  # cryptography makes no weak signatures
            again = crypto.X509.from_cryptography(signed)
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                again.sign(crypto.PKey.from_cryptography_key(self._key), digest)
            signed = again.to_cryptography()
        return _write(self._folder, common_name, signed, key)


def self_signed(folder: Path, common_name: str, *, fit_for_clients: bool = True) -> KeyPair:
    """A certificate that only its own key signed; if not fit for clients, it has expired and says it is a server's."""
    key = ec.generate_private_key(ec.SECP256R1())
    age = datetime.timedelta() if fit_for_clients else 2 * LIFETIME
    certificate = _for_loopback(_unsigned(_named(common_name), issuer=_named(common_name), key=key, age=age))
    if not fit_for_clients:
        certificate = certificate.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
    return _write(folder, common_name, certificate.sign(key, hashes.SHA256()), key)


def encrypted_copy(pair: KeyPair) -> KeyPair:
    """The same certificate, its key behind a password."""
    key = load_pem_private_key(pair.key_path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    path = pair.key_path.with_suffix(".encrypted")
    path.write_bytes(_key_pem(key, BestAvailableEncryption(b"secret")))
    return KeyPair(pair.certificate_path, path)


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _unsigned(
    subject: x509.Name,
    *,
    issuer: x509.Name,
    key: PrivateKey,
    age: datetime.timedelta = datetime.timedelta(),
) -> x509.CertificateBuilder:
    start = datetime.datetime.now(datetime.UTC) - age - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + LIFETIME)
    )


def _signs_certificates() -> x509.KeyUsage:
    """What strict clients want to read in an authority's certificate."""
    return x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _for_loopback(certificate: x509.CertificateBuilder) -> x509.CertificateBuilder:
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    return certificate.add_extension(names, critical=False)


def _write(folder: Path, name: str, certificate: x509.Certificate, key: PrivateKey) -> KeyPair:
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}.key")
    pair.certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
    pair.key_path.write_bytes(_key_pem(key, NoEncryption()))
    return pair


def _key_pem(key: PrivateKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
