"""Bytes in, requests out: all of reading a request that needs neither a socket nor the time.

The parser is httptools (llhttp), which calls back for each piece of a request:

    POST /pub?topic=t HTTP/1.1    on_message_begin, on_url
    Host: q1:4151                 on_header
    Content-Length: 5             on_header
                                  on_headers_complete: is the request admitted, and how much body may follow?
    hello                         on_body, on_message_complete: an `Exchange` is ready

A head that was seen before is not parsed again; see `HeadCache` in `router`. A body of known length does not pass
through the parser, which would hand it on in small pieces: what arrives is kept as it came (see `base.pieces`).

Whether a request is refused is known when its headers are, and then its body is not collected. A short body is thrown
away and the connection goes on. When a long one would follow, or the client waits for permission to send it, the
answer is due at once and is the last of the connection. The same holds for a body that turns out to be too long.

A request that cannot be understood is answered too, and is always the last.

Upgrades are declined by ignoring the offer. Some clients offer HTTP/2 with their first request (`Connection: Upgrade`,
`Upgrade: h2c`) and go on in HTTP/1.1 when the answer does not take it up. The parser would take the body for bytes of
the new protocol, so a fresh parser reads the same head without the offer.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from typing import Final, NoReturn

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from emberq.base.pieces import Pieces
from emberq.http.message import HttpError, Request, Response
from emberq.http.router import (
    CLOSE,
    DISCARD_BYTES,
    KEEP,
    MAX_HEAD_BYTES,
    SLICE_BYTES,
    Admission,
    Ending,
    Exchange,
    KnownHead,
    parse_length,
)

UNKNOWN_NS: Final = -1
"""The value of `RequestReader.since_ns` until the connection sets it."""
_BLANK_LINE: Final = b"\r\n\r\n"
_NO_PARSER: Final = HttpRequestParser(None)
"""Takes the place of the parser in readers that are closed."""

_log: Final = logging.getLogger(__name__)


class Phase(enum.Enum):
    """How far the request being read has come."""

    BETWEEN = enum.auto()
    """Nothing of the next request has arrived."""
    HEAD = enum.auto()
    BODY = enum.auto()


# Looking up a member of an enum takes as long as a call, and these are needed for every request.
BETWEEN: Final = Phase.BETWEEN
HEAD: Final = Phase.HEAD
BODY: Final = Phase.BODY


class RequestReader:
    """Reads the requests of one connection, which owns it."""

    __slots__ = (
        "_admission",
        "_body_bytes",
        "_body_room_bytes",
        "_declines_upgrade",
        "_exchange",
        "_header_bytes",
        "_header_count",
        "_headers",
        "_is_tls",
        "_keeps_body",
        "_new_head",
        "_parser",
        "_pieces",
        "_quiet_bytes",
        "_remote_address",
        "_target",
        "is_finished",
        "missing_bytes",
        "owes_continue",
        "phase",
        "ready",
        "since_ns",
    )

    def __init__(self, admission: Admission, *, remote_address: str, is_tls: bool) -> None:
        self._admission = admission
        self.ready: list[Exchange] = []
        """Requests that have been read, in their order. The connection takes them out."""
        self._remote_address = remote_address
        self._is_tls = is_tls
        self._parser = HttpRequestParser(self)

        self.phase = BETWEEN
        self.since_ns = UNKNOWN_NS
        """When the connection first saw the current phase; the connection sets it, each new phase resets it."""
        self.is_finished = False
        """Whether the last request of the connection is ready."""
        self.owes_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""

        self._new_head: bytes | None = None
        """The head being parsed, without the blank line behind it, if it may be remembered."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._header_count = 0
        self._quiet_bytes = 0
        """Bytes parsed without the head becoming complete or the body growing. The parser keeps the pieces of an
        unfinished header or trailer, so this bounds what it keeps."""
        self._declines_upgrade = False

        self._exchange: Exchange
        """The request being read, once its headers are complete."""
        self._pieces = Pieces()
        """What has arrived of a body that is collected."""
        self._body_bytes = 0
        """How much of the body has arrived, collected or thrown away."""
        self._body_room_bytes = 0
        """How much of the body may arrive before the connection is given up."""
        self._keeps_body = False
        """Whether the body is collected, not thrown away."""
        self.missing_bytes = 0
        """How much is still to come of a body that does not pass through the parser; 0: there is no such body."""

    # The connection's side.

    def feed(self, data: bytes | memoryview) -> None:
        """Read a slice of the stream; the requests that it completes are ready."""
        if self.missing_bytes:
            data = self._take_body(data)
        if self.phase is BETWEEN and isinstance(data, bytes):
            data = self._take_known(data)
        if data:
            self._parse(data)

    def feed_eof(self) -> None:
        """The client sends no more. A request whose body broke off is answered: the client may still be reading."""
        if self.phase is BODY and not self.is_finished:
            self._exchange.refusal = HttpError(500, "INTERNAL_ERROR").response()
            self._deliver_last()

    def time_out(self) -> None:
        """The client has taken too long for the request it has begun."""
        if self.phase is BODY:
            self._exchange.refusal = HttpError(408, "REQUEST_TIMEOUT").response()
            self._exchange.has_unread_body = True
            self._deliver_last()
        else:
            self._deliver_refusal(408, "REQUEST_TIMEOUT")

    def close(self) -> None:
        """Drop what is ready, and the parser, which refers back to this object."""
        self.is_finished = True
        self.ready.clear()
        self._parser = _NO_PARSER
        self._pieces.clear()

    # Heads seen before.

    def _take_known(self, data: bytes) -> bytes:
        """Deliver the requests at the start of `data` whose heads are known; returns what is left for the parser."""
        while data and not self.is_finished:
            head, blank_line, rest = data.partition(_BLANK_LINE)
            if not blank_line or len(head) > MAX_HEAD_BYTES:
                break
            known = self._admission.known_heads.get(head)
            if known is None or known.body_bytes > len(rest):
                return self._parse_new_head(data, head, rest)
            body_bytes = known.body_bytes
            if body_bytes == len(rest):
                self._deliver_known(known, rest)
                return b""
            self._deliver_known(known, rest[:body_bytes])
            data = rest[body_bytes:]
        return data

    def _deliver_known(self, known: KnownHead, body: bytes) -> None:
        route = known.route
        request = known.request.repeated(
            body if route.max_body_bytes else b"", remote_address=self._remote_address, is_tls=self._is_tls
        )
        refusal = self._admission.guarded(request)
        self.ready.append(Exchange(request, ending=KEEP, route=route, refusal=refusal))

    def _parse_new_head(self, data: bytes, head: bytes, rest: bytes) -> bytes:
        """Let the parser read the head alone, so that the result belongs to exactly these bytes; returns the rest."""
        if not data[:1].isalpha():
            return data  # line breaks may precede a request; then it is unclear where the head begins
        self._new_head = head
        self._parse(head + _BLANK_LINE)
        self._new_head = None
        if self._has_plain_body():
            self._parser = HttpRequestParser(self)  # the other one waits for the body
            self.missing_bytes = parse_length(self._headers[b"content-length"])
            return bytes(self._take_body(rest))
        return rest

    # Bodies that do not pass through the parser.

    def _has_plain_body(self) -> bool:
        """Whether a body is to be kept of which the head tells the length."""
        if self.phase is not BODY or not self._keeps_body or self.is_finished:
            return False
        headers = self._headers
        return b"content-length" in headers and b"transfer-encoding" not in headers and b"upgrade" not in headers

    def _take_body(self, data: bytes | memoryview) -> bytes | memoryview:
        """Keep what belongs to the body, and deliver the request when it is whole; returns the rest."""
        piece = data[: self.missing_bytes]
        if not piece:
            return data
        self.owes_continue = False
        self.missing_bytes -= len(piece)
        self._pieces.add(bytes(piece))  # a view would hold the whole packet
        if not self.missing_bytes:
            self._exchange.request.body = self._pieces.take()
            self.phase = BETWEEN
            self.is_finished = self._exchange.ending is CLOSE
            self.ready.append(self._exchange)
        return data[len(piece) :]

    # The parser and its callbacks.

    def _parse(self, data: bytes | memoryview) -> None:
        if self.is_finished:
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if not self.is_finished:
                self._replay_without_upgrade()
                self._parse(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._on_parser_error(error)
        else:
            if self.phase is not BETWEEN:
                self._count_quiet(len(data))

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self.since_ns = UNKNOWN_NS
        self._target = b""
        self._headers = {}
        self._header_bytes = 0
        self._header_count = 0

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is BODY:
            return  # a trailer; all are ignored
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name == b"host":
                self._refuse(400, "INVALID_REQUEST")  # two servers could go by different ones
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        self._quiet_bytes = 0
        if b"upgrade" in self._headers and self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT":
            self._declines_upgrade = True
            return
        self._check_head()
        self.phase = BODY
        self.since_ns = UNKNOWN_NS
        self._exchange = self._open_exchange()
        self._prepare_for_body()
        if self._new_head is not None:
            self._admission.known_heads.learn(self._new_head, self._exchange, self._headers)

    def on_body(self, piece: bytes) -> None:
        self._quiet_bytes = 0
        self.owes_continue = False
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_room_bytes:
            self._refuse_body_of(self._body_bytes)
        if self._keeps_body:
            self._pieces.add(piece)

    def on_message_complete(self) -> None:
        if self._declines_upgrade:
            return
        self.phase = BETWEEN
        self.owes_continue = False
        exchange = self._exchange
        exchange.request.body = self._pieces.take()
        self.is_finished = exchange.ending is CLOSE
        self.ready.append(exchange)

    # Heads.

    def _check_head(self) -> None:
        """Refuse a head that is beyond the limits or not of HTTP/1."""
        limits, headers = self._admission.limits, self._headers
        head_bytes = len(self._target) + self._header_bytes
        if head_bytes > limits.max_header_bytes or self._header_count > limits.max_header_count:
            self._refuse(431, "HEADER_TOO_BIG")
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._refuse(505, "VERSION_NOT_SUPPORTED")
        if b"host" not in headers and version == "1.1":
            self._refuse(400, "INVALID_REQUEST")
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            self._refuse(501, "TRANSFER_ENCODING_NOT_SUPPORTED")

    def _open_exchange(self) -> Exchange:
        """Make the request and find its route."""
        try:
            request = Request(
                self._parser.get_method().decode("ascii"),
                self._target.decode("ascii"),
                headers=self._headers,
                remote_address=self._remote_address,
                is_tls=self._is_tls,
            )
        except HttpError as error:
            self._refuse(error.status, error.message)
        found = self._admission.admit(request)
        if isinstance(found, Response):
            return Exchange(request, ending=self._ending(), refusal=found)
        request.params = found.params
        return Exchange(request, ending=self._ending(), route=found.route)

    def _ending(self) -> Ending:
        parser = self._parser
        if not parser.should_keep_alive() or parser.should_upgrade():  # only CONNECT is still an upgrade here
            return CLOSE
        if b"connection" in self._headers and parser.get_http_version() == "1.0":
            return Ending.KEEP_OLD
        return KEEP

    def _replay_without_upgrade(self) -> None:
        """Let a fresh parser read the head again, without the offer to upgrade."""
        method, version = self._parser.get_method(), self._parser.get_http_version()
        head = head_without_upgrade(method=method, target=self._target, version=version, headers=self._headers)
        self._parser = HttpRequestParser(self)
        self._declines_upgrade = False
        self._parse(head)

    # Bodies.

    def _prepare_for_body(self) -> None:
        """Decide how much body may follow, before any of it arrives."""
        headers, route = self._headers, self._exchange.route
        limit_bytes = route.max_body_bytes if route is not None else 0
        self._keeps_body = limit_bytes > 0
        self._body_room_bytes = limit_bytes or DISCARD_BYTES
        self._body_bytes = 0
        length = headers.get(b"content-length")
        if length is not None and parse_length(length) > self._body_room_bytes:
            self._refuse_body_of(parse_length(length))
        expectation = headers.get(b"expect")
        if expectation is not None and self._parser.get_http_version() != "1.0":
            self._heed(expectation.lower())

    def _heed(self, expectation: bytes) -> None:
        """`Expect: 100-continue`: the client asks before it sends the body."""
        exchange = self._exchange
        if expectation != b"100-continue":
            exchange.refusal = HttpError(417, "EXPECTATION_FAILED").response()
        if exchange.refusal is not None:
            # The client may send the body or not, so what comes next could not be understood.
            self._stop_at_body()
        self.owes_continue = True

    def _refuse_body_of(self, size_bytes: int) -> None:
        """The body is too long: throw it away if it is short enough for that, else stop here."""
        route = self._exchange.route
        if self._keeps_body and route is not None:
            self._exchange.refusal = HttpError(413, route.too_big).response()
            self._keeps_body = False
            self._pieces.clear()
            self._body_room_bytes = max(self._body_room_bytes, DISCARD_BYTES)
        if size_bytes > self._body_room_bytes:
            self._stop_at_body()

    def _stop_at_body(self) -> NoReturn:
        self._exchange.has_unread_body = True
        self._deliver_last()
        raise _Stop

    # The last request.

    def _refuse(self, status: int, message: str) -> NoReturn:
        """Answer a request that cannot be understood, from within a callback."""
        self._deliver_refusal(status, message)
        raise _Stop

    def _deliver_refusal(self, status: int, message: str) -> None:
        request = Request("-", "-", remote_address=self._remote_address, is_tls=self._is_tls)
        self._exchange = Exchange(request, ending=CLOSE, refusal=HttpError(status, message).response())
        self._exchange.has_unread_body = True
        self._deliver_last()

    def _deliver_last(self) -> None:
        self.is_finished = True
        self.owes_continue = False
        self._pieces.clear()
        self.missing_bytes = 0
        self._exchange.ending = CLOSE
        self.ready.append(self._exchange)

    def _on_parser_error(self, error: HttpParserError) -> None:
        if self.is_finished:
            return  # a callback stopped the parser, or bytes followed the last request
        if isinstance(error, HttpParserCallbackError):
            raise error  # a defect of ours, not an error of the client
        _log.debug("malformed HTTP request from (%s) - %s", self._remote_address, error)
        self._deliver_refusal(400, "INVALID_REQUEST")

    def _count_quiet(self, size_bytes: int) -> None:
        """Bound what the parser keeps; see `_quiet_bytes`. Blanks and line ends count here too, hence twice the limit,
        and one slice of which only the start may have been a body.
        """
        self._quiet_bytes += size_bytes
        if self._quiet_bytes > 2 * self._admission.limits.max_header_bytes + SLICE_BYTES:
            self._deliver_refusal(431, "HEADER_TOO_BIG")


class _Stop(Exception):
    """Raised in a callback to leave the parser: nothing more is read from this connection."""


# Upgrades.


def head_without_upgrade(*, method: bytes, target: bytes, version: str, headers: Mapping[bytes, bytes]) -> bytes:
    """The head of the same request without the offer to upgrade. Names of headers are in lower case."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode("ascii"))]
    for name, value in headers.items():
        if name == b"connection":
            lines.append(b"connection: " + _without_upgrade(value))
        elif name != b"upgrade":
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


def _without_upgrade(options: bytes) -> bytes:
    kept = (option.strip() for option in options.split(b",") if option.strip().lower() != b"upgrade")
    return b", ".join(kept)
