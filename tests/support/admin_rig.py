"""What tests of nsqadmin share: nsqadmin on an event loop of its own, asked through real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from emberq.admin.access.user import PasswordHash
from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import AdminOptions
from emberq.base.clock import Clock
from emberq.embedded import EmbeddedThread
from tests.support.http_client import Answer, HttpClient
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")


class AdminThread:
    """A running nsqadmin; a context manager. Owns the daemon, its loop and its thread."""

    def __init__(self, *, clock: Clock | None = None, **options: Any) -> None:
        defaults: dict[str, Any] = {"http_address": "127.0.0.1:0", "history_duration_ns": 0}
        self._options = defaults | options
        self._clock = clock
        self._unhandled: list[str] = []  # what nsqadmin let escape into the event loop
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._unhandled.append(str(context)))
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsqadmin", daemon=True)
        self.daemon: Nsqadmin

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.daemon = self._await(self._start())
        except BaseException:
            self._end_thread()
            raise
        return self

    async def _start(self) -> Nsqadmin:
        daemon = Nsqadmin(AdminOptions(**self._options), clock=self._clock)
        await daemon.start()
        return daemon

    def __exit__(self, *_raised: object) -> None:
        try:
            self._await(self.daemon.stop())
        finally:
            self._end_thread()
        assert not self._unhandled, self._unhandled

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on nsqadmin's thread and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

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
