"""What is asked of nsqadmin while it gathers, and how long it takes.

    gathering   one browser follows the topics; CPU time of nsqadmin by the number of looks it took
    answers     the page and what it asks for, again and again, at times that have nothing to do with the gathering
    stalls      meanwhile somebody asks for /ping all the time: the longest that took is the longest that anybody had to
                wait for the event loop

`first event` is what a page shows first: the figures that are at hand when the browser opens its stream.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from bench.admin.nsqadmin import Nsqadmin
from bench.failure import LoadFailure
from bench.metric import percentile
from bench.process import cpu_s, rss_bytes

ASK_COUNT = 50
ASK_EVERY_S = 0.11
PING_EVERY_S = 0.003
GATHERING_COUNT = 5
PATIENCE_S = 60.0

TOPICS = "/api/live?view=topics"
CHANNEL = "/api/live?view=channel&topic=topic-0000&channel=worker"
ANSWERS = ("/topics", "/api/topics", "/api/history?topics=all")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the result."""

    name: str
    text: str


def measure(admin: Nsqadmin) -> Iterator[Figure]:
    """All figures, one after the other."""
    with Stream(admin.address, TOPICS) as stream:
        for _ in range(2):  # the first two looks: from the second on there are rates
            first = stream.next_document()
        yield Figure("topics shown", f"{len(first['topics']):,} on {first['node_count']} nodes")
        yield _gathering(admin, stream)
        with stream.drained(), Pinger(admin.address) as pinger:
            for path in ANSWERS:
                yield answers(f"GET {path}", [timed_get(admin.address, path) for _ in _paced(ASK_COUNT)])
            yield answers("first event of the topics", [_first_event_s(admin, TOPICS) for _ in _paced(ASK_COUNT)])
        yield stalls("longest wait for /ping", pinger)
    with Pinger(admin.address) as pinger:
        yield answers("first event of a channel with 48,000 connections", [_first_event_s(admin, CHANNEL)])
    yield stalls("longest wait for /ping meanwhile", pinger)
    yield Figure("memory", f"{rss_bytes(admin.pid) / 1e6:.0f} MB resident")


def _gathering(admin: Nsqadmin, stream: Stream) -> Figure:
    began_s = cpu_s(admin.pid)
    for _ in range(GATHERING_COUNT):
        stream.next_document()
    return Figure("CPU time of a look", f"{(cpu_s(admin.pid) - began_s) / GATHERING_COUNT * 1000:.0f} ms")


def answers(name: str, seconds: list[float]) -> Figure:
    if len(seconds) == 1:
        return Figure(name, f"{seconds[0] * 1000:.0f} ms")
    median, p99 = percentile(seconds, 50) * 1000, percentile(seconds, 99) * 1000
    return Figure(name, f"median {median:.1f} ms, p99 {p99:.1f} ms of {len(seconds)}")


def stalls(name: str, pinger: Pinger) -> Figure:
    median, p99 = percentile(pinger.waits_s, 50) * 1000, percentile(pinger.waits_s, 99) * 1000
    longest = max(pinger.waits_s) * 1000
    return Figure(name, f"{longest:.0f} ms (median {median:.1f} ms, p99 {p99:.1f} ms of {len(pinger.waits_s):,})")


def _paced(count: int) -> Iterator[int]:
    for number in range(count):
        time.sleep(ASK_EVERY_S)
        yield number


def timed_get(address: Address, path: str, *, at_least_bytes: int = 0) -> float:
    began = time.perf_counter()
    connection = HTTPConnection(*address, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200 or len(body) < at_least_bytes:
        raise LoadFailure(f"nsqadmin answered {answer.status} with {len(body)} bytes to {path}")
    return time.perf_counter() - began


def _first_event_s(admin: Nsqadmin, path: str) -> float:
    began = time.perf_counter()
    with Stream(admin.address, path) as stream:
        stream.next_event()
    return time.perf_counter() - began


class Stream:
    """A browser that follows a view; a context manager."""

    def __init__(self, address: Address, path: str) -> None:
        self._connection = socket.create_connection(address, PATIENCE_S)
        self._connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._received = bytearray()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._connection.close()

    def next_event(self) -> bytes:
        """The data of the next event that has any."""
        while True:
            end = self._received.find(b"\n\n")
            if end < 0:
                self._receive()
                continue
            event = bytes(self._received[:end])
            del self._received[: end + 2]
            if b"event: problem" in event:
                raise LoadFailure(f"nsqadmin has a problem: {event.decode(errors='replace')}")
            if b"\ndata: " in event:
                return event.partition(b"\ndata: ")[2]

    def next_document(self) -> Any:
        return json.loads(self.next_event())

    def _receive(self) -> None:
        data = self._connection.recv(1 << 20)
        if not data:
            raise LoadFailure("nsqadmin ended the stream")
        self._received += data

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Takes whatever comes, and throws it away."""
        self._connection.settimeout(0.1)
        has_ended = threading.Event()

        def drain() -> None:
            while not has_ended.is_set():
                try:
                    self._connection.recv(1 << 20)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=drain)
        thread.start()
        yield
        has_ended.set()
        thread.join()


class Pinger:
    """Asks for /ping all the time, in a thread of its own; a context manager."""

    def __init__(self, address: Address) -> None:
        self.waits_s: list[float] = []
        self._connection = HTTPConnection(*address, timeout=PATIENCE_S)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._ping)

    def __enter__(self) -> Pinger:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._has_ended.set()
        self._thread.join()
        self._connection.close()

    def _ping(self) -> None:
        while not self._has_ended.wait(PING_EVERY_S):
            began = time.perf_counter()
            self._connection.request("GET", "/ping")
            self._connection.getresponse().read()
            self.waits_s.append(time.perf_counter() - began)
