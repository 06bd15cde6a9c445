"""Messages for nsqd, published over HTTP: all at once, or so many in a second."""

from __future__ import annotations

import http.client
import struct
import time
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event

from bench.connection import Address
from bench.failure import LoadFailure

BODY_BYTES = 200
MESSAGES_PER_REQUEST = 1000
TICK_S = 0.005
"""Between two requests of a steady flow."""
REQUEST_TIMEOUT_S = 60.0
END_TIMEOUT_S = 10.0


def publish(http_address: Address, topic: str, count: int) -> None:
    """Publish `count` messages, as fast as nsqd takes them."""
    connection = _connected(http_address)
    for first in range(0, count, MESSAGES_PER_REQUEST):
        _post(connection, topic, first=first, count=min(MESSAGES_PER_REQUEST, count - first))
    connection.close()


class SteadyFlow:
    """Publishes `per_second` messages a second, from a process of its own, within a `with`."""

    def __init__(self, http_address: Address, topic: str, *, per_second: int) -> None:
        spawning = get_context("spawn")  # a fork would share what Spark has open in this process
        self._stopping = spawning.Event()
        self._process: SpawnProcess = spawning.Process(
            target=_flow, args=(http_address, topic, per_second, self._stopping), daemon=True
        )

    def __enter__(self) -> None:
        self._process.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._process.join(END_TIMEOUT_S)
        if self._process.exitcode is None:
            self._process.kill()


def _flow(http_address: Address, topic: str, per_second: int, stopping: Event) -> None:
    connection = _connected(http_address)
    begun_s, sent = time.monotonic(), 0
    while not stopping.wait(TICK_S):
        due = int((time.monotonic() - begun_s) * per_second) - sent
        if due > 0:
            _post(connection, topic, first=sent, count=due)
            sent += due


def _connected(http_address: Address) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*http_address, timeout=REQUEST_TIMEOUT_S)


def _post(connection: http.client.HTTPConnection, topic: str, *, first: int, count: int) -> None:
    connection.request("POST", f"/mpub?topic={topic}&binary=true", body=_mpub(first=first, count=count))
    response = connection.getresponse()
    answer = response.read()
    if response.status != http.client.OK:
        raise LoadFailure(f"nsqd answered {response.status} {answer[:200]!r}")


def _mpub(*, first: int, count: int) -> bytes:
    size = struct.pack(">i", BODY_BYTES)
    bodies = b"".join([size + b"%0*d" % (BODY_BYTES, number) for number in range(first, first + count)])
    return struct.pack(">i", count) + bodies
