"""The webhook that is told of alerts: what is sent, and how it is tried again.

It is POSTed what has changed since the last message, all in one:

    {"version": 1, "via": "<our hostname>", "time": 1715931000.0, "firing_count": 3, "text": "FIRING …\\nRESOLVED …",
     "alerts": [{"rule": "Deep queue", "state": "firing", "severity": "warning", "topic": "orders",
                 "channel": "billing", "node": "", "value": 120000, "above": 100000, "since": 1715930400.0,
                 "until": null, "text": "120,000 messages wait"}]}

`state` is `firing` or `resolved`, which then has `until`. `text` is what chat programs show. A message that is not
taken is sent again, after a second, two, four and so on up to five minutes; what changes meanwhile goes with it, and of
an alert only its last state. One that the receiver refuses (400 to 499, but for 408 and 429) is dropped, because it
would refuse it again. No request and no look waits for any of this. The path and the query of the URL may be secret, so
the log names its host alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.http.client import HttpClient, HttpQueryError, UnexpectedStatusError
from emberq.http.message import encode_json

MAX_WAITING = 2_000
"""Changes that wait for a receiver that is slow; the oldest beyond are dropped."""
MAX_TOLD = 200
"""Changes in one message: some tens of kilobytes."""
MAX_LINES = 20
"""As many lines as a chat shows of one message."""
FIRST_REST_NS = 1 * NS_PER_SECOND
MAX_REST_NS = 300 * NS_PER_SECOND
STOP_SECONDS = 5.0
"""How long what waits may take when nsqadmin stops."""

_TRY_AGAIN = (408, 429)

_log = logging.getLogger(__name__)

AlertDocument = dict[str, Any]
"""An alert as it is told (see `alert`)."""
ToldKey = tuple[str, str, str, str]
"""What an alert is about: rule, topic, channel, node."""


class Webhook:
    """Sends what has changed. Owned by the daemon."""

    def __init__(self, http: HttpClient, url: Callable[[], str], *, clock: Clock, timers: Timers) -> None:
        """`url` says where to; empty: nowhere."""
        self._http = http
        self._url = url
        self._clock = clock
        self.on_told: Callable[[Iterable[ToldKey]], None] = lambda _keys: None
        """Hears of alerts whose last state the receiver has taken, or has refused for good."""
        self._waiting: dict[ToldKey, AlertDocument] = {}
        """The last state of each alert that has yet to be told, the oldest first."""
        self._firing_count = 0
        self._sender: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._is_rested = asyncio.Event()
        self._alarm = timers.alarm(self._is_rested.set)
        self._failure_count = 0
        """Messages that failed since the last one that was taken."""
        self.results: Counter[str] = Counter(taken=0, failed=0, refused=0, dropped=0)
        """Messages by what became of them; `dropped` counts changes."""

    @property
    def has_url(self) -> bool:
        return bool(self._url())

    @property
    def waiting_count(self) -> int:
        """Changes that have yet to be told."""
        return len(self._waiting)

    def is_waiting(self, key: ToldKey) -> bool:
        """Whether something about this alert is on its way."""
        return key in self._waiting

    def start(self) -> None:
        self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        """Send what waits, unless the receiver is not there; for at most STOP_SECONDS."""
        if self._sender is None:
            return
        if self._waiting and not self._failure_count:
            sending = asyncio.get_running_loop().create_task(self._until_told())
            await asyncio.wait([sending, self._sender], timeout=STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
        if self._waiting:
            _log.warning("%d alerts were not told; with --history-path they are at the next start", len(self._waiting))
        self._alarm.discard()
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    async def _until_told(self) -> None:
        while self._waiting and not self._failure_count:
            await asyncio.sleep(0.01)

    def tell(self, alerts: Iterable[AlertDocument], *, firing_count: int) -> None:
        """Send these soon; `firing_count` is how many are firing in all."""
        if not self.has_url:
            return
        self._firing_count = firing_count
        for alert in alerts:
            key = alert["rule"], alert["topic"], alert["channel"], alert["node"]
            self._waiting.pop(key, None)
            self._waiting[key] = alert
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.results["dropped"] += 1
        self._has_news.set()

    async def _send_all(self) -> None:
        while True:
            await self._has_news.wait()
            if not self._waiting:
                self._has_news.clear()
                continue
            told = dict(islice(self._waiting.items(), MAX_TOLD))
            now_ns = self._clock.wall_ns()
            message = encode_message(list(told.values()), firing_count=self._firing_count, time_ns=now_ns)
            if await self._is_taken(message):
                self._failure_count = 0
                done = [key for key, alert in told.items() if self._waiting.get(key) is alert]  # not changed meanwhile
                for key in done:
                    del self._waiting[key]
                self.on_told(done)
            else:
                self._failure_count += 1
                await self._rest(min(FIRST_REST_NS << min(self._failure_count - 1, 10), MAX_REST_NS))

    async def _is_taken(self, message: bytes) -> bool:
        """Whether the receiver is done with the message: it has taken it, or never will."""
        url = self._url()
        if not url:
            return True
        try:
            await self._http.post(url, message, content_type="application/json")
        except UnexpectedStatusError as answer:
            if 200 <= answer.status < 300:
                self.results["taken"] += 1
                return True
            is_refused = 400 <= answer.status < 500 and answer.status not in _TRY_AGAIN
            self.results["refused" if is_refused else "failed"] += 1
            _log.error("webhook at %s answered with status %d", host_of(url), answer.status)
            return is_refused
        except HttpQueryError as failure:
            self.results["failed"] += 1
            _log.error("webhook at %s failed: %s", host_of(url), failure)
            return False
        self.results["taken"] += 1
        return True

    async def _rest(self, duration_ns: int) -> None:
        self._is_rested.clear()
        self._alarm.set(self._clock.monotonic_ns() + duration_ns)
        await self._is_rested.wait()


def encode_message(alerts: Sequence[AlertDocument], *, firing_count: int, time_ns: int) -> bytes:
    """What the webhook is sent: documents of alerts, how many are firing in all, and when."""
    lines = [_line(alert) for alert in alerts[:MAX_LINES]]
    if len(alerts) > MAX_LINES:
        lines.append(f"and {len(alerts) - MAX_LINES} more")
    return encode_json(
        {
            "version": 1,
            "via": socket.gethostname(),
            "time": time_ns // NS_PER_MS / 1000,
            "firing_count": firing_count,
            "text": "\n".join(lines),
            "alerts": list(alerts),
        }
    )


def _line(alert: Mapping[str, Any]) -> str:
    subject = alert["node"] or f"{alert['topic']} / {alert['channel']}"
    text = f": {alert['text']}" if alert["state"] == "firing" else ""
    return f"{alert['state'].upper()} {alert['rule']}: {subject}{text}"


def host_of(url: str) -> str:
    """What may be told of a URL whose path or query is a secret."""
    return urlsplit(url).netloc.rpartition("@")[2]
