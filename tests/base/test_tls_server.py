"""A daemon's side of TLS: which clients get in, and what happens when certificates change."""

from __future__ import annotations

import logging
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from emberq.base.tls import ServerTls, TlsError, TlsVersion
from emberq.nsqd.options import NsqdOptions
from emberq.nsqd.tls import TlsConnection
from tests.support.certificates import Authority, KeyPair, encrypted_copy, self_signed
from tests.support.tls_pair import TlsPair, client_context

DEFAULT_VERSION = NsqdOptions().tls_min_version
POLICIES = ["", "require", "require-verify"]
VERSION_NAMES = dict(zip(TlsVersion, ["TLS1.0", "TLS1.1", "TLS1.2", "TLS1.3"], strict=True))


@pytest.fixture
def server(authority: Authority) -> KeyPair:
    return authority.issue("server")


def loaded(
    server: KeyPair,
    *,
    policy: str = "",
    root_ca: Path | None = None,
    min_version: TlsVersion = DEFAULT_VERSION,
) -> ServerTls:
    """TLS with these options, ready for clients."""
    tls = ServerTls(
        NsqdOptions(
            tls_client_auth_policy=policy,
            tls_root_ca_file=str(root_ca or ""),
            tls_min_version=min_version,
            **server.options(),
        )
    )
    tls.load()
    return tls


def shake_hands(tls: ServerTls, client: ssl.SSLContext) -> TlsPair:
    pair = TlsPair(tls.context, client)
    pair.shake_hands()
    return pair


# Who gets in.


def test_tls_is_configured_by_either_file() -> None:
    assert not ServerTls.is_configured(NsqdOptions())
    assert ServerTls.is_configured(NsqdOptions(tls_cert="c"))
    assert ServerTls.is_configured(NsqdOptions(tls_key="k"))


@pytest.mark.parametrize("policy", ["", "no-such-policy"])
def test_without_a_known_policy_no_certificate_is_asked_for(
    authority: Authority, server: KeyPair, tmp_path: Path, policy: str
) -> None:
    tls = loaded(server, policy=policy)
    shake_hands(tls, client_context(authority.path))
    untouched = shake_hands(tls, client_context(authority.path, certificate=self_signed(tmp_path, "loner")))
    assert TlsConnection.of(untouched.server).peer_common_name == ""


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_keeps_out_clients_without_a_certificate(authority: Authority, server: KeyPair, policy: str) -> None:
    tls = loaded(server, policy=policy, root_ca=authority.path)
    with pytest.raises(ssl.SSLError, match="did not return a certificate"):
        shake_hands(tls, client_context(authority.path))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_require_lets_in_whoever_has_a_certificate(
    authority: Authority, server: KeyPair, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    tls = loaded(server, policy="require", root_ca=authority.path)
    for certificate in (
        authority.issue("signed"),
        self_signed(tmp_path, "self-signed"),
        self_signed(tmp_path, "expired", fit_for_clients=False),
        Authority(tmp_path, "stranger").issue("signed-by-a-stranger"),
    ):
        pair = shake_hands(tls, client_context(authority.path, certificate=certificate, version=version))
        assert TlsConnection.of(pair.server).peer_common_name == certificate.certificate_path.stem


def test_require_verify_lets_in_whom_the_authority_signed(
    authority: Authority, server: KeyPair, tmp_path: Path
) -> None:
    tls = loaded(server, policy="require-verify", root_ca=authority.path)
    pair = shake_hands(tls, client_context(authority.path, certificate=authority.issue("signed")))
    assert TlsConnection.of(pair.server).peer_common_name == "signed"
    stranger = Authority(tmp_path, "stranger").issue("signed-by-a-stranger")
    for certificate in (stranger, self_signed(tmp_path, "self-signed")):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(tls, client_context(authority.path, certificate=certificate))


def test_require_verify_without_a_file_asks_the_systems_authorities(authority: Authority, server: KeyPair) -> None:
    tls = loaded(server, policy="require-verify")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls, client_context(authority.path, certificate=authority.issue("signed")))


# Versions.


@pytest.mark.parametrize("policy", ["", "require"])
@pytest.mark.parametrize("lowest", list(TlsVersion))
@pytest.mark.parametrize("spoken", list(TlsVersion))
def test_versions_below_the_lowest_are_refused(
    authority: Authority, server: KeyPair, policy: str, lowest: TlsVersion, spoken: TlsVersion
) -> None:
    tls = loaded(server, policy=policy, min_version=lowest)
    client = client_context(authority.path, certificate=authority.issue("client"), version=ssl.TLSVersion(spoken))
    if spoken >= lowest:
        pair = shake_hands(tls, client)
        assert TlsConnection.of(pair.server).version == VERSION_NAMES[spoken]
    else:
        with pytest.raises(ssl.SSLError):
            shake_hands(tls, client)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spoken", [TlsVersion.TLS_1_0, TlsVersion.TLS_1_1])
def test_old_versions_are_refused_unless_asked_for(
    authority: Authority, server: KeyPair, policy: str, spoken: TlsVersion
) -> None:
    certificate = authority.issue("client")
    client = client_context(authority.path, certificate=certificate, version=ssl.TLSVersion(spoken))
    with pytest.raises(ssl.SSLError):
        shake_hands(loaded(server, policy=policy, root_ca=authority.path), client)


WEAKNESSES: dict[str, dict[str, Any]] = {
    "a short key": {"rsa_bits": 1024},
    "a weak signature": {"digest": "sha1"},
}


@pytest.mark.parametrize("policy", ["require", "require-verify"])
@pytest.mark.parametrize("weakness", WEAKNESSES)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_weak_certificate_of_a_client_is_refused_unless_old_versions_are_asked_for(
    authority: Authority, server: KeyPair, policy: str, weakness: str, version: ssl.TLSVersion
) -> None:
    weak = authority.issue("weak", **WEAKNESSES[weakness])
    client = client_context(authority.path, certificate=weak, version=version, is_old=True)
    with pytest.raises(ssl.SSLError):
        shake_hands(loaded(server, policy=policy, root_ca=authority.path), client)
    old = loaded(server, policy=policy, root_ca=authority.path, min_version=TlsVersion.TLS_1_0)
    assert TlsConnection.of(shake_hands(old, client).server).peer_common_name == "weak"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_weak_certificate_of_nsqd_is_refused_unless_old_versions_are_asked_for(
    authority: Authority, policy: str
) -> None:
    weak = authority.issue("weak", rsa_bits=1024)
    with pytest.raises(TlsError, match=r"(?i)key.too.small"):
        loaded(weak, policy=policy, root_ca=authority.path)
    loaded(weak, policy=policy, root_ca=authority.path, min_version=TlsVersion.TLS_1_0)


def test_suites_with_sha1_are_allowed_only_with_old_versions(authority: Authority, server: KeyPair) -> None:
    client = client_context(authority.path)
    client.set_ciphers("ECDHE-ECDSA-AES128-SHA")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    shake_hands(loaded(server, min_version=TlsVersion.TLS_1_1), client)
    with pytest.raises(ssl.SSLError):
        shake_hands(loaded(server, min_version=TlsVersion.TLS_1_2), client)


def test_the_client_chooses_the_cipher_suite(authority: Authority, server: KeyPair) -> None:
    tls = loaded(server)
    for suite in ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"):
        client = client_context(authority.path, version=ssl.TLSVersion.TLSv1_2)
        client.set_ciphers(f"{suite}:ECDHE-ECDSA-AES256-GCM-SHA384")
        agreed = shake_hands(tls, client).server.cipher()
        assert agreed is not None
        assert agreed[0] == suite


# Files that are no good.


def load_error(*, policy: str = "", root_ca: str = "", certificate: Path | str, key: Path | str) -> str:
    tls = ServerTls(
        NsqdOptions(
            tls_cert=str(certificate), tls_key=str(key), tls_client_auth_policy=policy, tls_root_ca_file=root_ca
        )
    )
    with pytest.raises(TlsError) as raised:
        tls.load()
    text = str(raised.value)
    assert text.startswith("failed to build TLS config - ")
    return text.removeprefix("failed to build TLS config - ")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_missing_file_is_named(server: KeyPair, tmp_path: Path, policy: str) -> None:
    missing = tmp_path / "missing.pem"
    expected = f"open {missing}: No such file or directory"
    assert load_error(policy=policy, certificate=missing, key=server.key_path) == expected
    assert load_error(policy=policy, certificate=server.certificate_path, key=missing) == expected
    assert (
        load_error(policy=policy, certificate=server.certificate_path, key=server.key_path, root_ca=str(missing))
        == expected
    )


def test_certificate_and_key_are_needed_together(server: KeyPair) -> None:
    assert "together" in load_error(certificate=server.certificate_path, key="")
    assert "together" in load_error(certificate="", key=server.key_path)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_key_of_another_certificate_is_refused(authority: Authority, server: KeyPair, policy: str) -> None:
    other = authority.issue("other")
    text = load_error(policy=policy, certificate=server.certificate_path, key=other.key_path)
    assert "mismatch" in text
    assert str(other.key_path) in text


@pytest.mark.parametrize("policy", POLICIES)
def test_a_file_without_a_certificate_or_a_key_is_refused(server: KeyPair, tmp_path: Path, policy: str) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    assert str(nonsense) in load_error(policy=policy, certificate=nonsense, key=server.key_path)
    assert str(nonsense) in load_error(policy=policy, certificate=server.certificate_path, key=nonsense)


def test_a_file_without_an_authority_is_refused(server: KeyPair, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    text = load_error(
        policy="require-verify",
        certificate=server.certificate_path,
        key=server.key_path,
        root_ca=str(nonsense),
    )
    assert str(nonsense) in text


@pytest.mark.parametrize("policy", POLICIES)
def test_an_encrypted_key_is_refused_without_asking_for_its_password(server: KeyPair, policy: str) -> None:
    locked = encrypted_copy(server)
    assert "encrypted" in load_error(policy=policy, certificate=locked.certificate_path, key=locked.key_path)


def test_require_says_what_it_needs_when_it_is_not_installed(server: KeyPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "emberq.base.unverified_certificate", raising=False)
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    text = load_error(policy="require", certificate=server.certificate_path, key=server.key_path)
    assert text.startswith("--tls-client-auth-policy=require needs pyOpenSSL")


# Reloading.


def serial_number(pair: TlsPair) -> str:
    certificate = pair.client.getpeercert()
    assert certificate is not None
    serial = certificate["serialNumber"]
    assert isinstance(serial, str)
    return serial


@pytest.mark.parametrize("policy", POLICIES)
def test_after_a_reload_new_clients_see_the_new_certificate_and_open_connections_stay(
    authority: Authority, server: KeyPair, policy: str
) -> None:
    tls = loaded(server, policy=policy, root_ca=authority.path)
    client = client_context(authority.path, certificate=authority.issue("client"))
    before = shake_hands(tls, client)
    authority.issue("server")  # into the same files
    tls.reload()
    assert serial_number(shake_hands(tls, client)) != serial_number(before)
    before.say_to_server(b"still here")
    assert before.server.read(100) == b"still here"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("harm", ["mismatch", "garbage", "missing"])
def test_a_reload_that_fails_keeps_the_certificate_in_use(
    authority: Authority, server: KeyPair, policy: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls = loaded(server, policy=policy, root_ca=authority.path)
    client = client_context(authority.path, certificate=authority.issue("client"))
    before = serial_number(shake_hands(tls, client))
    if harm == "mismatch":
        server.key_path.write_bytes(authority.issue("other").key_path.read_bytes())
    elif harm == "garbage":
        server.certificate_path.write_text("nonsense")
    else:
        server.key_path.unlink()
    with caplog.at_level(logging.INFO):
        tls.reload()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "failed to build TLS config" in caplog.text
    assert serial_number(shake_hands(tls, client)) == before


def test_a_reload_takes_new_authorities_too(authority: Authority, server: KeyPair, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    client = client_context(authority.path, certificate=stranger.issue("client"))
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.path.read_bytes())
    tls = loaded(server, policy="require-verify", root_ca=trusted)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls, client)
    trusted.write_bytes(stranger.path.read_bytes())
    tls.reload()
    shake_hands(tls, client)
