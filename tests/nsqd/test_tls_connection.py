"""How a TLS connection is described to operators."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from emberq.base.tls import ServerTls
from emberq.nsqd.options import NsqdOptions
from emberq.nsqd.tls import TlsConnection, common_name, suite_name, version_name
from tests.support.certificates import Authority
from tests.support.tls_pair import TlsPair, client_context


def agreed(tmp_path: Path, policy: str, *, version: ssl.TLSVersion, suite: str = "") -> TlsConnection:
    """What nsqd says of a connection with this version and cipher suite."""
    authority = Authority(tmp_path, "authority")
    tls = ServerTls(NsqdOptions(tls_client_auth_policy=policy, **authority.issue("server").options()))
    tls.load()
    client = client_context(authority.path, certificate=authority.issue("client"), version=version)
    if suite:
        client.set_ciphers(suite)
    pair = TlsPair(tls.context, client)
    pair.shake_hands()
    return TlsConnection.of(pair.server)


@pytest.mark.parametrize("policy", ["", "require"])
def test_a_suite_that_the_reference_knows_has_its_name(tmp_path: Path, policy: str) -> None:
    connection = agreed(tmp_path, policy, version=ssl.TLSVersion.TLSv1_2, suite="ECDHE-ECDSA-AES128-GCM-SHA256")
    assert connection.version == "TLS1.2"
    assert connection.cipher_suite == "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    assert connection.negotiated_protocol == ""


@pytest.mark.parametrize("policy", ["", "require"])
def test_any_other_suite_has_its_number(tmp_path: Path, policy: str) -> None:
    connection = agreed(tmp_path, policy, version=ssl.TLSVersion.TLSv1_3)
    assert connection.version == "TLS1.3"
    assert connection.cipher_suite in {"Unknown 4865", "Unknown 4866", "Unknown 4867"}


def test_the_suites_of_tls_1_3_have_the_numbers_of_their_specification() -> None:
    assert suite_name("TLS_AES_128_GCM_SHA256") == "Unknown 4865"
    assert suite_name("TLS_AES_256_GCM_SHA384") == "Unknown 4866"
    assert suite_name("TLS_CHACHA20_POLY1305_SHA256") == "Unknown 4867"


def test_old_suites_have_their_names() -> None:
    assert suite_name("AES128-SHA") == "TLS_RSA_WITH_AES_128_CBC_SHA"
    assert suite_name("AES256-SHA") == "TLS_RSA_WITH_AES_256_CBC_SHA"
    assert suite_name("ECDHE-RSA-AES128-SHA") == "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
    assert suite_name("ECDHE-RSA-AES256-SHA") == "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"
    assert suite_name("ECDHE-ECDSA-AES256-SHA") == "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
    assert suite_name("ECDHE-RSA-AES128-GCM-SHA256") == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


def test_what_nobody_knows_is_unknown() -> None:
    assert suite_name("A-SUITE-OF-THE-FUTURE") == "Unknown 0"
    assert version_name("TLSv9") == "Unknown TLSv9"


def test_the_common_name_is_found_among_the_others() -> None:
    subject = ((("countryName", "NL"),), (("organizationName", "Works"), ("commonName", "press-4")))
    assert common_name({"subject": subject}) == "press-4"
    assert common_name({"subject": ((("countryName", "NL"),),)}) == ""
    assert common_name({}) == ""
    assert common_name(None) == ""
