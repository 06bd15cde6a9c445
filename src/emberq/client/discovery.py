"""Finding the nsqds of a consumer, and staying connected to them.

**Wanted** are the addresses that were given, and those that nsqlookupd named when asked last (`Discovery`). An nsqd
that is no longer listed is not disconnected: nsqlookupd may have been restarted and know no nsqd yet. But once its
connection is lost it is not connected to again.

**Asking nsqlookupd.** Each poll asks one server, the next one each time. When that fails the following is asked, up to
MAX_QUERIES in all. A topic that the server does not know (404) is such a failure: another server may know it. The first
poll is at once. The second comes after the interval and a random part of `jitter` × the interval, so that consumers
that were started together do not keep asking together. The rest follow at the interval. A topic that no nsqd has yet is
told in the log, once and then at long intervals; so is a server that does not answer as an nsqlookupd does.

**The secret** that an nsqlookupd is shown, as a bearer token, is `lookupd_secret`. Without one it is `auth_secret`, the
secret for nsqds, as by other clients of NSQ; `authorize_lookupd=False` keeps that from nsqlookupds.

**Connecting again** (`Connector`). When a connection is lost or cannot be made, everything that is missing is tried
again after a pause. The pause begins with a fraction of a second and doubles while there is trouble; when there was
none for as long as the longest pause, the next one is short again. All of them are random parts of their length, so
that the consumers of an nsqd that was restarted do not come back all at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.task import RECONNECT_INTERVAL_S, WAITING_INTERVAL_S, Reminder
from emberq.client.address import lookup_url
from emberq.client.config import ClientConfig, ConsumerConfig, ReconnectDelay
from emberq.client.error import NsqError, cause_of
from emberq.http.client import NOT_HTTP, HttpClient, HttpQueryError, UnexpectedStatusError, bearer, public_url

MAX_QUERIES = 3
"""Per poll. With more, a poll would take very long when all servers are down; the next goes on where this one ended."""

MAX_NSQDS = 1000
"""That a consumer connects to because an nsqlookupd named them: more than any cluster has, and few enough for sockets
and memory when a hostile one names any number."""
MAX_LOOKUP_BYTES = 4 * 1024 * 1024
"""An answer of /lookup. A thousand nsqds and ten thousand channels take one; as Python's objects it may be 20 times as
large."""
MAX_HOST_CHARACTERS = 255
"""As many as a name in the DNS may have."""

_NOT_FOUND = 404
_UNAUTHORIZED = 401
_UNKNOWN_TOPIC = b"TOPIC_NOT_FOUND"
_HINT = "; give the address at which nsqlookupd speaks HTTP, which usually has port 4161"
_ACCESS_HINT = "; it wants a secret that it knows: lookupd_secret, or --lookupd-secret-file of the tools"

log = logging.getLogger(__name__)


def secret_for_lookupd(config: ConsumerConfig, client_config: ClientConfig) -> bytes:
    """What an nsqlookupd is shown; empty: nothing."""
    return config.lookupd_secret or (client_config.auth_secret if config.authorize_lookupd else b"")


def producer_addresses(document: Any) -> list[str]:
    """The nsqds in an answer of /lookup, MAX_NSQDS at most. nsqlookupds before 1.0 wrap it in `data`.

    What makes no sense is left out.
    """
    if isinstance(document, dict) and "producers" not in document and isinstance(document.get("data"), dict):
        document = document["data"]
    producers = document.get("producers") if isinstance(document, dict) else None
    if not isinstance(producers, list):
        raise HttpQueryError("the answer has no list of producers")
    addresses = (_address(producer) for producer in producers)
    return list(dict.fromkeys(address for address in addresses if address is not None))[:MAX_NSQDS]


def _address(producer: Any) -> str | None:
    if not isinstance(producer, dict):
        return None
    host, port = producer.get("broadcast_address"), producer.get("tcp_port")
    if not isinstance(host, str) or not _is_host(host) or type(port) is not int or not 0 < port <= MAX_PORT:
        return None
    return str(TcpAddress(host, port))


def _is_host(text: str) -> bool:
    """Whether it may be a host: what is shown in a log line must not have line feeds or escapes in it."""
    return 0 < len(text) <= MAX_HOST_CHARACTERS and text.isprintable() and " " not in text


class Discovery:
    """Asks the nsqlookupds of one consumer about its topic."""

    def __init__(
        self,
        addresses: Iterable[str],
        topic: str,
        *,
        client: HttpClient,
        interval_s: float = 60.0,
        jitter: float = 0.3,
        secret: bytes = b"",
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._urls: Sequence[str] = list(dict.fromkeys(lookup_url(address, topic) for address in addresses))
        self._topic = topic
        if not self._urls:
            raise ValueError("no nsqlookupd to ask")
        self._client = client
        self._interval_s = interval_s
        self._first_delay_s = interval_s * (1 + jitter * random_fraction())
        self._headers = bearer(secret)
        self._next = 0
        self._poll_count = 0
        self._waiting = Reminder(WAITING_INTERVAL_S)
        """About the topic that no nsqd has."""
        self._failing = Reminder(RECONNECT_INTERVAL_S)
        """About servers that fail, by their URLs."""

    @property
    def delay_s(self) -> float:
        """How long after the last poll the next one is due."""
        return self._first_delay_s if self._poll_count == 1 else self._interval_s

    async def poll(self) -> list[str]:
        """The nsqds that have the topic, as far as can be found out now."""
        self._poll_count += 1
        is_answered = False
        for _ in range(min(MAX_QUERIES, len(self._urls))):
            url = self._urls[self._next]
            self._next = (self._next + 1) % len(self._urls)
            try:
                found = producer_addresses(await self._client.get_json(url, headers=self._headers))
            except HttpQueryError as failure:
                is_answered |= self._is_answer(url, failure)
            else:
                self._failing.forget(url)
                self._tell(found)
                return found
        if is_answered:
            self._tell([])
        return []

    def _is_answer(self, url: str, failure: HttpQueryError) -> bool:
        """Whether the server said at least that it does not know the topic; if not, the log tells what it said."""
        status = failure.status if isinstance(failure, UnexpectedStatusError) else 0
        if isinstance(failure, UnexpectedStatusError) and status == _NOT_FOUND and _UNKNOWN_TOPIC in failure.body:
            self._failing.forget(url)
            log.debug("nsqlookupd %s: %s", public_url(url), failure)
            return True
        if self._failing.is_due(url):
            hint = _HINT if status == _NOT_FOUND or str(failure) == NOT_HTTP else ""
            hint = _ACCESS_HINT if status == _UNAUTHORIZED else hint
            log.warning("nsqlookupd %s: %s%s", public_url(url), failure, hint)
        return False

    def _tell(self, found: Sequence[str]) -> None:
        """Log that there is no nsqd to consume from, if that is so, or that there is one at last."""
        if found:
            if self._waiting.forget(self._topic):
                log.info("topic %s was found, at nsqd %s", self._topic, ", ".join(found))
        elif self._waiting.is_due(self._topic):
            asked = ", ".join(map(public_url, self._urls))
            log.warning(
                "no nsqd has topic %s yet, as far as nsqlookupd knows (%s); it is asked again every %g s",
                self._topic,
                asked,
                self._interval_s,
            )


FIRST_PAUSE_S = 0.1


# Staying connected


class Connector:
    """Decides when to connect where. Its consumer says how, and tells it what was lost.

    `source` is what the log calls the consumer.
    """

    def __init__(
        self,
        connect: Callable[[str], Awaitable[None]],
        *,
        direct_addresses: Iterable[str],
        discovery: Discovery | None,
        max_delay_s: float,
        source: str = "",
    ) -> None:
        self._connect = connect
        self._behind_address = f", {source}" if source else ""
        self._direct = frozenset(direct_addresses)
        self._discovery = discovery
        if not self._direct and discovery is None:
            raise ValueError("neither nsqd nor nsqlookupd addresses were given")
        self._max_delay_s = max_delay_s
        self._delay = ReconnectDelay(first_s=min(FIRST_PAUSE_S, max_delay_s), max_s=max_delay_s)
        self._connected: set[str] = set()
        self._has_lost = asyncio.Event()
        self.is_complete = False
        """Whether the last round left nothing to be tried again."""
        self._unreachable = Reminder(RECONNECT_INTERVAL_S)
        self._failures = 0
        """Rounds with trouble in a row."""
        self._pause_s: float | None = None
        """How long to wait before the next round; None while there is no trouble."""
        self._quiet_since_s = 0.0
        """When the last round ended."""

    async def connect_all(self) -> None:
        """Connect to what is wanted and missing, as far as it can be reached now."""
        self._has_lost.clear()
        found = await self._discovery.poll() if self._discovery is not None else []
        missing = sorted((self._direct | set(found)) - self._connected)
        self._unreachable.keep(missing)
        self.is_complete = all(await asyncio.gather(*map(self._try, missing)))
        self._quiet_since_s = asyncio.get_running_loop().time()

    def lost(self, address: str) -> float:
        """A connection has ended; in how many seconds it is tried again."""
        self._connected.discard(address)
        self._has_lost.set()
        if self._pause_s is None and asyncio.get_running_loop().time() - self._quiet_since_s > self._max_delay_s:
            self._failures = 0
        return self._pause()

    def _pause(self) -> float:
        """How long to wait before the next round, decided at the first trouble."""
        if self._pause_s is None:
            self._failures += 1
            self._pause_s = self._delay.after(self._failures, random=random.random)
        return self._pause_s

    async def run(self) -> None:
        """Go on for ever, after a first `connect_all`."""
        while True:
            if self.is_complete and not await self._trouble():
                self._failures = 0
            else:
                await asyncio.sleep(self._pause())
            self._pause_s = None
            try:
                await self.connect_all()
            except Exception:
                # No fault of ours, or of the system, may end what keeps a consumer connected.
                self.is_complete = False
                log.exception("cannot connect; trying again")

    async def _trouble(self) -> bool:
        """Wait until a connection is lost, or until the next poll is due (False)."""
        try:
            async with asyncio.timeout(None if self._discovery is None else self._discovery.delay_s):
                await self._has_lost.wait()
        except TimeoutError:
            return False
        return True

    async def _try(self, address: str) -> bool:
        self._connected.add(address)  # at once: it may be lost again before `connect` returns
        try:
            await self._connect(address)
        except NsqError as failure:
            self._connected.discard(address)
            pause_s = self._pause()
            if self._unreachable.is_due(address):
                log.warning(
                    "cannot consume from nsqd %s%s: %s; trying again in %.1f s, attempt %d",
                    address,
                    self._behind_address,
                    cause_of(failure),
                    pause_s,
                    self._failures + 1,
                )
            return False
        except BaseException:
            self._connected.discard(address)
            raise
        self._unreachable.forget(address)
        return True
