"""Sends requests over HTTP and tells the status of the answers; connections are kept for the next request.

    client ── pool of idle connections for each origin (scheme, host, port)
              └─ one request at a time on each; the body of the answer is read and dropped

- Time is bounded twice: for connecting, and for the whole request. Zero means no bound.
- A server may close a connection at the very moment we use it again. So a request that fails on a used connection
  before any byte of an answer came is sent again on the next one, in the end on a fresh one.
- Only a few connections to an origin are made at a time, for a server has room for few that it has not accepted yet. A
  request that waits for its turn takes whatever comes first: that turn, or a connection that another is done with.
- Redirects are not followed: a POST that is turned into a GET loses its body, and the message with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from emberq.base.http_answer import AnswerReader
from emberq.base.http_query import seconds_or_unbounded
from emberq.base.http_url import Origin
from emberq.base.waiting_line import WaitingLine

MAX_CONNECTING = 4
"""To one origin. The least that servers have room for by default is 5."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Nobody looks at it; a server that sends more is not one for messages."""


class SendError(Exception):
    """No answer came; the text says why."""


class Connection(AnswerReader):
    """One connection. Owned by the client, or by the request that uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._transport: asyncio.WriteTransport  # from `connection_made` on, which comes before everything else
        self._status: asyncio.Future[int] | None = None
        """Of the request under way."""
        self._answer_bytes = 0
        self.is_used = False
        """It has carried a request before."""
        self.is_reusable = False
        """The last answer is complete, and the server did not say that it will hang up."""

    @property
    def has_answer_begun(self) -> bool:
        """Whether anything came back for the last request."""
        return self._answer_bytes > 0

    async def exchange(self, request: bytes) -> int:
        """Send a request; the status of its answer."""
        self.is_reusable = False
        self._answer_bytes = 0
        self._status = self._loop.create_future()
        self._transport.write(request)
        return await self._status

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._answer_bytes += len(data)
        if self._status is None or self._status.done():
            self._fail("an answer came to no question")
        elif self._answer_bytes > MAX_ANSWER_BYTES:
            self._fail("the answer is too long")
        else:
            self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_reusable = False

    def _complete(self) -> None:
        self.is_used = True
        self.is_reusable = self._parser.should_keep_alive()
        if self._status is not None and not self._status.done():
            self._status.set_result(self._parser.get_status_code())

    def _fail(self, why: str) -> None:
        self.is_reusable = False
        if self._status is not None and not self._status.done():
            self._status.set_exception(SendError(why))
        self.abort()


class Pool:
    """The connections to one origin: those that are idle, and the turns to make more of them."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []
        self._connecting_count = 0
        self._waiting = WaitingLine()

    async def take(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        """An idle connection, or a new one when it is our turn to make it."""
        while True:
            connection = self._pop_idle()
            if connection is not None:
                return connection
            if self._connecting_count < MAX_CONNECTING:
                return await self._connect(connect)
            await self._waiting.wait()

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next request if it is good for one."""
        if connection.is_reusable:
            self._idle.append(connection)
            self._waiting.call_one()
        else:
            connection.abort()

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _pop_idle(self) -> Connection | None:
        """The one that was used last, which is the one most likely to be alive."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        self._connecting_count += 1
        try:
            return await connect()
        finally:
            self._connecting_count -= 1
            self._waiting.call_one()


class HttpClient:
    """Keeps a pool of connections for each origin."""

    def __init__(self, *, connect_timeout_ns: int, request_timeout_ns: int) -> None:
        self._connect_timeout_s = seconds_or_unbounded(connect_timeout_ns)
        self._request_timeout_s = seconds_or_unbounded(request_timeout_ns)
        self._pools: dict[Origin, Pool] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, origin: Origin, request: bytes) -> int:
        """Send a whole request; the status of its answer, or SendError if none came."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._send(origin, request)
        except TimeoutError as late:
            raise SendError("no answer in time") from late
        except OSError as failure:
            raise SendError(f"cannot connect: {failure.strerror or failure}") from failure

    async def _send(self, origin: Origin, request: bytes) -> int:
        pool = self._pools.setdefault(origin, Pool())
        while True:
            connection = await pool.take(lambda: self._connect(origin))
            is_used = connection.is_used
            try:
                return await connection.exchange(request)
            except SendError:
                if not is_used or connection.has_answer_begun:
                    raise
            finally:
                pool.give_back(connection)

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    origin.host,
                    origin.port,
                    ssl=self._tls_context() if origin.scheme == "https" else None,
                )
        except TimeoutError as late:
            raise SendError("cannot connect in time") from late
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def close(self) -> None:
        """Close the idle connections."""
        for pool in self._pools.values():
            pool.close()
