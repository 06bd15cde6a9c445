"""An HTTP client for tests that shares no code with emberq: the standard library's, over TCP or a unix socket.

Every request has a connection of its own, so a test has nothing to close.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, NamedTuple

from tests.support.raw_connection import Address
from tests.support.waiting import PATIENCE_S


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and message of an answer that must be an error as NSQ words it, to the byte."""
        message: str = self.json()["message"]
        assert self.body == json.dumps({"message": message}, separators=(",", ":")).encode()
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        assert self.headers["x-nsq-content-type"] == "nsq; version=1.0"
        return self.status, message


class HttpClient:
    """Requests to one server."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def request(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and await its answer. A body in pieces is sent chunked."""
        with closing(self._connection()) as connection:
            connection.request(method, target, body=body, headers=dict(headers or {}))
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())

    def get(self, target: str) -> Answer:
        return self.request("GET", target)

    def post(self, target: str, body: bytes | Iterable[bytes] = b"") -> Answer:
        return self.request("POST", target, body)

    def put(self, target: str, body: bytes = b"") -> Answer:
        return self.request("PUT", target, body)

    def _connection(self) -> HTTPConnection:
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        connection = HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(family, socket.SOCK_STREAM)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(self._address)
        return connection
