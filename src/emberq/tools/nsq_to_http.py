"""nsq_to_http: consumes a topic and sends every message to a web server.

With `--post` a message is the body of a request, with `--get` a part of its URL:

    POST /path HTTP/1.1              GET /path?x=a+b%26c HTTP/1.1
    Host: example.com                Host: example.com
    User-Agent: nsq_to_http v…       User-Agent: nsq_to_http v…
    Content-Type: …                  <--header>
    <--header>
    Content-Length: 3                (the message stands where the URL had %s,
                                      escaped as in a query)
    abc

A `--header` replaces ours of the same name. Everything but the message is put together once. A header with a secret
goes into a file (`--header-file`), because every user of the machine can read a command line. Log lines and errors show
addresses without the secrets in them.

Of several addresses `--mode` chooses one (see `host_pool`), or all: any other word than the three modes sends each
message to every address. A message is finished when the server answers with success, and requeued otherwise; the
consumer then backs off. `--n` workers each take a message, send it, and wait for the answer. Connections are kept for
the next request (see `emberq.http.client`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote_plus

from emberq import NSQ_VERSION
from emberq.base.clock import Clock, SystemClock
from emberq.base.flag import FLOAT
from emberq.base.program import run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.base.text import masked, quoted
from emberq.client.consumer import Consumer
from emberq.client.error import NsqError
from emberq.client.message import Message, id_text
from emberq.http.client import HttpClient, HttpQueryError, HttpUrl, HttpUrlError
from emberq.tools.client_flags import SourceOptions, check_addresses, consume, make_consumer
from emberq.tools.host_pool import StatusReport, make_pool

TOOL = "nsq_to_http"
USER_AGENT = f"nsq_to_http v{NSQ_VERSION}"
DEFAULT_CONTENT_TYPE = "application/octet-stream"
MODES_OF_ONE = ("round-robin", "hostpool", "epsilon-greedy")
"""Modes in which a message goes to one address. Any other word sends it to all."""

logger = logging.getLogger(__name__)


# Options.

_SENDING = Group("Sending")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToHttpOptions(SourceOptions):
    """The flags of nsq_to_http. A duration's name ends in its unit, `_ns`."""

    topic: str = _SENDING.text("", "topic to consume", placeholder="topic")
    channel: str = _SENDING.text(TOOL, "channel to consume", placeholder="channel")
    post: tuple[str, ...] = _SENDING.strings("URL to send messages to, as the body of a POST", placeholder="url")
    get: tuple[str, ...] = _SENDING.strings("URL to GET, with %s where the message is to stand", placeholder="url")
    header: tuple[str, ...] = _SENDING.strings("header to send along, as Name: value", placeholder="header")
    header_file: tuple[str, ...] = _SENDING.strings(
        "file with headers to send along, one to a line, for those that hold a secret", placeholder="file"
    )
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
        """These options, checked; OptionsError."""
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
    """The addresses to send to; OptionsError if one is wrong."""
    try:
        headers = parse_headers([*options.header, *_headers_in(options.header_file)])
        gets: list[Endpoint] = [GetEndpoint(address, headers=headers) for address in options.get]
        posts: list[Endpoint] = [
            PostEndpoint(address, content_type=options.content_type, headers=headers) for address in options.post
        ]
    except ValueError as error:
        raise OptionsError(str(error)) from error
    return gets + posts


# The program.


class SendError(Exception):
    """A message was not delivered to an address; the text says why."""


async def run(options: ToHttpOptions, stop_asked: asyncio.Event) -> None:
    """Send messages until `stop_asked` is set."""
    sender = _Sender(options, clock=SystemClock())
    consumer = make_consumer(options, topic=options.topic, channel=options.channel, tool=TOOL)
    try:
        await consume(
            {options.topic: consumer}, sender.pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked
        )
    finally:
        sender.close()


class _Sender:
    """Sends the messages of a consumer to the addresses."""

    def __init__(self, options: ToHttpOptions, *, clock: Clock) -> None:
        self._options = options
        self._endpoints = {endpoint.address: endpoint for endpoint in endpoints_of(options)}
        addresses = list(self._endpoints)
        self._pool = make_pool(options.mode, addresses, clock=clock)
        self._sends_to_all = options.mode not in MODES_OF_ONE
        self._status = StatusReport(addresses, every=options.status_every)
        self._client = HttpClient(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
        )
        self._clock = clock

    def close(self) -> None:
        self._client.close()

    async def pump(self, _topic: str, consumer: Consumer) -> None:
        """Send the consumer's messages until it is stopped."""
        await asyncio.gather(*(self._work(consumer) for _ in range(self._options.n)))

    async def _work(self, consumer: Consumer) -> None:
        async for message in consumer:
            if self._options.sample < 1 and random.random() >= self._options.sample:  # noqa: S311 - no secret
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
            logger.warning("message %s was not delivered - %s", id_text(message.id), failure)
            message.requeue()
        else:
            message.finish()

    async def _send(self, address: str, body: bytes) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            await self._request(self._endpoints[address], body)
        except (HttpQueryError, SendError) as failure:
            self._pool.failed(address)
            raise SendError(f"{masked(address)}: {failure}") from failure
        elapsed_ns = self._clock.monotonic_ns() - began_ns
        self._pool.succeeded(address, elapsed_ns=elapsed_ns)
        self._status.record(address, elapsed_ns=elapsed_ns)

    async def _request(self, endpoint: Endpoint, body: bytes) -> None:
        status = await self._client.send(endpoint.origin, endpoint.request(body))
        if not endpoint.is_success(status):
            raise SendError(f"got status code {status}")


# The requests that messages become.


def _headers_in(paths: Iterable[str]) -> Iterator[str]:
    """The lines of files; OptionsError for one that cannot be read."""
    for path in paths:
        try:
            text = Path(path).read_text(encoding="ascii")
        except OSError as error:
            raise OptionsError(f"--header-file: {path}: {error.strerror}") from error
        except ValueError as error:
            raise OptionsError(f"--header-file: {path} has a character that cannot be sent") from error
        yield from filter(str.strip, text.splitlines())


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Names and values of `Name: value` texts; ValueError for another form."""
    headers = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        if not name or not value:
            raise ValueError("--header value format should be 'key=value'")
        if not (name + value).isprintable() or not (name + value).isascii() or " " in name:
            raise ValueError(f"--header {quoted(name)} has a character that cannot be sent")  # its value may be secret
        headers[name] = value
    return headers


class PostEndpoint:
    """The message is the body; any 2xx is success."""

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
    """The message stands in the path or query, where `address` has %s; only 200 is success."""

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


Endpoint = PostEndpoint | GetEndpoint
"""One address to send messages to."""


def _parse_url(address: str) -> HttpUrl:
    try:
        return HttpUrl.parse(address)
    except HttpUrlError as wrong:
        raise ValueError(f"{quoted(masked(address))}: {wrong}") from wrong


def _header_lines(url: HttpUrl, ours: Mapping[str, str], given: Mapping[str, str]) -> bytes:
    """All headers but the length of the body."""
    headers = {"Host": url.origin.host_header, "User-Agent": USER_AGENT, **ours}
    if url.authorization is not None:
        headers["Authorization"] = url.authorization
    replaced = {name.lower() for name in given}
    kept = {name: value for name, value in headers.items() if name.lower() not in replaced}
    return "".join(f"{name}: {value}\r\n" for name, value in (kept | dict(given)).items()).encode("ascii")


def main(argv: Sequence[str] | None = None) -> int:
    """Send messages until a signal stops it; the exit status."""
    return run_tool(SETTINGS, ToHttpOptions, run, argv, failures=(NsqError,))
