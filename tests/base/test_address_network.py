"""Ranges of addresses."""

from __future__ import annotations

import pytest

from emberq.base.address import NetworkError, is_within, parse_network, parse_remote


@pytest.mark.parametrize(
    ("remote", "cidr", "expected"),
    [
        ("127.0.0.1:5000", "127.0.0.1/8", True),
        ("127.9.9.9:5000", "127.0.0.1/8", True),
        ("128.0.0.1:5000", "127.0.0.1/8", False),
        ("[::1]:5000", "::1/128", True),
        ("[::1]:5000", "127.0.0.0/8", False),
        ("[::ffff:10.1.2.3]:5000", "10.0.0.0/8", True),
        ("[fe80::1%eth0]:5000", "fe80::/10", True),
        ("@", "0.0.0.0/0", False),
    ],
)
def test_an_address_lies_in_a_range_or_not(remote: str, cidr: str, expected: bool) -> None:
    assert is_within(remote, [parse_network(cidr)]) is expected


@pytest.mark.parametrize("cidr", ["", "10.0.0.0", "10.0.0.0/33", "host/8", "10.0.0.0/x"])
def test_what_is_no_range_is_refused(cidr: str) -> None:
    with pytest.raises(NetworkError, match="invalid CIDR address"):
        parse_network(cidr)


def test_a_unix_socket_has_no_address() -> None:
    with pytest.raises(NetworkError):
        parse_remote("@")
