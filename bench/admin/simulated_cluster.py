"""A cluster that is only acted: an nsqlookupd and many nsqds that answer what nsqadmin asks.

    topic-0000 … topic-0999, each on some or on all of 80 nodes, with the channels `worker` and `archive`
    topic-0000 is on all nodes; 600 consumers are connected to its channel `worker`, each to every node

Answers are made ready once, so that the cluster takes little of the machine from the nsqadmin that is measured. Only
message counts are put in as they are sent: they grow with time, so that there are rates to show. A count is written
`@`, `@0` or `@00` in what is ready, which makes three kinds of topics: slow, quick, and very quick.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

import uvloop

CHANNELS = ("worker", "archive")
COUNT_MARK = '"@'
COUNTS_PER_SECOND = 10

Answer = Callable[[str, dict[str, str]], bytes]
"""The body for a path and its query."""
Start = Callable[[], Coroutine[Any, Any, list[int]]]
"""Starts daemons, and gives their ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the cluster is."""

    topics: int = 1_000
    nodes: int = 80
    nodes_per_topic: int = 80
    consumers: int = 600
    """Of the first topic, each connected to every node."""

    def nodes_of(self, topic: int) -> list[int]:
        if topic == 0:
            return list(range(self.nodes))
        step = self.nodes // self.nodes_per_topic
        return [(topic + number * step) % self.nodes for number in range(self.nodes_per_topic)]

    def topics_on(self, node: int) -> tuple[int, ...]:
        return tuple(topic for topic in range(self.topics) if node in self.nodes_of(topic))


def topic_name(number: int) -> str:
    return f"topic-{number:04}"


class SimulatedCluster:
    """All nsqds in one process, and the nsqlookupd in another, so that it need not wait for them; a context manager."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._running = ExitStack()
        self.lookupd_address = ""  # known once it listens
        self.nodes: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            ports = starting.enter_context(_Acted(partial(_start_nsqds, self.size)))
            (port,) = starting.enter_context(_Acted(partial(_start_lookupd, self.size, ports)))
            self.lookupd_address = f"127.0.0.1:{port}"
            self.nodes = [f"127.0.0.1:{each}" for each in ports]
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()


class _Acted:
    """Daemons in a process of their own; a context manager that gives their ports."""

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(start, theirs), daemon=True)

    def __enter__(self) -> list[int]:
        self._process.start()
        ports: list[int] = self._ours.recv()
        return ports

    def __exit__(self, *_raised: object) -> None:
        self._ours.send(None)  # which ends it
        self._process.join()


def _run(start: Start, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    uvloop.run(_serve(start, pipe))


async def _serve(start: Start, pipe: Connection) -> None:
    pipe.send(await start())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
    await ended.wait()


async def _start_nsqds(size: Size) -> list[int]:
    stats = _Statistics(size)
    return [await _listen(stats.answer_of(node)) for node in range(size.nodes)]


async def _start_lookupd(size: Size, ports: list[int]) -> list[int]:
    return [await _listen(_Lookupd(size, ports).answer)]


async def _listen(answer: Answer) -> int:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(answer), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return port


class _Connection(asyncio.Protocol):
    """Answers one GET after the other; the whole head of each comes in one piece, as our client sends it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        target = urlsplit(data.split(b" ", 2)[1].decode())
        body = self._answer(target.path, {name: values[0] for name, values in parse_qs(target.query).items()})
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        self._transport.write(body)


class _Lookupd:
    def __init__(self, size: Size, ports: list[int]) -> None:
        self._producers = [_producer(node, port) for node, port in enumerate(ports)]
        self._size = size
        self._topics = json.dumps({"topics": [topic_name(topic) for topic in range(size.topics)]}).encode()
        self._nodes = json.dumps({"producers": [self._listed(node) for node in range(size.nodes)]}).encode()

    def _listed(self, node: int) -> dict[str, Any]:
        names = [topic_name(topic) for topic in self._size.topics_on(node)]
        return {**self._producers[node], "topics": names, "tombstones": [False] * len(names)}

    def answer(self, path: str, query: dict[str, str]) -> bytes:
        if path == "/topics":
            return self._topics
        if path == "/lookup":
            nodes = self._size.nodes_of(int(query["topic"].removeprefix("topic-")))
            found = {"channels": CHANNELS, "producers": [self._producers[node] for node in nodes]}
            return json.dumps(found).encode()
        return self._nodes


def _producer(node: int, port: int) -> dict[str, Any]:
    return {
        "remote_address": f"127.0.0.1:{50_000 + node}",
        "hostname": f"nsqd-{node:02}.example",
        "broadcast_address": "127.0.0.1",
        "tcp_port": 20_000 + node,
        "http_port": port,
        "version": "1.3.0",
    }


class _Statistics:
    """What the nsqds answer to /stats."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._began = time.monotonic()
        self._everything: dict[tuple[int, ...], bytes] = {}
        """Without clients, by the topics of a node: nodes with the same topics share the answer."""

    def answer_of(self, node: int) -> Answer:
        topics = self._size.topics_on(node)
        everything = self._everything.get(topics)
        if everything is None:
            everything = self._everything[topics] = _ready([_topic(topic, clients=()) for topic in topics])
        clients = tuple(_client(number, node) for number in range(self._size.consumers))
        with_clients = _ready([_topic(0, clients=clients)])

        def answer(_path: str, query: dict[str, str]) -> bytes:
            has_clients = query.get("include_clients") != "false"
            if query.get("topic") == topic_name(0) and has_clients:
                ready = with_clients
            elif "topic" in query:
                ready = _ready([_topic(int(query["topic"].removeprefix("topic-")), clients=())])
            elif has_clients:
                rest = [_topic(topic, clients=clients if topic == 0 else ()) for topic in topics]
                ready = _ready(rest)
            else:
                ready = everything
            count = int((time.monotonic() - self._began) * COUNTS_PER_SECOND) + 1
            return ready.replace(COUNT_MARK.encode(), b"%d" % count).replace(b'@"', b"")

        return answer


def _ready(topics: list[dict[str, Any]]) -> bytes:
    memory = {
        "heap_objects": 100_000,
        "heap_idle_bytes": 10_000_000,
        "heap_in_use_bytes": 50_000_000,
        "heap_released_bytes": 1_000_000,
        "gc_pause_usec_100": 900,
        "gc_pause_usec_99": 800,
        "gc_pause_usec_95": 700,
        "next_gc_bytes": 90_000_000,
        "gc_total_runs": 1_000,
    }
    whole = {"version": "1.3.0", "health": "OK", "start_time": 1_700_000_000, "topics": topics, "memory": memory}
    return json.dumps(whole, separators=(",", ":")).encode()


def _count(topic: int) -> str:
    return "@" + "0" * (topic % 3) + "@"


_UNTRACKED = {"count": 0, "percentiles": None}


def _topic(number: int, *, clients: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    channels = [
        _channel(number, name, clients if name == CHANNELS[0] else (), paused=number % 50 == 49) for name in CHANNELS
    ]
    return {
        "topic_name": topic_name(number),
        "channels": channels,
        "depth": 0,
        "backend_depth": 0,
        "message_count": _count(number),
        "message_bytes": 123_456_789,
        "paused": False,
        "e2e_processing_latency": _UNTRACKED,
    }


def _channel(topic: int, name: str, clients: tuple[dict[str, Any], ...], *, paused: bool) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": topic % 13,
        "backend_depth": topic % 5,
        "in_flight_count": topic % 7,
        "deferred_count": 0,
        "message_count": _count(topic),
        "requeue_count": topic % 17,
        "timeout_count": 0,
        "client_count": len(clients) or topic % 4,
        "clients": clients,
        "paused": paused,
        "e2e_processing_latency": _UNTRACKED,
        **({"oldest_age_ms": topic * 100} if topic % 13 else {}),
    }


def _client(number: int, node: int) -> dict[str, Any]:
    """One of the many consumers, as a node sees it."""
    return {
        "client_id": f"worker-{number:03}",
        "hostname": f"worker-{number:03}.example",
        "version": "V2",
        "remote_address": f"10.{node}.{number // 250}.{number % 250}:{40_000 + number}",
        "state": 3,
        "ready_count": 100,
        "in_flight_count": number % 5,
        "message_count": number * 1_000,
        "finish_count": number * 1_000,
        "requeue_count": 0,
        "connect_ts": 1_700_000_000 + number,
        "sample_rate": 0,
        "deflate": False,
        "snappy": True,
        "user_agent": "emberq/0.1.0",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
