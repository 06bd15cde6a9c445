"""The requests that nsq_to_http makes, to the byte."""

from __future__ import annotations

import pytest

from emberq.tools.nsq_to_http import GetEndpoint, PostEndpoint, parse_headers


@pytest.mark.conformance(255)
def test_headers_are_parsed_and_trimmed() -> None:
    assert parse_headers(["h1: v1", "h2:v2", " h3 : v:3 "]) == {"h1": "v1", "h2": "v2", "h3": "v:3"}


@pytest.mark.conformance(255)
@pytest.mark.parametrize("text", ["h:", ": v", ":", "h", ""])
def test_a_header_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--header value format should be 'key=value'"):
        parse_headers([text])


@pytest.mark.parametrize("text", ["h: a\r\nb: c", "a b: c", "h: ü"])
def test_a_header_that_cannot_be_sent_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        parse_headers([text])


def test_a_post_carries_the_message_as_its_body() -> None:
    endpoint = PostEndpoint("http://host:81/path?q=1", content_type="text/plain", headers={"X-A": "b"})
    assert endpoint.request(b"a\0b") == (
        b"POST /path?q=1 HTTP/1.1\r\n"
        b"Host: host:81\r\n"
        b"User-Agent: nsq_to_http v1.3.0-emberq\r\n"
        b"Content-Type: text/plain\r\n"
        b"X-A: b\r\n"
        b"Content-Length: 3\r\n"
        b"\r\n"
        b"a\0b"
    )


def test_a_get_carries_the_message_where_the_percent_s_stood() -> None:
    endpoint = GetEndpoint("http://host/path?q=%s&r=100%%25", headers={})
    assert endpoint.request("m 3&ü~-_.!*'()".encode()) == (
        b"GET /path?q=m+3%26%C3%BC~-_.%21%2A%27%28%29&r=100%25 HTTP/1.1\r\n"
        b"Host: host\r\n"
        b"User-Agent: nsq_to_http v1.3.0-emberq\r\n"
        b"\r\n"
    )


def test_a_header_given_takes_the_place_of_ours() -> None:
    headers = {"user-agent": "me", "content-type": "x/y", "HOST": "other"}
    endpoint = PostEndpoint("http://user@host/", content_type="text/plain", headers=headers)
    lines = endpoint.request(b"a").split(b"\r\n")
    assert lines[1:-3] == [b"Authorization: Basic dXNlcjo=", b"user-agent: me", b"content-type: x/y", b"HOST: other"]


@pytest.mark.parametrize("address", ["http://host/", "http://host/%s/%s", "http://%s/", "http://host/%d"])
def test_a_get_address_has_one_place_for_the_message(address: str) -> None:
    with pytest.raises(ValueError, match="invalid GET address - must be a printf string"):
        GetEndpoint(address, headers={})


@pytest.mark.parametrize(
    ("status", "post", "get"), [(200, True, True), (204, True, False), (302, False, False), (500, False, False)]
)
def test_a_post_succeeds_with_any_2xx_and_a_get_only_with_200(status: int, post: bool, get: bool) -> None:
    assert PostEndpoint("http://h/", content_type="x", headers={}).is_success(status) is post
    assert GetEndpoint("http://h/%s", headers={}).is_success(status) is get
