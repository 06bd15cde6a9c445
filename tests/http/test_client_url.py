"""URLs of HTTP taken apart."""

from __future__ import annotations

import pytest

from emberq.http.client import HttpOrigin, HttpUrl, HttpUrlError


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        ("http://host/path?q=1", HttpOrigin("http", "host", 80), "/path?q=1"),
        ("https://host", HttpOrigin("https", "host", 443), "/"),
        ("https://host?q", HttpOrigin("https", "host", 443), "/?q"),
        ("http://host/path?", HttpOrigin("http", "host", 80), "/path?"),
        ("http://[::1]:8080/x#part?", HttpOrigin("http", "::1", 8080), "/x"),
        ("HTTP://Host:0/", HttpOrigin("http", "host", 0), "/"),
    ],
)
def test_a_url_is_taken_apart(text: str, origin: HttpOrigin, target: str) -> None:
    url = HttpUrl.parse(text)
    assert (url.origin, url.path_and_query) == (origin, target)


def test_hosts_are_named_with_their_port_unless_it_is_the_usual_one() -> None:
    urls = ("http://h:80/", "https://h:444/", "http://[::1]:81/")
    assert [HttpUrl.parse(text).origin.host_header for text in urls] == ["h", "h:444", "[::1]:81"]


def test_credentials_in_a_url_become_a_header() -> None:
    assert HttpUrl.parse("http://me:p%40ss@host/").authorization == "Basic bWU6cEBzcw=="
    assert HttpUrl.parse("http://host/@").authorization is None


def test_neither_credentials_nor_query_are_shown() -> None:
    url = HttpUrl.parse("https://me:secret@host:81/path?token=secret")
    assert url.public == "https://host:81/path"
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be escaped"),
        ("http://host/a b", "must be escaped"),
        ("http://host/a\r\nb: c", "must be escaped"),
        ("http://secret:x/", "is malformed"),
        ("http://[secret/", "is malformed"),
        ("http://secret..host/", "is malformed"),
        ("secret", "must begin with http:// or https:// and a host"),
        ("ftp://secret/", "must begin with http:// or https:// and a host"),
        ("http:///secret", "must begin with http:// or https:// and a host"),
    ],
)
def test_what_is_no_url_of_http_is_refused_without_being_quoted(text: str, why: str) -> None:
    with pytest.raises(HttpUrlError, match=why) as refused:
        HttpUrl.parse(text)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
