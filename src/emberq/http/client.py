"""Asking another server over HTTP: URLs, one client, its connections, bounds on time and size.

`HttpClient` works in two ways:

    get, post   one query on a connection of its own, with `Connection: close`. For queries that are rare: nsqd asks its
                authorization servers and nsqlookupd this way, nsqadmin and the tools ask nsqd.
    send        one request of many to the same server, on a connection that is kept: for nsq_to_http.

Queries
- Every query carries `Accept: application/vnd.nsq; version=1.0`. Redirects are not followed: a query may hold a secret,
  which is meant for the configured address alone, and a POST that is turned into a GET loses its body.
- An answer other than 200 is an `UnexpectedStatusError`. The one exception is a server that wants TLS: to a 403 on
  `http://` whose body is JSON with an `https_port`, the same query is put again, once, by HTTPS to that port. From then
  on that server is asked there at once.
- A secret must not travel in clear only to learn that. So a client that can judge certificates first asks a server on
  `http://` for /ping, without the secret, and remembers whether it wants TLS. One that `hides_secrets` shows none to a
  server that does not.
- The text of an error does not show the URL, for secrets travel in its query string; `public_url` is what may be shown.

    HttpQueryError
    └── UnexpectedStatusError   the server did answer; its text quotes the answer's body, which may echo what was asked

Bounds
- Time is bounded twice: for connecting (name look-up and TLS handshake included) and for the whole query. Zero means
  no bound. Cancelling the awaiting task closes the connection at once.
- What is read is bounded by `max_body_bytes` and MAX_HEAD_BYTES.

Answers
- An answer is complete when its head says so: by a length, by chunks, or because answers of its kind have no body. If
  the head says nothing of the kind, the body lasts as long as the connection.
- An interim answer (`100 Continue`) does not count; the real one follows.
- A connection that ends before the answer is complete, or bytes that are not HTTP, mean that there is no answer.

Kept connections
- There is a pool for each origin (scheme, host, port), and one request at a time on each connection.
- A server may close a connection at the very moment it is used again. So a request that fails on a used connection
  before any byte of an answer came is sent again on the next one, in the end on a fresh one.
- Only MAX_CONNECTING connections to an origin are made at a time, for a server has room for few that it has not
  accepted yet. A request that waits for its turn takes what comes first: that turn, or a connection that has become
  idle.

URLs
    http://user:password@host:port/path?query#fragment
    |------------------| |-------||---------|
       authorization      origin   what the request asks for; the fragment is not sent
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes, urlsplit

import httptools

from emberq.base.address import MAX_PORT
from emberq.base.clock import NS_PER_SECOND
from emberq.base.task import WaitingLine
from emberq.base.text import one_line, quoted
from emberq.base.tls import client_context

ACCEPT = "application/vnd.nsq; version=1.0"
MAX_HEAD_BYTES = 64 * 1024
"""Status line and headers of an answer; real ones are a hundred times smaller."""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The statistics of a very large nsqd are some megabytes."""
MAX_QUOTED_BYTES = 1024
"""As much of an unexpected answer as an error text quotes: enough for a message, too little for a page."""
MAX_REMEMBERED = 10_000
"""Servers of which it is remembered whether they want TLS: more than a cluster has."""
MAX_CONNECTING = 4
"""Connections made to one origin at a time. The shortest default of servers' accept queues is 5."""

_T = TypeVar("_T")


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
class HttpAnswer:
    """What a server answered."""

    status: int
    reason: str
    body: bytes
    """Empty if it was to be dropped."""


# The client.


class HttpClient:
    """Puts queries to servers. Keeps connections only for `send`; then it belongs to one event loop, and is closed."""

    def __init__(
        self,
        *,
        connect_timeout_ns: int,
        request_timeout_ns: int,
        tls: ssl.SSLContext | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        hides_secrets: bool = False,
    ) -> None:
        self._connect_timeout_s = _seconds(connect_timeout_ns)
        self._request_timeout_s = _seconds(request_timeout_ns)
        self._tls = tls
        """How to judge servers of `https://` URLs; None: by the system's authorities, read when first needed."""
        self._max_body_bytes = max_body_bytes
        self._hides_secrets = hides_secrets
        self._pools: dict[HttpOrigin, ConnectionPool] = {}
        self._secured: dict[HttpOrigin, HttpOrigin | None] = {}
        """Where servers on `http://` want to be asked by HTTPS; None for one that does not."""

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

    async def delete(self, url: str, *, headers: Mapping[str, str] | None = None) -> bytes:
        """The body of the answer to a DELETE."""
        return await self._query("DELETE", url, headers or {}, b"")

    async def send(self, origin: HttpOrigin, request: bytes) -> int:
        """Send a whole request on a kept connection. The status of its answer, whose body is dropped."""
        return await self._in_time(self._send(origin, request))

    def close(self) -> None:
        """Close the idle connections."""
        for pool in self._pools.values():
            pool.close()

    async def _in_time(self, exchange: Coroutine[Any, Any, _T]) -> _T:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await exchange
        except TimeoutError as late:
            raise HttpQueryError("no answer in time") from late
        except OSError as failure:
            raise HttpQueryError(f"cannot connect: {failure.strerror or failure}") from failure

    async def _query(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> bytes:
        answer = await self._in_time(self._ask(method, _parse_url(url), headers, body))
        if answer.status != HTTPStatus.OK:
            raise UnexpectedStatusError(status=answer.status, reason=answer.reason, body=answer.body)
        return answer.body

    async def _ask(self, method: str, target: HttpUrl, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        origin = target.origin
        secured = self._secured.get(origin)
        has_secret_in_clear = origin.scheme == "http" and "Authorization" in headers
        is_known = secured is not None or (origin in self._secured and not self._hides_secrets)
        if has_secret_in_clear and self._tls is not None and not is_known:
            ping = await self._ask_once(origin, _request("GET", HttpUrl(origin, "/ping", None), {}, b""))
            secured = self._learn(origin, ping)
        if has_secret_in_clear and secured is None and self._hides_secrets:
            raise HttpQueryError("it does not ask for TLS, and a secret is not shown in clear")
        if secured is None:
            answer = await self._ask_once(origin, _request(method, target, headers, body))
            secured = self._learn(origin, answer)
            if secured is None:
                return answer
        try:
            return await self._ask_once(secured, _request(method, replace(target, origin=secured), headers, body))
        except (HttpQueryError, OSError):
            self._secured.pop(origin, None)  # it may have moved; the next query asks it anew
            raise

    def _learn(self, origin: HttpOrigin, answer: HttpAnswer) -> HttpOrigin | None:
        """Remember whether a server wants to be asked by HTTPS, and where."""
        if len(self._secured) >= MAX_REMEMBERED:
            self._secured.clear()
        secured = self._secured[origin] = _wants_tls(origin, answer)
        return secured

    async def _ask_once(self, origin: HttpOrigin, request: bytes) -> HttpAnswer:
        connection = await self._connect(origin)
        try:
            return await connection.exchange(request)
        finally:
            connection.close()

    async def _send(self, origin: HttpOrigin, request: bytes) -> int:
        pool = self._pools.setdefault(origin, ConnectionPool())
        while True:
            connection = await pool.take(lambda: self._connect(origin))
            is_used = connection.is_used
            try:
                return (await connection.exchange(request, keeps_body=False)).status
            except HttpQueryError:
                if not is_used or connection.has_answer_begun:
                    raise
            finally:
                pool.give_back(connection)

    async def _connect(self, origin: HttpOrigin) -> QueryConnection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: QueryConnection(max_body_bytes=self._max_body_bytes),
                    origin.host,
                    origin.port,
                    ssl=self._tls_context() if origin.scheme == "https" else None,
                )
        except TimeoutError as late:
            raise HttpQueryError("cannot connect in time") from late
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = client_context()
        return self._tls


def bearer(secret: bytes) -> dict[str, str]:
    """The header that shows a secret; none if it is empty."""
    return {"Authorization": f"Bearer {secret.decode('latin-1')}"} if secret else {}


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


def _wants_tls(origin: HttpOrigin, answer: HttpAnswer) -> HttpOrigin | None:
    """Where to ask again by HTTPS, if a 403 asks for that."""
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


def _seconds(timeout_ns: int) -> float | None:
    """A bound on time for asyncio: None for zero, which means no bound."""
    return timeout_ns / NS_PER_SECOND if timeout_ns > 0 else None


# URLs.

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PRINTABLE_ASCII = r"[!-~]+"


class HttpUrlError(ValueError):
    """Not a URL of HTTP; the text says why, and holds nothing of the URL."""


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
    """The value of the header, if the URL has credentials."""

    @classmethod
    def parse(cls, text: str) -> HttpUrl:
        """Take a URL apart. HttpUrlError unless it is one of HTTP, with everything escaped that must be."""
        if re.fullmatch(_PRINTABLE_ASCII, text) is None:  # a line feed in a URL would forge a header
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


# Connections.

NOT_HTTP = "the answer is not HTTP"
"""How a server of another protocol is recognized."""
CUT_OFF = "the connection was closed before the answer was complete"
_NO_PARSER = httptools.HttpResponseParser(None)
"""Takes the place of the parser in connections that are closed."""


class QueryConnection(asyncio.Protocol):
    """One connection, one request at a time. Owned by the query that uses it, or by the pool while it is idle.

    Its parser calls the `on_…` methods.
    """

    def __init__(self, *, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport  # from `connection_made` on, which comes before everything else
        self._is_lost = False
        self._answer: asyncio.Future[HttpAnswer] | None = None
        """Of the request under way, or of the last one."""
        self._received_bytes = 0
        """What came back for the last request."""
        self._is_head_complete = False
        self._ends_with_connection = False
        """Nothing in the head so far says how long the body is."""
        self._reason = b""
        self._body = bytearray()
        self._body_bytes = 0
        self._keeps_body = True
        self.is_used = False
        """It has carried a request before."""
        self.is_reusable = False
        """The last answer is complete, nothing follows it, and the server did not say that it will hang up."""

    @property
    def has_answer_begun(self) -> bool:
        """Whether any byte came back for the last request."""
        return self._received_bytes > 0

    async def exchange(self, request: bytes, *, keeps_body: bool = True) -> HttpAnswer:
        """Send a request and wait for its answer; HttpQueryError if there is none."""
        self.is_reusable = False
        self._received_bytes = 0
        self._keeps_body = keeps_body
        self._answer = asyncio.get_running_loop().create_future()
        if self._is_lost:
            self._fail(CUT_OFF)
        else:
            self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close the connection, and drop the parser: it holds this object, and daemons do not collect cycles."""
        self.is_reusable = False
        self._transport.abort()
        self._parser = _NO_PARSER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._answer is None or self._answer.done():  # no request asked for this
            self.is_reusable = False
            self._transport.abort()
        elif self._received_bytes > MAX_HEAD_BYTES + self._max_body_bytes:
            self._fail("the answer is too big")
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(NOT_HTTP)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        self._is_lost = True
        if self._is_head_complete and self._ends_with_connection:
            self._complete()
        else:
            self._fail(CUT_OFF)
        self.is_reusable = False

    def _complete(self) -> None:
        if self._answer is None or self._answer.done():
            return
        self.is_used = True
        self.is_reusable = self._parser.should_keep_alive()
        reason = self._reason.decode("ascii", "backslashreplace")
        self._answer.set_result(HttpAnswer(self._parser.get_status_code(), reason, bytes(self._body)))

    def _fail(self, why: str) -> None:
        self.is_reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(HttpQueryError(why))
            self._answer.exception()  # a query that gave up before this must not leave a warning behind
        self._transport.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Also called anew behind an interim answer."""
        self.is_reusable = False  # bytes follow the last answer, which nothing asked for
        self._is_head_complete = False
        self._ends_with_connection = True
        self._reason = b""
        self._body = bytearray()
        self._body_bytes = 0

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._is_head_complete = True

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._max_body_bytes:
            self._fail("the answer is too big")
        elif self._keeps_body:
            self._body += data

    def on_message_complete(self) -> None:
        self._is_head_complete = False
        if self._parser.get_status_code() >= HTTPStatus.OK:
            self._complete()


class ConnectionPool:
    """The connections to one origin: those that are idle, and the turns to make more of them."""

    def __init__(self) -> None:
        self._idle: list[QueryConnection] = []
        self._connecting_count = 0
        self._waiting = WaitingLine()

    async def take(self, connect: Callable[[], Awaitable[QueryConnection]]) -> QueryConnection:
        """An idle connection, or a new one when it is the caller's turn to make it."""
        while True:
            connection = self._pop_idle()
            if connection is not None:
                return connection
            if self._connecting_count < MAX_CONNECTING:
                return await self._connect(connect)
            await self._waiting.wait()

    def give_back(self, connection: QueryConnection) -> None:
        """Keep a connection for the next request if it is good for one."""
        if connection.is_reusable:
            self._idle.append(connection)
            self._waiting.call_one()
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _pop_idle(self) -> QueryConnection | None:
        """The connection that was used last: it is the most likely to be alive."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        return None

    async def _connect(self, connect: Callable[[], Awaitable[QueryConnection]]) -> QueryConnection:
        self._connecting_count += 1
        try:
            return await connect()
        finally:
            self._connecting_count -= 1
            self._waiting.call_one()
