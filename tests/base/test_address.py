"""An address is TCP if it has the form host:port, else the path of a Unix socket."""

from __future__ import annotations

import pytest

from emberq.base.address import AddressError, TcpAddress, UnixAddress, parse_address, parse_tcp_address, split_scheme


@pytest.mark.conformance(258)
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", TcpAddress("127.0.0.1", 80)),
        ("test:80", TcpAddress("test", 80)),
        ("/var/run/nsqd.sock", UnixAddress("/var/run/nsqd.sock")),
        ("[::1%lo0]:80", TcpAddress("::1%lo0", 80)),
    ],
)
def test_the_form_of_an_address_tells_its_kind(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":4150", TcpAddress("", 4150)),
        ("localhost:", TcpAddress("localhost", 0)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("localhost:65535", TcpAddress("localhost", 65_535)),
        ("localhost:" + "0" * 5000 + "80", TcpAddress("localhost", 80)),
        ("localhost:http", TcpAddress("localhost", 80)),
        ("[::]:4150", TcpAddress("::", 4150)),
        ("nsqd.sock", UnixAddress("nsqd.sock")),
        ("::1:80", UnixAddress("::1:80")),
        ("[::1]", UnixAddress("[::1]")),
        ("[::1]80", UnixAddress("[::1]80")),
        ("[a]b:80", UnixAddress("[a]b:80")),
        ("a]:80", UnixAddress("a]:80")),
    ],
)
def test_an_address_at_the_edge_of_a_form(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the address is empty"),
        ("localhost:65536", "port 65536 is above 65535"),
        ("localhost:no-such-service", 'unknown port "no-such-service"'),
        ("localhost:-1", 'unknown port "-1"'),
        ("localhost:" + "9" * 5000, "port 999999999999999… is above 65535"),
        ("localhost:a\0b", 'unknown port "a\\x00b"'),
        ("localhost:\ud800", 'unknown port "\\ud800"'),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert str(caught.value) == complaint


def test_where_only_tcp_will_do_a_path_is_refused() -> None:
    assert parse_tcp_address("localhost:4150") == TcpAddress("localhost", 4150)
    with pytest.raises(AddressError, match=r'^"/tmp/x" is not of the form host:port$'):
        parse_tcp_address("/tmp/x")


@pytest.mark.parametrize("text", ["127.0.0.1:4150", "[::1]:4150", ":4150", "/var/run/nsqd.sock"])
def test_an_address_is_shown_as_it_was_written(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "scheme", "address"),
    [
        ("lookup:4161", "http", "lookup:4161"),
        ("http://lookup:4161", "http", "lookup:4161"),
        ("HTTPS://lookup:4161/", "https", "lookup:4161"),
        ("https://[::1]:4161", "https", "[::1]:4161"),
        ("ftp://lookup:21", "http", "ftp://lookup:21"),
    ],
)
def test_an_address_may_say_that_it_is_asked_by_https(text: str, scheme: str, address: str) -> None:
    assert split_scheme(text) == (scheme, address)
