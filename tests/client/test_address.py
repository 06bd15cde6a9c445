"""Addresses as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberq.client.address import address_list, lookup_url, nsqd_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4150", "127.0.0.1:4150"),
        (":4150", ":4150"),
        ("nsqd.example:http", "nsqd.example:http"),
        ("[::1]:4150", "[::1]:4150"),
        ("tcp://nsqd:4150", "nsqd:4150"),
        ("tcp://[::1]:4150/", "[::1]:4150"),
        ("/run/nsqd.sock", "/run/nsqd.sock"),
        ("./nsqd.sock", "./nsqd.sock"),
        ("unix:/run/nsqd.sock", "/run/nsqd.sock"),
        ("unix:///run/nsqd.sock", "/run/nsqd.sock"),
    ],
)
def test_an_nsqd_is_found_under_all_that_can_mean_only_one(text: str, address: str) -> None:
    assert nsqd_address(text) == address


@pytest.mark.parametrize(
    ("text", "reason", "spelling"),
    [
        ("", "empty", "127.0.0.1:4150"),
        ("localhost", "missing port", "localhost:4150"),
        ("localhost:", "missing port", "localhost:4150"),
        ("localhost:0", "missing port", "localhost:4150"),
        ("tcp://localhost", "missing port", "localhost:4150"),
        ("localhost:nsq", "unknown port", "localhost:4150"),
        ("localhost:99999", "above 65535", "localhost:4150"),
        ("::1", "missing port", "[::1]:4150"),
        ("::1:4150", "missing port", "[::1]:4150"),
        ("[::1]", "missing port", "[::1]:4150"),
        ("http://nsqd:4151", "is a URL", "nsqd:4150"),
        ("https://nsqd/", "is a URL", "nsqd:4150"),
        ("tcp://nsqd:4150/topic", "is a URL", "nsqd:4150"),
        ("nsqd.sock", "missing port", "path with a /"),
        ("unix:nsqd.sock", "path of the Unix socket", "/run/nsqd.sock"),
        ("a:4150,b:4150", "go into a list", "['one:4150', 'other:4150']"),
        ("a:4150 b:4150", "go into a list", "['one:4150', 'other:4150']"),
    ],
)
def test_an_nsqd_that_cannot_be_meant_is_refused_with_the_right_spelling(text: str, reason: str, spelling: str) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        nsqd_address(text)
    assert spelling in str(refusal.value)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:4161", "http://127.0.0.1:4161/lookup?topic=orders"),
        (" 127.0.0.1:4161\n", "http://127.0.0.1:4161/lookup?topic=orders"),
        ("127.0.0.1:4161/", "http://127.0.0.1:4161/lookup?topic=orders"),
        ("http://127.0.0.1:4161/", "http://127.0.0.1:4161/lookup?topic=orders"),
        ("http://127.0.0.1:4161/lookup/", "http://127.0.0.1:4161/lookup?topic=orders"),
        ("HTTP://lookup:4161", "http://lookup:4161/lookup?topic=orders"),
        ("https://lookup:443", "https://lookup:443/lookup?topic=orders"),
        ("http://proxy:80/nsq/lookup?zone=a,b", "http://proxy:80/nsq/lookup?zone=a,b&topic=orders"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=orders"),
    ],
)
def test_an_nsqlookupd_becomes_the_url_of_a_lookup(address: str, url: str) -> None:
    assert lookup_url(address, "orders") == url


def test_the_topic_is_escaped() -> None:
    assert lookup_url("a:1", "orders#ephemeral").endswith("topic=orders%23ephemeral")


@pytest.mark.parametrize(
    ("address", "reason", "spelling"),
    [
        ("", "missing port or host", "127.0.0.1:4161"),
        ("127.0.0.1", "missing port or host", "127.0.0.1:4161"),
        ("http://lookup", "missing port or host", "lookup:4161"),
        ("lookup:nsq", "missing port or host", "lookup:4161"),
        ("lookup:0", "missing port or host", "lookup:4161"),
        (":4161", "missing port or host", "127.0.0.1:4161"),
        ("::1:4161", "missing port or host", "[::1]:4161"),
        ("tcp://lookup:4160", "asked over HTTP", "lookup:4161"),
        ("/run/nsqlookupd.sock", "asked over HTTP", "127.0.0.1:4161"),
        ("a:4161, b:4161", "go into a list", "['one:4161', 'other:4161']"),
        ("löökup:4161", "must be escaped", ""),
    ],
)
def test_an_nsqlookupd_that_cannot_be_meant_is_refused_with_the_right_spelling(
    address: str, reason: str, spelling: str
) -> None:
    with pytest.raises(ValueError, match=reason) as refusal:
        lookup_url(address, "orders")
    assert spelling in str(refusal.value)


@pytest.mark.parametrize("address", ["http://me:s3cret@lookup/", "lookup/?key=s3cret"])
def test_a_refusal_does_not_tell_secrets(address: str) -> None:
    with pytest.raises(ValueError, match="missing port or host") as refusal:
        lookup_url(address, "orders")
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("a:1", ["a:1"]),
        (Path("/run/nsqd.sock"), ["/run/nsqd.sock"]),
        (["a:1", " b:2 ", "a:1"], ["a:1", "b:2"]),
        (("a:1",), ["a:1"]),
        ((address for address in ("a:1", "b:2")), ["a:1", "b:2"]),
        ([], []),
    ],
)
def test_one_address_is_a_list_of_one(addresses: Any, expected: list[str]) -> None:
    assert address_list("addresses", addresses) == expected


@pytest.mark.parametrize("addresses", [None, 4150, b"a:1", [b"a:1"], [("a", 1)], [None], {"a:1": "b:2"}])
def test_what_is_no_list_of_texts_is_refused(addresses: Any) -> None:
    with pytest.raises(TypeError, match=r"^addresses (is|has)"):
        address_list("addresses", addresses)
