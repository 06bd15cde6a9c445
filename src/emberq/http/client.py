"""Asking another server: URLs, a pool of connections, bounds on time and size.

Asking another server over HTTP: one GET or POST, one answer.

nsqd asks its authorization servers and nsqlookupd this way, the tools ask nsqd. Each query has a connection of its own:
they are rare, and a connection kept open would only have to be watched.

- Every query carries `Accept: application/vnd.nsq; version=1.0`. Redirects are not followed: a query may hold a secret,
  and whoever configured the address said whom to trust with it.
- An answer other than 200 is an `UnexpectedStatusError`. The one exception is a server that wants TLS: to a 403 on `http://`
  whose body is JSON with an `https_port`, the same query is put again, once, by HTTPS to that port of that host.
- Time is bounded twice: for connecting (name look-up and TLS handshake included) and for the whole query. Zero means
  no bound. Cancelling the awaiting task closes the connection at once.
- What is read is bounded by `max_body_bytes` and MAX_HEAD_BYTES.
- The text of an error does not show the URL, for secrets travel in its query string; `public_url` is what may be shown.

    HttpQueryError
    └── UnexpectedStatus   the server did answer; its text quotes the answer's body, which may echo what was asked

The answers of a server on one connection: where they end, and what is none.

- An answer is complete when its head says so: by a length, by chunks, or because answers of its kind have no body. If
  the head says nothing of the kind, the body lasts as long as the connection.
- An interim answer (`100 Continue`) is none; the real one follows.
- A connection that ends before the answer is complete, or bytes that are not HTTP, mean that there is no answer.

URLs of HTTP taken apart, for those who ask another server.

    http://user:password@host:port/path?query#fragment
    |------------------| |-------||---------|
       authorization      origin   what the request asks for; the fragment is not sent

Secrets travel in URLs. So the text of an error holds nothing of the URL, and `public` is what may be shown of it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

import httptools

from emberq.base.address import MAX_PORT
from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import one_line, quoted

NOT_HTTP = "the answer is not HTTP"
"""What a server of another protocol is told by."""


class HttpAnswerReader(asyncio.Protocol, ABC):
    """A connection's end that reads. Its parser calls the `on_…` methods.

    A subclass says what becomes of an answer, in `_complete` and `_fail`; both may be called when nobody waits for one.
    Its `data_received` gives to `_parse` what is within its bounds.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_complete = False
        self._ends_with_connection = False
        """Nothing in the head so far says how long the body is."""

    @abstractmethod
    def _complete(self) -> None:
        """The answer is complete; the parser knows its status."""

    @abstractmethod
    def _fail(self, why: str) -> None:
        """There is no answer."""

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(NOT_HTTP)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - that it is lost is all that counts
        if self._is_head_complete and self._ends_with_connection:
            self._complete()
        else:
            self._fail("the connection was closed before the answer was complete")

    def on_message_begin(self) -> None:
        """Also called anew behind an interim answer."""
        self._is_head_complete = False
        self._ends_with_connection = True

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._is_head_complete = True

    def on_message_complete(self) -> None:
        self._is_head_complete = False
        if self._parser.get_status_code() >= HTTPStatus.OK:
            self._complete()


_DEFAULT_PORTS = {"http": 80, "https": 443}
_PRINTABLE_ASCII = re.compile(r"[!-~]+")


class HttpUrlError(ValueError):
    """A text that is no URL of HTTP; the error's text says why."""


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Where connections lead."""

    scheme: str
    host: str
    port: int

    @property
    def host_header(self) -> str:
        """The host as a request names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """A URL taken apart."""

    origin: HttpOrigin
    path_and_query: str = field(repr=False)
    authorization: str | None = field(repr=False)
    """The header for credentials that stood in it."""

    @classmethod
    def parse(cls, text: str) -> HttpUrl:
        """HttpUrlError unless it is a URL of HTTP, with everything escaped that must be."""
        if _PRINTABLE_ASCII.fullmatch(text) is None:  # a line feed in a URL would forge a header
            raise HttpUrlError("a URL has a character that must be escaped")
        try:
            parts = urlsplit(text)
            port = parts.port
            (parts.hostname or "").encode("idna")  # as the look-up of the name will do
        except ValueError:
            raise HttpUrlError("a URL is malformed") from None  # the cause would quote the URL
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise HttpUrlError("a URL must begin with http:// or https:// and a host")
        origin = HttpOrigin(parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port)
        path = parts.path or "/"
        has_query = "?" in text.partition("#")[0]  # an empty one is one, too
        return cls(origin, f"{path}?{parts.query}" if has_query else path, _basic_authorization(parts.netloc))

    @property
    def public(self) -> str:
        """The URL without credentials and query string."""
        return f"{self.origin.scheme}://{self.origin.host_header}{self.path_and_query.partition('?')[0]}"


def _basic_authorization(netloc: str) -> str | None:
    credentials, at, _ = netloc.rpartition("@")
    if not at:
        return None
    user, _, password = credentials.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(pair).decode("ascii")


ACCEPT = "application/vnd.nsq; version=1.0"
MAX_HEAD_BYTES = 64 * 1024
"""Status line and headers of an answer; real ones are a hundred times smaller."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The statistics of a very large nsqd are some megabytes."""
MAX_QUOTED_BYTES = 1024
"""As much of an unexpected answer as an error text quotes: enough for a message, too little for a page."""


class HttpQueryError(Exception):
    """The query got no usable answer; the text says why, and holds nothing of the query."""


class UnexpectedStatusError(HttpQueryError):
    """The server answered, but not with 200."""

    def __init__(self, *, status: int, reason: str, body: bytes) -> None:
        shown = body[:MAX_QUOTED_BYTES].decode("utf-8", "backslashreplace")
        super().__init__(f"got response {one_line(f'{status} {reason}'.rstrip())} {quoted(shown)}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Puts queries to servers; holds nothing between them."""

    connect_timeout_ns: int
    request_timeout_ns: int
    tls: ssl.SSLContext | None = None
    """How to judge servers of `https://` URLs; None: by the authorities that the system trusts."""
    max_body_bytes: int = MAX_BODY_BYTES

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of the answer to a GET."""
        return await self._query("GET", url, headers or {}, b"")

    async def get_json(self, url: str, *, headers: Mapping[str, str] | None = None) -> Any:
        """The same where the body must be JSON."""
        body = await self.get(url, headers=headers)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as wrong:
            raise HttpQueryError("the answer is not JSON") from wrong

    async def post(
        self,
        url: str,
        body: bytes = b"",
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of the answer to a POST."""
        all_headers = dict(headers or {})
        if content_type is not None:
            all_headers["Content-Type"] = content_type
        return await self._query("POST", url, all_headers, body)

    async def _query(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
        target = _parse_url(url)
        try:
            async with asyncio.timeout(seconds_or_unbounded(self.request_timeout_ns)):
                answer = await self._exchange(target.origin, _request(method, target, headers, body))
                secured = _wants_tls(target.origin, answer)
                if secured is not None:
                    target = replace(target, origin=secured)
                    answer = await self._exchange(secured, _request(method, target, headers, body))
        except TimeoutError as late:
            raise HttpQueryError("no answer in time") from late
        except OSError as failure:
            raise HttpQueryError(f"cannot connect: {failure.strerror or failure}") from failure
        if answer.status != HTTPStatus.OK:
            raise UnexpectedStatusError(status=answer.status, reason=answer.reason, body=answer.body)
        return answer.body

    async def _exchange(self, origin: HttpOrigin, request: bytes) -> _Answer:
        loop = asyncio.get_running_loop()
        tls = (self.tls or ssl.create_default_context()) if origin.scheme == "https" else None
        async with asyncio.timeout(seconds_or_unbounded(self.connect_timeout_ns)):
            transport, protocol = await loop.create_connection(
                lambda: _Exchange(loop, max_body_bytes=self.max_body_bytes),
                origin.host,
                origin.port,
                ssl=tls,
                server_hostname=origin.host if tls else None,
            )
        try:
            cast(asyncio.WriteTransport, transport).write(request)
            return await protocol.answer
        finally:
            transport.abort()
            protocol.forget()


class _Exchange(HttpAnswerReader):
    """Reads one answer. Owned by the query that awaits `answer`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_body_bytes: int) -> None:
        super().__init__()
        self.answer: asyncio.Future[_Answer] = loop.create_future()
        self._remaining_bytes = MAX_HEAD_BYTES + max_body_bytes
        self._max_body_bytes = max_body_bytes
        self._reason = b""
        self._body = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            self._fail("the answer is too big")
        else:
            self._parse(data)

    def forget(self) -> None:
        """Let go of the parser, which holds us: daemons do not collect cycles, and this one holds the whole answer."""
        del self._parser

    def _complete(self) -> None:
        if not self.answer.done():
            reason = self._reason.decode("ascii", "backslashreplace")
            self.answer.set_result(_Answer(self._parser.get_status_code(), reason, bytes(self._body)))

    def _fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(HttpQueryError(why))
            self.answer.exception()  # looked at: a query that gave up before this must not leave a warning behind

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reason = b""
        self._body = bytearray()

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._max_body_bytes:
            self._fail("the answer is too big")


def public_url(url: str) -> str:
    """The URL without credentials and query string: what may be shown of it."""
    return _parse_url(url).public


def _parse_url(url: str) -> HttpUrl:
    try:
        return HttpUrl.parse(url)
    except HttpUrlError as wrong:
        raise HttpQueryError(str(wrong)) from wrong


def _request(method: str, target: HttpUrl, headers: Mapping[str, str], body: bytes) -> bytes:
    all_headers = {"Host": target.origin.host_header, "Accept": ACCEPT, "Connection": "close", "User-Agent": "emberq"}
    if target.authorization is not None:
        all_headers["Authorization"] = target.authorization
    if method != "GET":
        all_headers["Content-Length"] = str(len(body))
    all_headers.update(headers)
    if not all(value.isprintable() and value.isascii() for value in all_headers.values()):
        raise HttpQueryError("a header has a character that cannot be sent")
    lines = [f"{method} {target.path_and_query} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _wants_tls(origin: HttpOrigin, answer: _Answer) -> HttpOrigin | None:
    """Where to ask again by HTTPS, if that is what a 403 asks for."""
    if origin.scheme != "http" or answer.status != HTTPStatus.FORBIDDEN:
        return None
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    port = document.get("https_port") if isinstance(document, dict) else None
    if type(port) is not int or not 0 < port <= MAX_PORT:
        return None
    return HttpOrigin("https", origin.host, port)


def seconds_or_unbounded(timeout_ns: int) -> float | None:
    """A bound on time as asyncio has it: None for zero, which means no bound."""
    return timeout_ns / NS_PER_SECOND if timeout_ns > 0 else None
