"""The HTTP server: one connection (`HttpConnection`), and all of them (`HttpServer`).

A connection reads requests and answers them in the same order. Everything that arrives in one packet is read and
answered before `data_received` returns, and the answers leave in one write. A handler that returns a response is called
right there; only one that returns an awaitable costs a task.

Holding back. A connection reads no further requests while one of these bits is set, so that neither side can make the
other keep much for it:

    RUNNING   an earlier request is still being worked on: answers must not overtake each other
    BLOCKED   the client does not read its answers
    TURN      it has had its share of this turn of the event loop
    CLOSED    the last answer has been given

What arrives meanwhile is kept. That is at most one read of the event loop: nothing more is read from the socket until
the kept bytes are used up.

Closing. After its last answer a connection is closed. If the client may still be sending, only our direction is shut
first and the rest is read and thrown away for a while: a socket closed over unread bytes makes the system send a reset,
which can overtake the answer and destroy it.

Time. One alarm serves all deadlines. They are absolute: a client that sends a byte now and then gains no time. Only
writing counts progress, because a long answer to a slow client may take long.

Access log. Each answered request is a line of the log, unless its route is quiet. One by one the lines would cost more
than the requests. So they are collected, and written together after the loop's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from email.utils import formatdate
from time import time
from typing import Any, Final, Protocol, TextIO, cast

from emberq.base.address import format_peer
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.log import OneLineFormatter
from emberq.base.text import format_duration
from emberq.base.timers import NEVER, Timers
from emberq.http.body import FileSender, StreamBody
from emberq.http.message import HttpError, LaterResponse, Request, Response, compressed, is_worth_compressing
from emberq.http.reader import BETWEEN, BODY, HEAD, UNKNOWN_NS, RequestReader
from emberq.http.router import (
    ANSWER_COST_BYTES,
    CLOSE,
    DEFAULT_LIMITS,
    SLICE_BYTES,
    TURN_BYTES,
    Admission,
    Exchange,
    Guard,
    HttpLimits,
    Router,
    answer_to,
)

# Why a connection is held back: bits of `HttpConnection._holds`. A constant that is `Final` is compiled in; any other
# would be looked up by name each time.
RUNNING: Final = 1
BLOCKED: Final = 2
TURN: Final = 4
CLOSED: Final = 8

JOINED_BYTES: Final = 64 * 1024
"""Answers that are shorter in all are joined: one short copy is cheaper than to pass on many parts."""

TOO_MANY: Final = HttpError(503, "TOO_MANY_CONNECTIONS").response()
"""What a connection that is refused hears, whatever it wanted to ask."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_StreamHandler = logging.StreamHandler[TextIO]
_EMIT: Final = logging.StreamHandler.emit
_HANDLE: Final = logging.Handler.handle

_log: Final = logging.getLogger(__name__)


class HttpConnection:
    """Owned by the event loop; registered with its server while it is open.

    An `asyncio.Protocol` in all but name: a compiled class cannot have an interpreted base.
    """

    __slots__ = (
        "_alarm",
        "_answered_count",
        "_awaited",
        "_awaited_since_ns",
        "_blocked_since_ns",
        "_closing_since_ns",
        "_has_eof",
        "_holds",
        "_idle_since_ns",
        "_is_admitted",
        "_is_lost",
        "_lingers",
        "_now_ns",
        "_output",
        "_reader",
        "_reading_paused",
        "_remote_address",
        "_sender",
        "_server",
        "_transport",
        "_turn_bytes",
        "_unparsed",
        "_unsent_bytes",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self._remote_address = "@"
        self._answered_count = 0
        """How many of the requests that the reader has ready are answered."""
        self._unparsed = b""
        """What arrived while the connection was held back."""
        self._holds = 0
        self._awaited: Exchange | None = None
        """What a `LaterResponse` is awaited for."""
        self._awaited_since_ns = 0
        self._sender: FileSender | None = None
        """Set while an answer is sent from a stream or file."""
        self._output: list[bytes] = []
        """The answers to this packet, in parts."""
        self._turn_bytes = 0
        """How much of its share of this turn the connection has used."""
        self._reading_paused = False
        self._has_eof = False
        self._lingers = False
        """Whether the client may still be sending when the connection closes."""
        self._is_lost = False
        self._is_admitted = False
        """Whether the connection counts at the server's gate."""

        self._alarm = server.timers.alarm(self._on_time)
        self._now_ns = 0
        """When the packet that is being handled arrived."""
        self._idle_since_ns = 0
        """When the last answer was given. Blank lines between requests are allowed, but gain no time."""
        self._blocked_since_ns = NEVER
        self._closing_since_ns = NEVER
        self._unsent_bytes = 0
        """The size of the write buffer at the last check for progress."""

    def __repr__(self) -> str:
        return f"<Connection {self._remote_address} holds={self._holds}>"

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._transport = cast(asyncio.Transport, transport)
        self._remote_address = format_peer(transport.get_extra_info("peername"))
        self._reader = RequestReader(
            server.admission,
            remote_address=self._remote_address,
            is_tls=transport.get_extra_info("sslcontext") is not None,
        )
        server.connections.add(self)
        self._now_ns = self._idle_since_ns = server.clock.monotonic_ns()
        self._alarm.set(self._deadline_ns())
        if server.gate is not None:
            self._is_admitted = server.gate.enter(self._remote_address, transport) is None
            if not self._is_admitted:
                self._transport.write(TOO_MANY.head + server.endings(self._now_ns)[CLOSE] + TOO_MANY.body)
                self._close()
                return
        if server.is_closing:
            self._close()

    def data_received(self, data: bytes) -> None:
        if self._holds:
            self._keep(data)
            return
        self._now_ns = self._server.clock.monotonic_ns()
        self._read(data)
        self._flush()

    def eof_received(self) -> bool:
        """True keeps our direction open for the answers still to come; TLS cannot do that."""
        self._has_eof = True
        if self._holds & CLOSED:
            return False
        if self._holds:
            return self._transport.can_write_eof()
        self._answer_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it was lost makes no difference
        self._is_lost = True
        self._holds |= CLOSED
        if self._sender is not None:
            self._sender.stop()
        self._alarm.discard()
        self._reader.close()
        self._unparsed = b""
        self._server.connections.discard(self)
        if self._is_admitted and self._server.gate is not None:
            self._server.gate.leave(self._remote_address)

    def pause_writing(self) -> None:
        self._holds |= BLOCKED
        if self._sender is not None:
            self._sender.pause()
        self._blocked_since_ns = self._server.clock.monotonic_ns()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._alarm.set_earlier(self._deadline_ns())

    def resume_writing(self) -> None:
        self._blocked_since_ns = NEVER
        if self._sender is not None:
            self._sender.resume()
        self._release(BLOCKED)

    # Reading.

    def _read(self, data: bytes) -> None:
        """Read and answer what has arrived, slice by slice, until something holds the connection back."""
        reader = self._reader
        if len(data) <= max(SLICE_BYTES, reader.missing_bytes):
            reader.feed(data)
            self._answer_waiting()
            return
        view, offset = memoryview(data), 0
        while offset < len(data) and not self._holds:
            end = offset + max(SLICE_BYTES, reader.missing_bytes)
            reader.feed(bytes(view[offset:end]) if reader.phase is BETWEEN else view[offset:end])
            offset = end
            self._answer_waiting()
        if offset < len(data):
            self._keep(data[offset:])

    def _keep(self, data: bytes) -> None:
        if self._holds & CLOSED:
            return
        self._unparsed += data
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _release(self, hold: int) -> None:
        """Clear a bit, and go on if no other is set."""
        self._holds &= ~hold
        if self._holds:
            return
        self._now_ns = self._idle_since_ns = self._server.clock.monotonic_ns()
        self._reader.since_ns = UNKNOWN_NS  # the time while nothing was read does not count
        self._answer_waiting()
        if self._unparsed and not self._holds:
            data, self._unparsed = self._unparsed, b""
            self._read(data)
        self._flush()
        if self._holds:
            return
        if self._has_eof:
            self._answer_eof()
            return
        self._resume_reading()
        self._alarm.set_earlier(self._deadline_ns())

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _answer_eof(self) -> None:
        """The client sends no more, and everything has been read."""
        self._reader.feed_eof()
        self._answer_waiting()
        self._flush()
        self._close()

    # Answering.

    def _answer_waiting(self) -> None:
        reader = self._reader
        ready = reader.ready
        while self._answered_count < len(ready) and not self._holds:
            self._answered_count += 1
            self._answer(ready[self._answered_count - 1])
        if self._answered_count == len(ready):
            self._answered_count = 0
            ready.clear()
        if reader.owes_continue and not self._holds:
            reader.owes_continue = False
            self._output.append(_CONTINUE)

    def _answer(self, exchange: Exchange) -> None:
        if exchange.refusal is not None:
            self._send(exchange, exchange.refusal, self._now_ns)
            return
        route = exchange.route
        assert route is not None  # noqa: S101 - without a route there is a refusal
        is_first = not self._output  # only then the packet arrived just now
        started_ns = self._now_ns if route.quiet or is_first else self._server.clock.monotonic_ns()
        try:
            answer = route.handler(exchange.request)
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            answer = answer_to(error, exchange.request)
        if isinstance(answer, Response) and answer.file is None and not is_worth_compressing(answer, exchange.request):
            self._send(exchange, answer, started_ns)
            return
        self._holds |= RUNNING
        if isinstance(answer, LaterResponse):
            self._awaited, self._awaited_since_ns = exchange, started_ns
            answer.when_settled(self._answer_awaited)
        else:
            self._server.start(self._answer_later(exchange, answer, started_ns))

    def _answer_awaited(self, outcome: Response | Exception) -> None:
        exchange, self._awaited = self._awaited, None
        if exchange is None or self._is_lost:
            return
        self._now_ns = self._server.clock.monotonic_ns()
        if self._server.is_closing:
            exchange.ending = CLOSE
        answer = outcome if isinstance(outcome, Response) else answer_to(outcome, exchange.request)
        self._send(exchange, answer, self._awaited_since_ns)
        self._flush()
        self._release(RUNNING)

    async def _answer_later(self, exchange: Exchange, work: Response | Awaitable[Response], started_ns: int) -> None:
        """Wait for a handler. It goes on when its client leaves, so that no work is left half done."""
        try:
            answer = work if isinstance(work, Response) else await work
            if is_worth_compressing(answer, exchange.request):
                answer = await compressed(answer)
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
            answer = answer_to(error, exchange.request)
        if self._is_lost:
            if answer.file is not None:
                answer.file.close()
            return
        self._now_ns = self._server.clock.monotonic_ns()
        if self._server.is_closing or (answer.file is not None and answer.file.length is None):
            exchange.ending = CLOSE
        self._send(exchange, answer, started_ns)
        if answer.file is not None:
            await self._send_file(exchange, answer.file)
            if self._is_lost:
                return
        self._flush()
        self._release(RUNNING)

    async def _send_file(self, exchange: Exchange, file: StreamBody) -> None:
        """Send the body that follows the head in the output."""
        self._sender = FileSender(file, self._transport)
        self._write_output()
        await self._sender.run()
        self._sender = None
        if exchange.ending is CLOSE or self._server.is_closing:
            self._end_with(exchange)

    def _send(self, exchange: Exchange, response: Response, started_ns: int) -> None:
        """Put an answer into the output."""
        body = response.body if exchange.request.method != "HEAD" else b""
        if response.is_last:
            exchange.ending = CLOSE
            exchange.has_unread_body = True  # the next request may be on its way
        head = response.head + self._server.endings(self._now_ns)[exchange.ending]
        if len(body) < JOINED_BYTES:
            self._output.append(head + body)
        else:
            self._output += [head, body]
        self._turn_bytes += len(body) + ANSWER_COST_BYTES
        if self._turn_bytes > TURN_BYTES:
            self._holds |= TURN
        if exchange.ending is CLOSE and response.file is None:
            self._end_with(exchange)
        if exchange.route is None or not exchange.route.quiet:
            self._log_access(exchange.request, response, started_ns)

    def _end_with(self, exchange: Exchange) -> None:
        """This answer is the last."""
        self._holds |= CLOSED
        self._lingers = exchange.has_unread_body

    def _log_access(self, request: Request, response: Response, started_ns: int) -> None:
        if _log.isEnabledFor(logging.INFO):
            took = short_duration(self._server.clock.monotonic_ns() - started_ns)
            # The parser admits no target with an unprintable character, so no client can forge a line.
            self._server.access_log.add(
                f"{response.status} {request.method} {request.target} ({self._remote_address}) {took}"
            )

    def _flush(self) -> None:
        """Write the output, then close, end the turn or set the deadline."""
        if self._output:
            self._write_output()
        if self._holds & CLOSED:
            self._close()
        elif self._holds & TURN:
            asyncio.get_running_loop().call_soon(self._release, TURN)
        elif self._reader.phase is not BETWEEN and self._reader.since_ns == UNKNOWN_NS:
            self._reader.since_ns = self._now_ns
            self._alarm.set_earlier(self._deadline_ns())

    def _write_output(self) -> None:
        output, self._output = self._output, []
        if len(output) == 1:
            self._transport.write(output[0])
        elif self._turn_bytes < JOINED_BYTES:
            self._transport.write(b"".join(output))
        else:
            self._transport.writelines(output)
        self._turn_bytes = 0
        self._idle_since_ns = self._now_ns

    # Closing.

    def finish(self) -> None:
        """Close now, or once the running request is answered."""
        if not self._holds & RUNNING:
            self._close()

    def _close(self) -> None:
        """Close once what was written has left. See the module docstring for a client that still sends."""
        if self._closing_since_ns != NEVER:
            return
        self._holds |= CLOSED
        self._unparsed = b""
        self._closing_since_ns = self._server.clock.monotonic_ns()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._alarm.set(self._deadline_ns())
        if not self._lingers or self._has_eof:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume_reading()

    # Time.

    def _deadline_ns(self) -> int:
        """When the client will have taken too long; NEVER while it waits for the server."""
        limits, reader = self._server.admission.limits, self._reader
        if self._closing_since_ns != NEVER:
            return self._closing_since_ns + limits.linger_ms * NS_PER_MS
        if self._holds & BLOCKED:
            return self._blocked_since_ns + limits.write_timeout_ms * NS_PER_MS
        if self._holds:
            return NEVER
        if reader.phase is HEAD:
            return reader.since_ns + limits.header_timeout_ms * NS_PER_MS
        if reader.phase is BODY:
            return reader.since_ns + limits.body_timeout_ms * NS_PER_MS
        return self._idle_since_ns + limits.idle_timeout_ms * NS_PER_MS

    def _on_time(self) -> None:
        now_ns, deadline_ns = self._server.clock.monotonic_ns(), self._deadline_ns()
        if now_ns < deadline_ns:
            self._alarm.set(deadline_ns)
        elif self._closing_since_ns != NEVER or self._holds & BLOCKED:
            self._abort_without_progress(now_ns)
        elif self._reader.phase is BETWEEN:
            self._close()
        else:
            self._reader.time_out()
            self._answer_waiting()
            self._flush()

    def _abort_without_progress(self, now_ns: int) -> None:
        """Cut off a client that has read nothing since the last check."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes >= self._unsent_bytes:
            self._transport.abort()
            return
        self._unsent_bytes = unsent_bytes
        if self._closing_since_ns != NEVER:
            self._closing_since_ns = now_ns
        else:
            self._blocked_since_ns = now_ns
        self._alarm.set(self._deadline_ns())


# The access log.


class AccessLog:
    """Collects lines and writes those of one turn of the event loop together. Owned by the server."""

    __slots__ = ("_lines", "_record", "waits_for_the_turn")

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._lines = list(lines)
        self._record = _record("")
        """Used for all lines that are written to streams, because a new one takes longer than to write the line."""
        self.waits_for_the_turn = True
        """False once the server is closing: there may be no further turn."""

    def add(self, line: str) -> None:
        """Log a line that holds nothing but printable characters."""
        self._lines.append(line)
        if not self.waits_for_the_turn:
            self.write()
        elif len(self._lines) == 1:
            asyncio.get_running_loop().call_soon(self.write)

    def write(self) -> None:
        """Hand over what was collected to the handlers of the log."""
        lines, self._lines = self._lines, []
        if _log.filters:
            lines = [line for line in lines if _log.filter(_record(line))]
        logger: logging.Logger | None = _log
        while lines and logger is not None:
            for handler in logger.handlers:
                if handler.level <= logging.INFO:
                    self._hand_over(lines, handler)
            logger = logger.parent if logger.propagate else None

    def _hand_over(self, lines: list[str], handler: logging.Handler) -> None:
        """Give a handler a record for each line. One that writes to a stream writes the same text at once."""
        kind = type(handler)
        if kind.emit is _EMIT and kind.handle is _HANDLE and not handler.filters:
            self._write_to_stream(lines, cast(_StreamHandler, handler))
            return
        for line in lines:
            handler.handle(_record(line))

    def _write_to_stream(self, lines: list[str], handler: _StreamHandler) -> None:
        record = self._record
        record.created = time()
        record.msecs = record.created % 1 * 1000
        handler.acquire()
        try:
            handler.stream.write(_written(lines, record, handler))
            handler.flush()
        except Exception:  # noqa: BLE001 - a log that cannot be written does not stop the server; `logging` reports it
            handler.handleError(record)
        finally:
            handler.release()


def _written(lines: list[str], record: logging.LogRecord, handler: _StreamHandler) -> str:
    """What a handler of streams would write for these lines, all at the time of the record."""
    formatter, end = handler.formatter, handler.terminator
    if isinstance(formatter, OneLineFormatter):
        head = formatter.head(record)
        return "".join([head + line + end for line in lines])
    texts: list[str] = []
    for line in lines:
        record.msg = line
        texts.append(handler.format(record) + end)
    return "".join(texts)


def _record(line: str) -> logging.LogRecord:
    return _log.makeRecord(_log.name, logging.INFO, __file__, 0, line, (), None)


def short_duration(duration_ns: int) -> str:
    """As `format_duration`, and faster for what most requests take: microseconds."""
    if not 1_000 <= duration_ns < NS_PER_MS:
        return format_duration(duration_ns)
    whole, fraction = duration_ns // 1_000, duration_ns % 1_000
    if not fraction:
        return f"{whole}\u00b5s"
    return f"{whole}.{str(1_000 + fraction)[1:].rstrip('0')}\u00b5s"


# All connections.


class Entrance(Protocol):
    """Bounds the number of connections, of this server and of others."""

    def enter(self, remote_address: str, transport: asyncio.BaseTransport) -> str | None:
        """Count a new connection, or return why it is refused."""
        ...

    def leave(self, remote_address: str) -> None:
        """A connection that was counted is gone."""
        ...


class HttpServer:
    """A table of routes and the connections it serves. Owned by the daemon; used in the loop's thread.

    It listens to nothing itself: the owner of a socket gives `make_protocol` to the event loop. Two listeners (plain
    and TLS) may have a server each over the same router, with different guards.
    """

    __slots__ = (
        "_endings",
        "_endings_end_ns",
        "_tasks",
        "access_log",
        "admission",
        "clock",
        "connections",
        "gate",
        "is_closing",
        "timers",
    )

    def __init__(
        self,
        router: Router,
        *,
        clock: Clock,
        timers: Timers,
        guard: Guard | None = None,
        gate: Entrance | None = None,
        head_guard: Guard | None = None,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        """`guard` checks every request before routing and before its body is read. A response it returns is final.

        So does `head_guard`, whose verdict depends on the head alone; a head seen before is not shown to it again.
        `gate` is told of every connection, and may refuse it.
        """
        self.gate = gate
        self.admission = Admission(router, guard=guard, limits=limits, head_guard=head_guard)
        self.access_log = AccessLog()
        self.clock = clock
        self.timers = timers
        self.is_closing = False
        self.connections: set[HttpConnection] = set()
        """The open connections; each adds and removes itself."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Handlers that are waiting. The event loop holds its tasks only weakly, so they are held here."""
        self._endings: tuple[bytes, ...] = ()
        self._endings_end_ns = 0
        """When the date is another."""

    def make_protocol(self) -> asyncio.Protocol:
        """For `loop.create_server`."""
        return cast(asyncio.Protocol, HttpConnection(self))

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self.connections)

    def close(self) -> None:
        """Close the idle connections; the others close by themselves when their running request is answered."""
        self.is_closing = True
        self.access_log.waits_for_the_turn = False
        self.access_log.write()
        for connection in list(self.connections):
            connection.finish()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler that has to wait for something."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def endings(self, now_ns: int) -> tuple[bytes, ...]:
        """The last lines of a head at this monotonic time, for each `Ending`. They hold the date, so they are made once
        a second."""
        if now_ns >= self._endings_end_ns:
            second, beyond_ns = divmod(self.clock.wall_ns(), NS_PER_SECOND)
            self._endings_end_ns = now_ns + NS_PER_SECOND - beyond_ns
            date = f"Date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
            self._endings = (
                date + b"\r\n",
                date + b"Connection: close\r\n\r\n",
                date + b"Connection: keep-alive\r\n\r\n",
            )
        return self._endings
