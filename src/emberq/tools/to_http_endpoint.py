"""The requests that nsq_to_http makes of messages.

    POST /path HTTP/1.1              GET /path?x=a+b%26c HTTP/1.1
    Host: example.com                Host: example.com
    User-Agent: nsq_to_http v…       User-Agent: nsq_to_http v…
    Content-Type: …                  <--header>
    <--header>
    Content-Length: 3                (the message stands where the URL had %s,
                                      escaped as in a query)
    abc

A `--header` takes the place of ours of the same name. Everything but the message is put together once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Protocol
from urllib.parse import quote_plus

from emberq import NSQ_VERSION
from emberq.base.http_url import HttpUrl, HttpUrlError, Origin

USER_AGENT = f"nsq_to_http v{NSQ_VERSION}"


class Endpoint(Protocol):
    """One address to send messages to."""

    address: str
    """As the user wrote it."""
    origin: Origin

    def request(self, body: bytes) -> bytes:
        """The request that carries a message."""
        ...

    def is_success(self, status: int) -> bool:
        """Whether an answer says that the message has arrived."""
        ...


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Names and values of `Name: value` texts; ValueError for one that is not of that form."""
    headers = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        if not name or not value:
            raise ValueError("--header value format should be 'key=value'")
        if not (name + value).isprintable() or not (name + value).isascii() or " " in name:
            raise ValueError(f"--header {text!r} has a character that cannot be sent")
        headers[name] = value
    return headers


class PostEndpoint:
    """The message is the body; any status of success will do."""

    def __init__(self, address: str, *, content_type: str, headers: Mapping[str, str]) -> None:
        url = _parse_url(address)
        self.address = address
        self.origin = url.origin
        ours = {"Content-Type": content_type}
        start = f"POST {url.path_and_query} HTTP/1.1\r\n"
        self._head = start.encode() + _header_lines(url, ours, headers) + b"Content-Length: "

    def request(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def is_success(self, status: int) -> bool:
        return HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES


class GetEndpoint:
    """The message is a part of the path or query, where `address` has %s; only status 200 will do."""

    def __init__(self, address: str, *, headers: Mapping[str, str]) -> None:
        if address.count("%s") != 1:
            raise ValueError("invalid GET address - must be a printf string")
        url = _parse_url(address)
        if "%s" not in url.path_and_query:
            raise ValueError("invalid GET address - must be a printf string")
        self.address = address
        self.origin = url.origin
        before, after = url.path_and_query.replace("%%", "%").split("%s")
        self._before = f"GET {before}".encode()
        self._after = f"{after} HTTP/1.1\r\n".encode() + _header_lines(url, {}, headers) + b"\r\n"

    def request(self, body: bytes) -> bytes:
        return b"%b%b%b" % (self._before, quote_plus(body).encode(), self._after)

    def is_success(self, status: int) -> bool:
        return status == HTTPStatus.OK


def _parse_url(address: str) -> HttpUrl:
    try:
        return HttpUrl.parse(address)
    except HttpUrlError as wrong:
        raise ValueError(f"{address!r}: {wrong}") from wrong


def _header_lines(url: HttpUrl, ours: Mapping[str, str], given: Mapping[str, str]) -> bytes:
    """All headers but the length of the body."""
    headers = {"Host": url.origin.host_header, "User-Agent": USER_AGENT, **ours}
    if url.authorization is not None:
        headers["Authorization"] = url.authorization
    replaced = {name.lower() for name in given}
    kept = {name: value for name, value in headers.items() if name.lower() not in replaced}
    return "".join(f"{name}: {value}\r\n" for name, value in (kept | dict(given)).items()).encode("ascii")
