"""What tests of nsqadmin share: nsqadmin on an event loop of its own, asked through real sockets."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberq.admin.access.user import PasswordHash
from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import AdminOptions
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.embedded import EmbeddedThread
from tests.support.http_client import Answer, HttpClient
from tests.support.server_thread import DaemonThread
from tests.support.waiting import PATIENCE_S

PATIENT: dict[str, Any] = {
    "http_client_connect_timeout_ns": 60 * NS_PER_SECOND,
    "http_client_request_timeout_ns": 60 * NS_PER_SECOND,
}
"""For an nsqadmin that asks daemons in its own interpreter, which answer late on a busy machine."""


class AdminThread(DaemonThread[Nsqadmin]):
    """A running nsqadmin. Its time is that of the machine, unless it is given a clock."""

    def __init__(self, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__("nsqadmin", clock=clock)
        defaults: dict[str, Any] = {"http_address": "127.0.0.1:0", "history_duration_ns": 0}
        self._options = defaults | options

    def _make(self) -> Nsqadmin:
        return Nsqadmin(AdminOptions(**self._options), clock=self._clock)

    # What anybody may ask.

    @property
    def address(self) -> tuple[str, int]:
        return self.daemon.http_address

    def request(self, method: str, target: str, body: Any = None, **headers: str) -> Answer:
        """A body that is not bytes is sent as JSON; `_` in the names of headers stands for `-`."""
        encoded = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return HttpClient(self.address).request(method, target, encoded, headers=sent)

    def get(self, target: str, **headers: str) -> Answer:
        return self.request("GET", target, **headers)

    def post(self, target: str, body: Any = b"", **headers: str) -> Answer:
        return self.request("POST", target, body, **headers)

    def delete(self, target: str, body: Any = None, **headers: str) -> Answer:
        return self.request("DELETE", target, body, **headers)

    def put(self, target: str, body: Any = b"", **headers: str) -> Answer:
        return self.request("PUT", target, body, **headers)

    @contextlib.contextmanager
    def events(self, query: str, **headers: str) -> Iterator[EventReader]:
        """The stream of a live view."""
        with socket.create_connection(self.address, PATIENCE_S) as connection:
            lines = [f"GET /api/live?{query} HTTP/1.1", "Host: localhost"]
            lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            yield EventReader(connection)


class EventReader:
    """Reads server-sent events off a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self.head = self._until(b"\r\n\r\n").decode()

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            data = self._connection.recv(65536)
            if not data:
                raise EOFError("the stream has ended")
            self._received += data
        part, _, self._received = self._received.partition(mark)
        return part

    def next(self) -> tuple[str, Any]:
        """Name and document of the next event."""
        while True:
            fields = dict(line.split(": ", 1) for line in self._until(b"\n\n").decode().split("\n"))
            if "event" in fields:
                return fields["event"], json.loads(fields["data"])

    def expect_end(self) -> None:
        """No more events, and the connection is closed."""
        while self._connection.recv(65536):
            pass


def of_cluster(nsq: EmbeddedThread, **options: Any) -> AdminThread:
    """An nsqadmin that asks the cluster's nsqlookupd."""
    return AdminThread(lookupd_http_address=tuple(nsq.lookupd_http_addresses), **options)


def of_nsqds(nsq: EmbeddedThread, **options: Any) -> AdminThread:
    """An nsqadmin that asks the cluster's nsqds."""
    return AdminThread(nsqd_http_address=tuple(nsq.nsqd_http_addresses), **options)


def user_file(folder: Path, users: Mapping[str, tuple[str, str]]) -> Path:
    """A file of users: name to role and password, hashed at next to no cost."""
    lines = [f"{name}:{role}:{cheap_hash(password)}" for name, (role, password) in users.items()]
    path = folder / "users"
    path.write_text("\n".join(lines) + "\n")
    return path


def cheap_hash(password: str) -> PasswordHash:
    blank = PasswordHash(cost_log2=2, block_size=1, parallelism=1, salt=b"salt", key=bytes(32))
    return PasswordHash(cost_log2=2, block_size=1, parallelism=1, salt=b"salt", key=blank.derive(password))


def basic(name: str, password: str) -> str:
    """An `Authorization` header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
