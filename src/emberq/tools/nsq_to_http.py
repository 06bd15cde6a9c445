"""Nsq_to_http and the requests it makes.

nsq_to_http: consumes a topic and sends every message to a web server.

With `--post` a message is the body of a request, with `--get` a part of its URL; see `to_http_endpoint`. Of several
addresses `--mode` chooses one (see `host_pool`), or all: any other word than the three modes sends each message to
every address. A message is finished when the server said so, and requeued otherwise; the consumer then backs off.

`--n` workers each take a message, send it, and wait for the answer.

The requests that nsq_to_http makes of messages.

    POST /path HTTP/1.1              GET /path?x=a+b%26c HTTP/1.1
    Host: example.com                Host: example.com
    User-Agent: nsq_to_http v…       User-Agent: nsq_to_http v…
    Content-Type: …                  <--header>
    <--header>
    Content-Length: 3                (the message stands where the URL had %s,
                                      escaped as in a query)
    abc

A `--header` takes the place of ours of the same name. Everything but the message is put together once.

The `nsq_to_http` command.

Sends requests over HTTP and tells the status of the answers; connections are kept for the next request.

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
import logging
import random as random_numbers
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol, cast
from urllib.parse import quote_plus

from emberq import NSQ_VERSION
from emberq.base.clock import Clock, SystemClock
from emberq.base.flag import FLOAT
from emberq.base.program import run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.base.task import WaitingLine
from emberq.client.consumer import Consumer
from emberq.client.error import NsqError
from emberq.client.message import Message
from emberq.http.client import HttpAnswerReader, HttpOrigin, HttpUrl, HttpUrlError, seconds_or_unbounded
from emberq.tools.client_flags import SourceOptions, check_addresses, consume, make_consumer
from emberq.tools.host_pool import StatusReport, make_pool

USER_AGENT = f"nsq_to_http v{NSQ_VERSION}"


class Endpoint(Protocol):
    """One address to send messages to."""

    address: str
    """As the user wrote it."""
    origin: HttpOrigin

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


MAX_CONNECTING = 4
"""To one origin. The least that servers have room for by default is 5."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Nobody looks at it; a server that sends more is not one for messages."""


class SendError(Exception):
    """No answer came; the text says why."""


class EndpointConnection(HttpAnswerReader):
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
        self._idle: list[EndpointConnection] = []
        self._connecting_count = 0
        self._waiting = WaitingLine()

    async def take(self, connect: Callable[[], Awaitable[EndpointConnection]]) -> EndpointConnection:
        """An idle connection, or a new one when it is our turn to make it."""
        while True:
            connection = self._pop_idle()
            if connection is not None:
                return connection
            if self._connecting_count < MAX_CONNECTING:
                return await self._connect(connect)
            await self._waiting.wait()

    def give_back(self, connection: EndpointConnection) -> None:
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

    def _pop_idle(self) -> EndpointConnection | None:
        """The one that was used last, which is the one most likely to be alive."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return None

    async def _connect(self, connect: Callable[[], Awaitable[EndpointConnection]]) -> EndpointConnection:
        self._connecting_count += 1
        try:
            return await connect()
        finally:
            self._connecting_count -= 1
            self._waiting.call_one()


class EndpointClient:
    """Keeps a pool of connections for each origin."""

    def __init__(self, *, connect_timeout_ns: int, request_timeout_ns: int) -> None:
        self._connect_timeout_s = seconds_or_unbounded(connect_timeout_ns)
        self._request_timeout_s = seconds_or_unbounded(request_timeout_ns)
        self._pools: dict[HttpOrigin, Pool] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, origin: HttpOrigin, request: bytes) -> int:
        """Send a whole request; the status of its answer, or SendError if none came."""
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._send(origin, request)
        except TimeoutError as late:
            raise SendError("no answer in time") from late
        except OSError as failure:
            raise SendError(f"cannot connect: {failure.strerror or failure}") from failure

    async def _send(self, origin: HttpOrigin, request: bytes) -> int:
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

    async def _connect(self, origin: HttpOrigin) -> EndpointConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: EndpointConnection(loop),
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


TOOL = "nsq_to_http"
DEFAULT_CONTENT_TYPE = "application/octet-stream"
MODES_OF_ONE = ("round-robin", "hostpool", "epsilon-greedy")
"""Modes in which a message goes to one address. Any other word sends it to all."""

logger = logging.getLogger(__name__)

_SENDING = Group("Sending")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToHttpOptions(SourceOptions):
    """What nsq_to_http is to do. A duration's name ends in its unit, `_ns`."""

    topic: str = _SENDING.text("", "topic to consume", placeholder="topic")
    channel: str = _SENDING.text(TOOL, "channel to consume", placeholder="channel")
    post: tuple[str, ...] = _SENDING.strings("URL to send messages to, as the body of a POST", placeholder="url")
    get: tuple[str, ...] = _SENDING.strings("URL to GET, with %s where the message is to stand", placeholder="url")
    header: tuple[str, ...] = _SENDING.strings("header to send along, as Name: value", placeholder="header")
    content_type: str = _SENDING.text(DEFAULT_CONTENT_TYPE, "Content-Type of a POST", placeholder="type")
    mode: str = _SENDING.text(
        "hostpool",
        "how to choose among addresses: round-robin, hostpool, epsilon-greedy; any other word: send to all of them",
        placeholder="mode",
    )
    n: int = _SENDING.integer(100, "how many requests may be under way at a time")
    sample: float = _SENDING.declare(FLOAT, 1.0, "which part of the messages to send, 0 to 1; the rest is dropped")
    http_client_connect_timeout_ns: int = _SENDING.duration("2s", "how long connecting may take; 0: any time")
    http_client_request_timeout_ns: int = _SENDING.duration("20s", "how long a request may take; 0: any time")
    status_every: int = _SENDING.integer(250, "log how long requests take each time so many are done; 0: never")

    def validated(self) -> ToHttpOptions:
        """These options; OptionsError for what cannot work."""
        if not self.topic or not self.channel:
            raise OptionsError("--topic and --channel are required")
        if not self.content_type:
            raise OptionsError("--content-type requires a value when used")
        if self.content_type != DEFAULT_CONTENT_TYPE and not self.post:
            raise OptionsError("--content-type only used with --post")
        check_addresses(self)
        if not self.get and not self.post:
            raise OptionsError("--get or --post required")
        if self.get and self.post:
            raise OptionsError("use --get or --post not both")
        if not 0 <= self.sample <= 1:
            raise OptionsError("ERROR: --sample must be between 0.0 and 1.0")
        if self.n < 1:
            raise OptionsError("no handlers")
        endpoints_of(self)
        return self


SETTINGS = SettingTable(TOOL, options_class=ToHttpOptions, command=(VERSION,))


def endpoints_of(options: ToHttpOptions) -> list[Endpoint]:
    """The addresses to send to; OptionsError for one that cannot be."""
    try:
        headers = parse_headers(options.header)
        gets: list[Endpoint] = [GetEndpoint(address, headers=headers) for address in options.get]
        posts: list[Endpoint] = [
            PostEndpoint(address, content_type=options.content_type, headers=headers) for address in options.post
        ]
    except ValueError as error:
        raise OptionsError(str(error)) from error
    return gets + posts


async def run(options: ToHttpOptions, stop_asked: asyncio.Event) -> None:
    """Send until the stop is asked for."""
    sender = _Sender(options, clock=SystemClock())
    consumer = make_consumer(options, topic=options.topic, channel=options.channel, tool=TOOL)
    try:
        await consume(
            {options.topic: consumer}, sender.pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked
        )
    finally:
        sender.close()


class _Sender:
    """Takes messages from a consumer to the addresses."""

    def __init__(
        self, options: ToHttpOptions, *, clock: Clock, random: Callable[[], float] = random_numbers.random
    ) -> None:
        self._options = options
        self._endpoints = {endpoint.address: endpoint for endpoint in endpoints_of(options)}
        addresses = list(self._endpoints)
        self._pool = make_pool(options.mode, addresses, clock=clock, random=random)
        self._sends_to_all = options.mode not in MODES_OF_ONE
        self._status = StatusReport(addresses, every=options.status_every)
        self._client = EndpointClient(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
        )
        self._clock = clock
        self._random = random

    def close(self) -> None:
        self._client.close()

    async def pump(self, _topic: str, consumer: Consumer) -> None:
        """Send what the consumer brings, until it is stopped."""
        await asyncio.gather(*(self._work(consumer) for _ in range(self._options.n)))

    async def _work(self, consumer: Consumer) -> None:
        async for message in consumer:
            if self._options.sample < 1 and self._random() >= self._options.sample:
                message.finish()
            else:
                await self._deliver(message)

    async def _deliver(self, message: Message) -> None:
        try:
            if self._sends_to_all:
                for address in self._endpoints:
                    await self._send(address, message.body)
            else:
                await self._send(self._pool.pick(), message.body)
        except SendError as failure:
            logger.warning("message %s was not delivered - %s", message.id.decode(), failure)
            message.requeue()
        else:
            message.finish()

    async def _send(self, address: str, body: bytes) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            await self._request(self._endpoints[address], body)
        except SendError as failure:
            self._pool.failed(address)
            raise SendError(f"{address}: {failure}") from failure
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        self._pool.succeeded(address, elapsed_ns=elapsed_ns)
        self._status.record(address, elapsed_ns=elapsed_ns)

    async def _request(self, endpoint: Endpoint, body: bytes) -> None:
        status = await self._client.send(endpoint.origin, endpoint.request(body))
        if not endpoint.is_success(status):
            raise SendError(f"got status code {status}")


def main(argv: Sequence[str] | None = None) -> int:
    """Send messages until it is told to stop; the exit status."""
    return run_tool(SETTINGS, ToHttpOptions, run, argv, failures=(NsqError,))


if __name__ == "__main__":
    sys.exit(main())
