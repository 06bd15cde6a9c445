"""The context of a TLS client: whom it trusts, what it shows, and which files it refuses."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from emberq.base.tls import TlsFileError, client_context
from tests.support.certificates import Authority, KeyPair, self_signed


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The server's end of a handshake in memory; SSLError if one side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client_end, server_end):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return server_end


def server_context(pair: KeyPair, *, client_authority: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    if client_authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    return context


def test_without_files_the_authorities_of_the_system_are_trusted(tmp_path: Path) -> None:
    context = client_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, server_context(self_signed(tmp_path, "server")))


def test_an_empty_name_is_no_file() -> None:
    assert client_context(ca_file="", cert_file="", key_file="").verify_mode is ssl.CERT_REQUIRED


def test_only_the_authority_in_the_file_is_trusted(tmp_path: Path) -> None:
    trusted, other = Authority(tmp_path, "trusted"), Authority(tmp_path, "other")
    context = client_context(ca_file=str(trusted.path))
    assert shake_hands(context, server_context(trusted.issue("good"))).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(context, server_context(other.issue("bad")))
    assert len(context.get_ca_certs()) == 1


def test_any_server_will_do_if_it_is_not_verified(tmp_path: Path) -> None:
    context = client_context(verify=False)
    assert shake_hands(context, server_context(self_signed(tmp_path, "server"))).version() == "TLSv1.3"


def test_the_certificate_is_shown_to_a_server_that_asks(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "trusted")
    own = authority.issue("client")
    context = client_context(
        ca_file=str(authority.path), cert_file=str(own.certificate_path), key_file=str(own.key_path)
    )
    served = shake_hands(context, server_context(authority.issue("server"), client_authority=authority.path))
    shown = served.getpeercert()
    assert shown is not None
    assert shown["subject"] == ((("commonName", "client"),),)


def test_a_certificate_and_its_key_may_be_one_file(tmp_path: Path) -> None:
    own = self_signed(tmp_path, "client")
    both = tmp_path / "both.pem"
    both.write_bytes(own.certificate_path.read_bytes() + own.key_path.read_bytes())
    client_context(cert_file=str(both))


@pytest.mark.filterwarnings("error")
def test_the_lowest_version_can_be_an_old_one() -> None:
    assert client_context(minimum=ssl.TLSVersion.TLSv1_3).minimum_version is ssl.TLSVersion.TLSv1_3
    assert client_context(minimum=ssl.TLSVersion.TLSv1).minimum_version is ssl.TLSVersion.TLSv1


def test_a_file_of_authorities_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TlsFileError, match="No such file") as missing:
        client_context(ca_file=str(tmp_path / "missing"))
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("not PEM")
    with pytest.raises(TlsFileError) as malformed:
        client_context(ca_file=str(nonsense))
    assert missing.value.is_authority
    assert not isinstance(missing.value.reason, ssl.SSLError)
    assert malformed.value.is_authority
    assert isinstance(malformed.value.reason, ssl.SSLError)


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    own, other = self_signed(tmp_path, "client"), self_signed(tmp_path, "other")
    with pytest.raises(TlsFileError, match="No such file") as missing:
        client_context(cert_file=str(own.certificate_path), key_file=str(tmp_path / "missing"))
    with pytest.raises(TlsFileError, match=r"(?i)key.values.mismatch") as mismatched:
        client_context(cert_file=str(own.certificate_path), key_file=str(other.key_path))
    assert not missing.value.is_authority
    assert isinstance(mismatched.value.reason, ssl.SSLError)
