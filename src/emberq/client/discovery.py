"""Finding the nsqds that have a topic, by asking nsqlookupd.

- What an address may be is told in `address`.
- Each poll asks one nsqlookupd, the next one each time. When that fails the following is asked, up to MAX_QUERIES in
  all. A topic that the server does not know (404) is such a failure: another one may know it.
- An nsqd that is no longer listed is not disconnected: nsqlookupd may have been restarted and know nobody yet.
- A topic that no nsqd has yet is told in the log, once and then at long intervals; so is a server that does not answer
  as an nsqlookupd does.
- The first poll is at once. The second comes after a random part of `jitter` × the interval on top of the interval, so
  that consumers that were started together do not keep asking together. The rest follow at the interval.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.http_answer import NOT_HTTP
from emberq.base.http_query import HttpClient, HttpQueryError, UnexpectedStatus, public_url
from emberq.client.address import lookup_url as lookup_url
from emberq.client.reminder import RECONNECT_INTERVAL_S, WAITING_INTERVAL_S, Reminder

MAX_QUERIES = 3
"""Per poll. More would make a poll with everything down take for ever; the next poll goes on where this one ended."""

_NOT_FOUND = 404
_UNKNOWN_TOPIC = b"TOPIC_NOT_FOUND"
_HINT = "; give the address at which nsqlookupd speaks HTTP, which usually has port 4161"

log = logging.getLogger(__name__)


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
        self._urls: Sequence[str] = list(dict.fromkeys(lookup_url(address, topic) for address in addresses))
        self._topic = topic
        if not self._urls:
            raise ValueError("no nsqlookupd to ask")
        self._client = client
        self._interval_s = interval_s
        self._first_delay_s = interval_s * (1 + jitter * random_fraction())
        self._headers = {"Authorization": f"Bearer {secret.decode('latin-1')}"} if secret else {}
        self._next = 0
        self._poll_count = 0
        self._waiting = Reminder(WAITING_INTERVAL_S)
        """For the topic."""
        self._failing = Reminder(RECONNECT_INTERVAL_S)
        """For the servers, by their URLs."""

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
        status = failure.status if isinstance(failure, UnexpectedStatus) else 0
        if isinstance(failure, UnexpectedStatus) and status == _NOT_FOUND and _UNKNOWN_TOPIC in failure.body:
            self._failing.forget(url)
            log.debug("nsqlookupd %s: %s", public_url(url), failure)
            return True
        if self._failing.is_due(url):
            hint = _HINT if status == _NOT_FOUND or str(failure) == NOT_HTTP else ""
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
