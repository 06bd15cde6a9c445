"""Asking another server over HTTP: one GET or POST, one answer.

nsqd asks its authorization servers and nsqlookupd this way, the tools ask nsqd. Each query has a connection of its own:
they are rare, and a connection kept open would only have to be watched.

- Every query carries `Accept: application/vnd.nsq; version=1.0`. Redirects are not followed: a query may hold a secret,
  and whoever configured the address said whom to trust with it.
- An answer other than 200 is an `UnexpectedStatus`. The one exception is a server that wants TLS: to a 403 on `http://`
  whose body is JSON with an `https_port`, the same query is put again, once, by HTTPS to that port of that host.
- Time is bounded twice: for connecting (name look-up and TLS handshake included) and for the whole query. Zero means
  no bound. Cancelling the awaiting task closes the connection at once.
- What is read is bounded by `max_body_bytes` and MAX_HEAD_BYTES.
- The text of an error does not show the URL, for secrets travel in its query string; `public_url` is what may be shown.

    HttpQueryError
    └── UnexpectedStatus   the server did answer; its text quotes the answer's body, which may echo what was asked
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote_to_bytes, urlsplit

import httptools

from emberq.base.address import MAX_PORT
from emberq.base.clock import NS_PER_SECOND
from emberq.base.printable import one_line, quoted

ACCEPT = "application/vnd.nsq; version=1.0"
MAX_HEAD_BYTES = 64 * 1024
"""Status line and headers of an answer; real ones are a hundred times smaller."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The statistics of a very large nsqd are some megabytes."""
MAX_QUOTED_BYTES = 1024
"""As much of an unexpected answer as an error text quotes: enough for a message, too little for a page."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PRINTABLE_ASCII = re.compile(r"[!-~]+")


class HttpQueryError(Exception):
    """The query got no usable answer; the text says why, and holds nothing of the query."""


class UnexpectedStatus(HttpQueryError):
    """The server answered, but not with 200."""

    def __init__(self, *, status: int, reason: str, body: bytes) -> None:
        shown = body[:MAX_QUOTED_BYTES].decode("utf-8", "backslashreplace")
        super().__init__(f"got response {one_line(f'{status} {reason}'.rstrip())} {quoted(shown)}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a URL leads. Only `public` may be shown."""

    scheme: str
    host: str
    port: int
    path_and_query: str = field(repr=False)
    authorization: str | None = field(repr=False)
    """The header for credentials that stood in the URL."""

    @property
    def host_and_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def public(self) -> str:
        """The URL without credentials and query string."""
        return f"{self.scheme}://{self.host_and_port}{self.path_and_query.partition('?')[0]}"


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
            async with asyncio.timeout(_seconds(self.request_timeout_ns)):
                answer = await self._exchange(target, _request(method, target, headers, body))
                secured = _wants_tls(target, answer)
                if secured is not None:
                    target = secured
                    answer = await self._exchange(target, _request(method, target, headers, body))
        except TimeoutError as late:
            raise HttpQueryError("no answer in time") from late
        except OSError as failure:
            raise HttpQueryError(f"cannot connect: {failure.strerror or failure}") from failure
        if answer.status != HTTPStatus.OK:
            raise UnexpectedStatus(status=answer.status, reason=answer.reason, body=answer.body)
        return answer.body

    async def _exchange(self, target: _Target, request: bytes) -> _Answer:
        loop = asyncio.get_running_loop()
        tls = (self.tls or ssl.create_default_context()) if target.scheme == "https" else None
        async with asyncio.timeout(_seconds(self.connect_timeout_ns)):
            transport, protocol = await loop.create_connection(
                lambda: _Exchange(loop, max_body_bytes=self.max_body_bytes),
                target.host,
                target.port,
                ssl=tls,
                server_hostname=target.host if tls else None,
            )
        try:
            cast(asyncio.WriteTransport, transport).write(request)
            return await protocol.answer
        finally:
            transport.abort()
            protocol.forget()


class _Exchange(asyncio.Protocol):
    """Reads one answer. Its parser calls the `on_…` methods; owned by the query that awaits `answer`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_body_bytes: int) -> None:
        self.answer: asyncio.Future[_Answer] = loop.create_future()
        self._remaining_bytes = MAX_HEAD_BYTES + max_body_bytes
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpResponseParser(self)
        self.on_message_begin()

    def data_received(self, data: bytes) -> None:
        if self.answer.done():
            return
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            self._fail("the answer is too big")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the answer is not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - that it is lost is all that counts
        if self._head_complete and self._ends_with_connection:
            self._complete()
        else:
            self._fail("the connection was closed before the answer was complete")

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

    # The parser's side.

    def on_message_begin(self) -> None:
        """Also called anew after an interim answer (`100 Continue`)."""
        self._reason = b""
        self._body = bytearray()
        self._head_complete = False
        self._ends_with_connection = True
        """Nothing in the head says how long the body is."""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._max_body_bytes:
            self._fail("the answer is too big")

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= HTTPStatus.OK:
            self._complete()


def public_url(url: str) -> str:
    """The URL without credentials and query string: what may be shown of it."""
    return _parse_url(url).public


def _parse_url(url: str) -> _Target:
    if _PRINTABLE_ASCII.fullmatch(url) is None:  # a line feed in a URL would forge a header
        raise HttpQueryError("a URL has a character that must be escaped")
    try:
        parts = urlsplit(url)
        port = parts.port
        (parts.hostname or "").encode("idna")  # as the look-up of the name will do
    except ValueError:
        raise HttpQueryError("a URL is malformed") from None  # the cause would quote the URL
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise HttpQueryError("a URL must begin with http:// or https:// and a host")
    path = parts.path or "/"
    has_query = "?" in url.partition("#")[0]
    return _Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=_DEFAULT_PORTS[parts.scheme] if port is None else port,
        path_and_query=f"{path}?{parts.query}" if has_query else path,
        authorization=_basic_authorization(parts.netloc),
    )


def _basic_authorization(netloc: str) -> str | None:
    credentials, at, _ = netloc.rpartition("@")
    if not at:
        return None
    user, _, password = credentials.partition(":")
    pair = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
    return "Basic " + base64.b64encode(pair).decode("ascii")


def _request(method: str, target: _Target, headers: Mapping[str, str], body: bytes) -> bytes:
    all_headers = {"Host": target.host_and_port, "Accept": ACCEPT, "Connection": "close", "User-Agent": "emberq"}
    if target.authorization is not None:
        all_headers["Authorization"] = target.authorization
    if method != "GET":
        all_headers["Content-Length"] = str(len(body))
    all_headers.update(headers)
    if not all(value.isprintable() and value.isascii() for value in all_headers.values()):
        raise HttpQueryError("a header has a character that cannot be sent")
    lines = [f"{method} {target.path_and_query} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def _wants_tls(target: _Target, answer: _Answer) -> _Target | None:
    """The same target by HTTPS, if that is what a 403 asks for."""
    if target.scheme != "http" or answer.status != HTTPStatus.FORBIDDEN:
        return None
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    port = document.get("https_port") if isinstance(document, dict) else None
    if type(port) is not int or not 0 < port <= MAX_PORT:
        return None
    return replace(target, scheme="https", port=port)


def _seconds(timeout_ns: int) -> float | None:
    return timeout_ns / NS_PER_SECOND if timeout_ns > 0 else None
