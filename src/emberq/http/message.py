r"""What a handler gets and what it gives: a request, and a response or an `HttpError`.

Two styles of answer exist in NSQ. A *V1* answer carries `X-NSQ-Content-Type: nsq; version=1.0` and is text, compact
JSON or nothing; its errors are `{"message":"TEXT"}`. A *plain* answer is raw text without that header (`/ping`).

A response is immutable and knows the bytes of its own head, so an answer given often can be made once and kept:

    HTTP/1.1 200 OK\r\n
    X-NSQ-Content-Type: nsq; version=1.0\r\n        `Response.head`: made with the response
    Content-Type: text/plain; charset=utf-8\r\n
    Content-Length: 2\r\n
    Date: Tue, 17 May 2024 09:30:00 GMT\r\n         added by the connection: they depend on when
    Connection: close\r\n                           and to whom it is sent
    \r\n
    OK

A body that lies in a file is not read into memory but sent from there (see `body`); such a response is for one client.

The query of a request is the only source of parameters; form bodies are not read. A bad `%` escape or a `;` anywhere
makes the whole query malformed. The first value of a name counts, and a name without a value counts as present and
empty. What a value may be is for the daemon's handlers to check.

Answers are compressed for clients that accept gzip: only text and JSON, and only when they are long. The fastest level
is used; it takes a page of statistics to a tenth of its size. What would take milliseconds is done in a thread, so that
other connections do not wait.
"""

from __future__ import annotations

import asyncio
import json as _json
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from http import HTTPStatus
from re import compile as _pattern
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from zlib_ng import zlib_ng

from emberq.http.body import StreamBody, encoded

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json; charset=utf-8"

Headers = tuple[tuple[str, str], ...]
V1_HEADERS: Final[Headers] = (("X-NSQ-Content-Type", "nsq; version=1.0"),)
"""What marks an answer of NSQ's API, version 1."""
Query = Mapping[str, str]
"""The parameters of a request: the first value of each, `""` when present but empty."""
NO_PARAMS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_HEADERS: Final[dict[bytes, bytes]] = {}
_CACHED_QUERY_LENGTH: Final = 200
"""Longer queries are parsed each time, so that the cache of parsed ones stays within a few hundred kilobytes."""
_BAD_ESCAPE: Final = _pattern("%(?![0-9A-Fa-f]{2})")
_LINE_BREAK: Final = _pattern("[\r\n\0]")
_WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


# Requests.


class Request:
    """One request as handlers see it. Owned by its connection; a handler reads it."""

    __slots__ = ("_headers", "body", "is_tls", "method", "params", "path", "query_text", "remote_address", "target")

    def __init__(
        self,
        method: str,
        target: str,
        *,
        headers: dict[bytes, bytes] = _NO_HEADERS,
        body: bytes = b"",
        remote_address: str = "@",
        is_tls: bool = False,
        params: Mapping[str, str] = NO_PARAMS,
        parts: tuple[str, str] | None = None,
    ) -> None:
        """`headers` have lower-case names; `parts` are the target's path and query, if they are known already.

        HttpError if the path has to be parsed and is malformed.
        """
        self.method = method
        self.target = target
        """What stood between method and version, as it was sent."""
        self.path, self.query_text = split_target(target) if parts is None else parts
        """The path is unescaped; the query is what follows the `?`, as it was sent."""
        self.body = body
        self.remote_address = remote_address
        """`127.0.0.1:1234`, or `@` for a Unix socket."""
        self.is_tls = is_tls
        self.params = params
        """The values of the `{name}` segments of the route's path."""
        self._headers = headers

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.target!r} ({self.remote_address})>"

    def repeated(self, body: bytes, *, remote_address: str, is_tls: bool) -> Request:
        """The same request with another body, from another client."""
        return Request(
            self.method,
            self.target,
            headers=self._headers,
            body=body,
            remote_address=remote_address,
            is_tls=is_tls,
            params=self.params,
            parts=(self.path, self.query_text),
        )

    def header(self, name: str) -> str | None:
        """A header's value; several of the same name are joined by commas. Case of the name makes no difference."""
        value = self._headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    def raw_header(self, name: bytes) -> bytes | None:
        """The same for a name in lower case, as bytes; faster."""
        return self._headers.get(name)

    def query(self) -> Query:
        """The parameters; HttpError(400, "INVALID_REQUEST") when they are malformed."""
        text = self.query_text
        return _cached_query(text) if len(text) <= _CACHED_QUERY_LENGTH else parse_query(text)


def split_target(target: str) -> tuple[str, str]:
    """Path (unescaped) and query (as it was sent) of a request-target; HttpError if the path is malformed.

    A target is `/path?query`, or `*`, or the whole URL when the client takes the server for a proxy.
    """
    path, _, query_text = target.partition("?")
    if path[:1] != "/" and "://" in path:
        path = "/" + path.partition("://")[2].partition("/")[2]
    if "%" in path or not path.isascii():
        path = _unescaped(path)
    return path, query_text


def parse_query(query_text: str) -> Query:
    """The parameters; HttpError(400, "INVALID_REQUEST") when they are malformed."""
    if ";" in query_text:
        raise HttpError(400, "INVALID_REQUEST")
    values: dict[str, str] = {}
    for pair in query_text.split("&"):
        if pair:
            name, _, value = pair.replace("+", " ").partition("=")
            values.setdefault(_unescaped(name), _unescaped(value))
    return values


_cached_query: Final = lru_cache(maxsize=1024)(parse_query)
"""A publisher sends the same query again and again."""


def _unescaped(escaped: str) -> str:
    """Percent escapes resolved; bytes that are no UTF-8 become U+FFFD. HttpError if an escape is malformed."""
    if _BAD_ESCAPE.search(escaped):
        raise HttpError(400, "INVALID_REQUEST")
    return unquote_to_bytes(escaped.encode("latin-1")).decode("utf-8", "replace")


def required(query: Query, name: str) -> str:
    """The parameter's value; 400 MISSING_ARG_<NAME> if it is absent."""
    value = query.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


# Responses.


class Response:
    """An answer; immutable, so one object may be sent any number of times."""

    __slots__ = ("body", "content_type", "file", "head", "headers", "is_last", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str | None = None,
        headers: Headers = (),
        file: StreamBody | None = None,
        is_last: bool = False,
    ) -> None:
        """`file` is the body in place of `body`. Raises ValueError if a header would break out of its line."""
        self.is_last = is_last
        """Whether requests that the client has sent behind this one must not be carried out: it ends the connection."""
        self.status = status
        self.body = body
        self.file = file
        """Closed by the connection, whether or not it is sent."""
        self.content_type = content_type
        """None: no such header."""
        self.headers = headers
        build = _cached_fixed_head if headers is V1_HEADERS or not headers else _fixed_head
        self.head = build(status, content_type, headers)
        """Status line and headers, without those that depend on the connection and the time."""
        length = len(body) if file is None else file.length
        if status not in _WITHOUT_BODY and length is not None:
            self.head += b"Content-Length: %d\r\n" % length

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.content_type} {len(self.body)} bytes>"


class LaterResponse:
    """An answer that may not be known yet: it has no file. The server is called back, which costs less than a task."""

    __slots__ = ("_tell", "outcome")

    def __init__(self) -> None:
        self.outcome: Response | Exception | None = None
        """The answer, or what went wrong; None while it is not known."""
        self._tell: Callable[[Response | Exception], None] | None = None

    def settle(self, outcome: Response | Exception) -> None:
        """It is known now; called once."""
        self.outcome = outcome
        if self._tell is not None:
            self._tell(outcome)

    def when_settled(self, tell: Callable[[Response | Exception], None]) -> None:
        """Call this as soon as it is known; at once if it is."""
        if self.outcome is not None:
            tell(self.outcome)
        else:
            self._tell = tell

    def __await__(self) -> Generator[Any, None, Response]:
        return self._settled().__await__()

    async def _settled(self) -> Response:
        known: asyncio.Future[Response | Exception] = asyncio.get_running_loop().create_future()
        self.when_settled(lambda outcome: None if known.done() else known.set_result(outcome))
        outcome = await known
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def text(body: str | bytes, status: int = 200) -> Response:
    """A V1 answer of text."""
    return Response(status, _encoded(body), content_type=TEXT, headers=V1_HEADERS)


def json(value: Any, status: int = 200) -> Response:
    """A V1 answer of JSON: compact, and safe to stand inside an HTML page, as NSQ's encoder makes it."""
    return json_answer(encode_json(value), status)


def json_answer(body: bytes, status: int = 200) -> Response:
    """The same for a body that is JSON already."""
    return Response(status, body, content_type=JSON, headers=V1_HEADERS)


def empty(status: int = 200) -> Response:
    """A V1 answer without a body."""
    return Response(status, headers=V1_HEADERS)


def plain(body: str | bytes, status: int = 200, content_type: str | None = TEXT) -> Response:
    """An answer that is not V1."""
    return Response(status, _encoded(body), content_type=content_type)


class HttpError(Exception):
    """A refusal that a handler raises: the client gets it as a V1 error."""

    def __init__(self, status: int, message: str, *, is_last: bool = False, **facts: int | str) -> None:
        """`facts` are further keys of the JSON, for programs: such as the offset that would do."""
        super().__init__(message)
        self.is_last = is_last
        """As in `Response`."""
        self.status = status
        self.message = message
        self.facts = facts

    def response(self) -> Response:
        """The error as it is sent: `{"message":"TEXT"}`, and the facts."""
        body = encode_json({"message": self.message, **self.facts})
        return Response(self.status, body, content_type=JSON, headers=V1_HEADERS, is_last=self.is_last)


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, as `json_text` makes it."""
    return encoded(json_text(value))


_UNSAFE_IN_HTML: Final = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
_dumps: Final = _json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_text(value: Any) -> str:
    """Compact JSON with `<`, `>`, `&`, U+2028 and U+2029 escaped; they can only stand inside strings."""
    out = _dumps(value)
    for char, escape in _UNSAFE_IN_HTML.items():
        if char in out:
            out = out.replace(char, escape)
    return out


def _encoded(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else encoded(body)


def _fixed_head(status: int, content_type: str | None, headers: Headers) -> bytes:
    """Status line and headers, without Content-Length."""
    lines = [f"HTTP/1.1 {status} {_reason(status)}\r\n"]
    typed = headers if content_type is None else (*headers, ("Content-Type", content_type))
    for name, value in typed:
        if _LINE_BREAK.search(name) or _LINE_BREAK.search(value):
            raise ValueError(f"a header may not hold a line break: {name!r}")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


_cached_fixed_head: Final = lru_cache(maxsize=256)(_fixed_head)
"""For answers without further headers: there are as many as pairs of status and content type in use."""


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"


# Compression.

COMPRESS_BYTES: Final = 1400
"""Shorter answers fit a packet anyway."""
_THREAD_BYTES: Final = 64 * 1024
"""Longer bodies take more than about a millisecond, much more than handing them to a thread."""
_LEVEL: Final = 1
_GZIP_WINDOW_BITS: Final = 16 + zlib_ng.MAX_WBITS  # 16 asks zlib for gzip's header and checksum
_COMPRESSED_HEADERS: Final[Headers] = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))


def is_worth_compressing(response: Response, request: Request) -> bool:
    """Whether the answer is long, is text, and the client accepts gzip."""
    return len(response.body) >= COMPRESS_BYTES and _is_text(response) and _accepts_gzip(request)


async def compressed(response: Response) -> Response:
    """The same answer with its body in gzip."""
    if len(response.body) < _THREAD_BYTES:
        body = _gzip(response.body)
    else:
        body = await asyncio.to_thread(_gzip, response.body)
    headers = (*response.headers, *_COMPRESSED_HEADERS)
    return Response(response.status, body, content_type=response.content_type, headers=headers)


def _gzip(body: bytes) -> bytes:
    return zlib_ng.compress(body, _LEVEL, _GZIP_WINDOW_BITS)


def _is_text(response: Response) -> bool:
    content_type = response.content_type or ""
    is_encoded = any(name.lower() == "content-encoding" for name, _ in response.headers)
    return content_type.startswith(("text/", "application/json")) and not is_encoded


def _accepts_gzip(request: Request) -> bool:
    """Whether `Accept-Encoding` names gzip (or anything, by `*`) with a weight above zero."""
    accepted: dict[str, bool] = {}
    for choice in (request.header("accept-encoding") or "").split(","):
        coding, _, weight = choice.partition(";")
        digits = weight.replace(" ", "").removeprefix("q=")
        accepted[coding.strip().lower()] = not digits or digits.strip("0.") != ""
    return accepted.get("gzip", accepted.get("*", False))
