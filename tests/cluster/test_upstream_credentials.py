"""Which daemon is shown which secret."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.cluster.upstream import Credentials

SECRETS: dict[str, Any] = {"nsqd": b"for nsqds", "lookupd": b"for lookupds"}


def shown(address: str, *hosts: str) -> bytes:
    """What an nsqd that an nsqlookupd named is shown, if the user trusts these hosts."""
    return Credentials(**SECRETS, lookupds=("lookup:4161",), hosts=hosts).for_daemon(address)


def test_each_kind_of_daemon_is_shown_its_own() -> None:
    credentials = Credentials(**SECRETS, nsqds=("q1:4151",), lookupds=("lookup:4161",), hosts=())
    assert credentials.for_daemon("lookup:4161") == b"for lookupds"
    assert credentials.for_daemon("q1:4151") == b"for nsqds"
    assert credentials.for_daemon("q2:4151") == b""


def test_an_nsqd_is_never_shown_the_secret_for_nsqlookupds() -> None:
    """It may have registered with the address of one."""
    assert Credentials(**SECRETS, lookupds=("lookup:4161",), hosts=()).for_nsqd("lookup:4161") == b""


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("q1:4151", "*"),
        ("q1:4151", "q1"),
        ("Q1.:4151", "q1"),
        ("q1.example.com:4151", ".example.com"),
        ("example.com:4151", ".Example.COM."),
        ("10.1.2.3:4151", "10.0.0.0/8"),
        ("10.1.2.3:4151", "10.1.2.3"),
        ("[fd00::1]:4151", "fd00::/8"),
        ("[fd00::1]:4151", "fd00::1"),
    ],
)
def test_an_nsqd_on_a_host_that_the_user_trusts_is_shown_the_secret(address: str, host: str) -> None:
    assert shown(address, "elsewhere", host) == b"for nsqds"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("q1:4151", "q2"),
        ("q1.evil.example:4151", "q1"),
        ("evilexample.com:4151", ".example.com"),
        ("example.com.evil.example:4151", ".example.com"),
        ("evil.example%2f.example.com:4151", ".example.com"),
        ("[evil.example:80.example.com]:4151", ".example.com"),
        ("11.1.2.3:4151", "10.0.0.0/8"),
        ("10.0.0.0.evil.example:4151", "10.0.0.0/8"),
        ("[::ffff:10.1.2.3]:4151", "10.0.0.0/8"),
        ("q1:4151", "nonsense/8"),
        ("q1", "q1"),
        (":4151", ".example.com"),
    ],
)
def test_an_nsqd_elsewhere_is_not(address: str, host: str) -> None:
    assert shown(address, host) == b""


def test_no_secret_shows_in_a_repr() -> None:
    assert "for " not in repr(Credentials(**SECRETS)).replace("Credentials for", "")
