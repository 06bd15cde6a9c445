"""Finding the nsqds that have a topic, by asking nsqlookupd.

- An address is `host:port`, or a URL: without a scheme it is `http://`, without a path it is `/lookup`; a query string
  is kept and `topic=` appended. The port must be there.
- Each poll asks one nsqlookupd, the next one each time. When that fails the following is asked, up to MAX_QUERIES in
  all. A topic that the server does not know (404) is such a failure: another one may know it.
- An nsqd that is no longer listed is not disconnected: nsqlookupd may have been restarted and know nobody yet.
- The first poll is at once. The second comes after a random part of `jitter` × the interval on top of the interval, so
  that consumers that were started together do not keep asking together. The rest follow at the interval.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.http_query import HttpClient, HttpQueryError, UnexpectedStatus, public_url

MAX_QUERIES = 3
"""Per poll. More would make a poll with everything down take for ever; the next poll goes on where this one ended."""

_NOT_FOUND = 404

log = logging.getLogger(__name__)


def lookup_url(address: str, topic: str) -> str:
    """The URL to ask at `address` for the nsqds of `topic`; ValueError when the address has no port."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.port is None or not parts.hostname:
        raise ValueError(f"nsqlookupd address {address!r}: missing port or host")
    query = f"{parts.query}&" if parts.query else ""
    return urlunsplit(parts._replace(path=parts.path or "/lookup", query=f"{query}topic={quote(topic, safe='')}"))


def producer_addresses(document: Any) -> list[str]:
    """The nsqds in an answer of /lookup. nsqlookupds before 1.0 wrap it in `data`. What makes no sense is left out."""
    if isinstance(document, dict) and "producers" not in document and isinstance(document.get("data"), dict):
        document = document["data"]
    producers = document.get("producers") if isinstance(document, dict) else None
    if not isinstance(producers, list):
        raise HttpQueryError("the answer has no list of producers")
    addresses = (_address(producer) for producer in producers)
    return list(dict.fromkeys(address for address in addresses if address is not None))


def _address(producer: Any) -> str | None:
    if not isinstance(producer, dict):
        return None
    host, port = producer.get("broadcast_address"), producer.get("tcp_port")
    if not isinstance(host, str) or not host or type(port) is not int or not 0 < port <= MAX_PORT:
        return None
    return str(TcpAddress(host, port))


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
        self._urls: Sequence[str] = [lookup_url(address, topic) for address in addresses]
        if not self._urls:
            raise ValueError("no nsqlookupd to ask")
        self._client = client
        self._interval_s = interval_s
        self._first_delay_s = interval_s * (1 + jitter * random_fraction())
        self._headers = {"Authorization": f"Bearer {secret.decode('latin-1')}"} if secret else {}
        self._next = 0
        self._poll_count = 0

    @property
    def delay_s(self) -> float:
        """How long after the last poll the next one is due."""
        return self._first_delay_s if self._poll_count == 1 else self._interval_s

    async def poll(self) -> list[str]:
        """The nsqds that have the topic, as far as can be found out now."""
        self._poll_count += 1
        for _ in range(min(MAX_QUERIES, len(self._urls))):
            url = self._urls[self._next]
            self._next = (self._next + 1) % len(self._urls)
            try:
                return producer_addresses(await self._client.get_json(url, headers=self._headers))
            except UnexpectedStatus as answer:
                level = logging.DEBUG if answer.status == _NOT_FOUND else logging.WARNING
                log.log(level, "nsqlookupd %s: %s", public_url(url), answer)
            except HttpQueryError as failure:
                log.warning("nsqlookupd %s: %s", public_url(url), failure)
        return []
