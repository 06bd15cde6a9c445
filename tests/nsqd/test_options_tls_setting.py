"""The words of --tls-required and --tls-min-version."""

from __future__ import annotations

import pytest

from emberq.base.tls import TLS_MIN_VERSION, TlsVersion
from emberq.nsqd.options import TLS_REQUIRED, TlsRequired


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        ("true", TlsRequired.YES),
        ("1", TlsRequired.YES),
        ("T", TlsRequired.YES),
        ("false", TlsRequired.NO),
        ("0", TlsRequired.NO),
        ("f", TlsRequired.NO),
        ("tcp-https", TlsRequired.TCP_HTTPS),
        ("TCP-HTTPS", TlsRequired.TCP_HTTPS),
        (True, TlsRequired.YES),
        (False, TlsRequired.NO),
    ],
)
def test_tls_required_takes_booleans_and_tcp_https(value: object, meaning: TlsRequired) -> None:
    assert TLS_REQUIRED.from_toml(value) is meaning


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("", TlsVersion.TLS_1_2),
        ("tls1.0", TlsVersion.TLS_1_0),
        ("tls1.1", TlsVersion.TLS_1_1),
        ("tls1.2", TlsVersion.TLS_1_2),
        ("TLS1.3", TlsVersion.TLS_1_3),
    ],
)
def test_a_tls_version_is_named_by_its_word(text: str, version: TlsVersion) -> None:
    assert TLS_MIN_VERSION.from_text(text) is version


def test_ssl_3_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^unknown tlsVersionOption "ssl3.0"$'):
        TLS_MIN_VERSION.from_text("ssl3.0")


def test_the_numbers_are_those_of_nsqs_http_api() -> None:
    assert [int(required) for required in TlsRequired] == [0, 1, 2]
    assert [int(version) for version in TlsVersion] == [769, 770, 771, 772]
