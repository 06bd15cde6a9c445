"""Addresses as they may be shown."""

from __future__ import annotations

import pytest

from emberq.base.text import masked


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://user:pass@host:4180/auth", "http://***@host:4180/auth"),
        ("user:pass@host:4180", "***@host:4180"),
        ("--auth-http-address=http://user:p@ss@host/", "--auth-http-address=http://***@host/"),
        ("--auth-http-address=user:pass@host:4180", "--auth-http-address=***@host:4180"),
        ("https://host/auth?token=abc&env=prod", "https://host/auth?token=***&env=***"),
        ("http://user:pass@host/?key=abc#part", "http://***@host/?key=***#part"),
    ],
)
def test_credentials_are_replaced(given: str, shown: str) -> None:
    assert masked(given) == shown


@pytest.mark.parametrize(
    "given", ["nsqd", "--tcp-address=0.0.0.0:4150", "http://host:4180/auth", "--data-path=/var/lib/nsq", "[::1]:4150"]
)
def test_what_holds_no_credentials_stays(given: str) -> None:
    assert masked(given) == given
