"""Many connections that only wait: each has had its IDENTIFY answered, and answers its heartbeats.

The crowd lives in the main process: its work is nothing but being there.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from types import TracebackType

from bench.connection import Address, connect, received

_PER_SOURCE_ADDRESS = 5_000  # well below the number of ports that one source address has for one server
_SPARE_FILES = 100  # what a process has open besides
_RECEIVE_BYTES = 4096


def allow_open_files(wanted: int) -> int:
    """Raise this process's limit of open files, which nsqd inherits; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted + _SPARE_FILES if hard == resource.RLIM_INFINITY else min(wanted + _SPARE_FILES, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(wanted, max(limit, soft) - _SPARE_FILES)


class Crowd:
    """Owns its connections and closes them all."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connections: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.close()

    def gather(self, count: int) -> None:
        for index in range(count):
            connection = connect(self._address, source=self._source(index))
            self._connections.append(connection)
            self._selector.register(connection, selectors.EVENT_READ)

    def _source(self, index: int) -> Address | None:
        """Loopback has 2**24 addresses: each takes a part of the crowd. Elsewhere we have only our own."""
        host, _ = self._address
        if not host.startswith("127."):
            return None
        return f"127.0.1.{1 + index // _PER_SOURCE_ADDRESS}", 0

    def linger(self, seconds: float) -> None:
        """Stay for so long, and answer what comes (heartbeats) as a client would."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                received(connection.recv(_RECEIVE_BYTES))
                connection.sendall(b"NOP\n")
