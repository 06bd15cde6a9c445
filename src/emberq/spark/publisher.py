"""Publishing to one nsqd over HTTP, several requests under way at a time.

A request that gets no answer is put again, with the same name, until `retryTimeout` has passed. Order between requests
is not kept then; names do not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from emberq.spark.error import NsqdUnavailable
from emberq.spark.http import HttpPeer, patiently
from emberq.spark.setting import Access

MAX_UNDER_WAY = 2
"""Requests sent and not yet confirmed: while nsqd stores what one brought, the next is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One request: to /mpub, or to /pub if it is deferred."""

    topic: str
    parts: Sequence[bytes | memoryview]
    """The body, in pieces."""
    length: int
    producer_id: str = ""
    """Under which name nsqd remembers it, 32 hexadecimal digits, with `sequence`; empty: it does not."""
    sequence: int = 0
    defer_ms: int = 0

    @property
    def path(self) -> str:
        return "/pub" if self.defer_ms else "/mpub"

    @property
    def query(self) -> dict[str, str | int]:
        if self.defer_ms:
            return {"topic": self.topic, "defer": self.defer_ms}
        return {"topic": self.topic, "binary": "true"}

    @property
    def headers(self) -> dict[str, str]:
        length = {"Content-Length": str(self.length)}  # else the parts would be sent as chunks
        if not self.producer_id:
            return length
        return length | {"X-Emberq-Producer": self.producer_id, "X-Emberq-Sequence": str(self.sequence)}


@dataclass(slots=True)
class _Line:
    """A connection, and what was sent on it and is not confirmed."""

    peer: HttpPeer
    under_way: Publish | None = None
    failure: NsqdUnavailable | None = field(default=None)
    """Why it could not be sent."""


class Publisher:
    """Owned by a task."""

    def __init__(self, nsqd: str, access: Access) -> None:
        self._retry_timeout_s = access.retry_timeout_s
        self._lines = deque(_Line(HttpPeer(nsqd, access)) for _ in range(MAX_UNDER_WAY))
        """The one that has waited longest for its answer first."""

    def publish(self, publish: Publish) -> None:
        """Send it. What was sent earlier may be waited for, and what is wrong with that is raised here."""
        line = self._lines[0]
        self._settle(line)
        self._lines.rotate(-1)
        line.under_way = publish
        try:
            _send(line.peer, publish)
        except NsqdUnavailable as failure:
            line.failure = failure  # put again when its turn comes

    def flush(self) -> None:
        """Returns when everything is confirmed."""
        for line in self._lines:
            self._settle(line)

    def close(self) -> None:
        for line in self._lines:
            line.peer.close()

    def _settle(self, line: _Line) -> None:
        publish, line.under_way = line.under_way, None
        if publish is None:
            return
        failure, line.failure = line.failure, None
        if failure is None:
            try:
                line.peer.receive()
            except NsqdUnavailable:
                pass
            else:
                return
        patiently(lambda: _confirmed(line.peer, publish), timeout_s=self._retry_timeout_s)


def _confirmed(peer: HttpPeer, publish: Publish) -> None:
    _send(peer, publish)
    peer.receive()


def _send(peer: HttpPeer, publish: Publish) -> None:
    peer.send("POST", publish.path, query=publish.query, body=publish.parts, headers=publish.headers)
