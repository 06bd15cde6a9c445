"""nsq_to_http: consumes a topic and sends every message to a web server.

With `--post` a message is the body of a request, with `--get` a part of its URL; see `to_http_endpoint`. Of several
addresses `--mode` chooses one (see `host_pool`), or all: any other word than the three modes sends each message to
every address. A message is finished when the server said so, and requeued otherwise; the consumer then backs off.

`--n` workers each take a message, send it, and wait for the answer.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_numbers
from collections.abc import Callable
from dataclasses import dataclass

from emberq.base.clock import Clock, SystemClock
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable
from emberq.client.consumer import Consumer
from emberq.client.message import Message
from emberq.tools.float_kind import FLOAT
from emberq.tools.host_pool import make_pool
from emberq.tools.source import SourceOptions, check_addresses, consume, make_consumer
from emberq.tools.timing import StatusReport
from emberq.tools.to_http_client import HttpClient, SendError
from emberq.tools.to_http_endpoint import Endpoint, GetEndpoint, PostEndpoint, parse_headers

TOOL = "nsq_to_http"
DEFAULT_CONTENT_TYPE = "application/octet-stream"
MODES_OF_ONE = ("round-robin", "hostpool", "epsilon-greedy")
"""Modes in which a message goes to one address. Any other word sends it to all."""

logger = logging.getLogger(__name__)

_SENDING = Group("Sending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SourceOptions):
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

    def validated(self) -> Options:
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


SETTINGS = SettingTable(TOOL, options_class=Options, command=(VERSION,))


def endpoints_of(options: Options) -> list[Endpoint]:
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


async def run(options: Options, stop_asked: asyncio.Event) -> None:
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

    def __init__(self, options: Options, *, clock: Clock, random: Callable[[], float] = random_numbers.random) -> None:
        self._options = options
        self._endpoints = {endpoint.address: endpoint for endpoint in endpoints_of(options)}
        addresses = list(self._endpoints)
        self._pool = make_pool(options.mode, addresses, clock=clock, random=random)
        self._sends_to_all = options.mode not in MODES_OF_ONE
        self._status = StatusReport(addresses, every=options.status_every)
        self._client = HttpClient(
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
