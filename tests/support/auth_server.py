"""An authorization server for tests: it answers what the test tells it to, and shows what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.threaded_http import Received, Reply, ThreadedHttp

BOTH = ("subscribe", "publish")


def entry(
    topic: str = ".*", channels: Sequence[str] = (".*",), permissions: Sequence[str] = BOTH
) -> dict[str, list[str] | str]:
    """An element of `authorizations`."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def grant(*entries: dict[str, Any], ttl: int = 3600, **fields: Any) -> dict[str, Any]:
    """An answer that allows what the entries say."""
    return {"ttl": ttl, "authorizations": list(entries), **fields}


class Question(Received):
    """A request for the permissions of a client."""

    @property
    def params(self) -> dict[str, list[str]]:
        """What it asks, whichever way."""
        if self.method == "POST":
            document: dict[str, list[str]] = json.loads(self.body)
            return document
        return parse_qs(urlsplit(self.target).query, keep_blank_values=True)


class AuthServer(ThreadedHttp):
    """`answer` may be exchanged at any time: a JSON document, or bytes to be sent as they are.

    While `gate` is cleared every question waits.
    """

    def __init__(self, answer: Any, *, status: int = 200, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._reply, tls=tls)
        self.answer = answer
        self.status = status
        self.gate = threading.Event()
        self.gate.set()
        self._scheme = "http" if tls is None else "https"

    @property
    def questions(self) -> list[Question]:
        return [Question(*each) for each in self.received]

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}/auth"

    def __exit__(self, *raised: object) -> None:
        self.gate.set()
        super().__exit__(*raised)

    def _reply(self, _request: Received) -> Reply:
        self.gate.wait()
        return Reply(self.answer, status=self.status)
