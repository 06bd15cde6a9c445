"""A cluster that is only acted: an nsqlookupd and many nsqds that answer what nsqadmin asks, out of one thread.

    1,000 topics, each on 8 of 80 nodes, with a channel each; the first topic is on all nodes and has 600 consumers

Message counts grow with time, each topic at a rate of its own, so that the pages have something to show.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

TOPIC_COUNT = 1_000
NODE_COUNT = 80
NODES_PER_TOPIC = 8
CLIENT_COUNT = 600

Answer = Callable[[str, dict[str, str]], Any]
"""The document for a path and its query."""


class LargeCluster:
    """The acted daemons, on free ports; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="large cluster", daemon=True)
        self._running = AsyncExitStack()
        self._began = time.monotonic()
        self._ports: list[int] = []
        self.lookupd_address = ""
        self.topics = [f"topic-{number:04}" for number in range(TOPIC_COUNT)]

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_raised: object) -> None:
        asyncio.run_coroutine_threadsafe(self._running.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        for number in range(NODE_COUNT):
            self._ports.append(await self._listen(self._nsqd(number)))
        self.lookupd_address = f"127.0.0.1:{await self._listen(self._lookupd)}"

    async def _listen(self, answer: Answer) -> int:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    target = urlsplit(head.split(b" ", 2)[1].decode())
                    query = {name: values[0] for name, values in parse_qs(target.query).items()}
                    body = json.dumps(answer(target.path, query)).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self._running.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    # What the daemons know

    def _nodes_of(self, topic: int) -> list[int]:
        if topic == 0:
            return list(range(NODE_COUNT))
        return [(topic + step * (NODE_COUNT // NODES_PER_TOPIC)) % NODE_COUNT for step in range(NODES_PER_TOPIC)]

    def _topics_on(self, node: int) -> list[int]:
        return [topic for topic in range(TOPIC_COUNT) if node in self._nodes_of(topic)]

    def _producer(self, node: int) -> dict[str, Any]:
        return {
            "remote_address": f"127.0.0.1:{50_000 + node}",
            "hostname": f"nsqd-{node:02}",
            "broadcast_address": "127.0.0.1",
            "tcp_port": 20_000 + node,
            "http_port": self._ports[node],
            "version": "1.3.0",
        }

    def _lookupd(self, path: str, query: dict[str, str]) -> Any:
        if path == "/topics":
            return {"topics": self.topics}
        if path == "/lookup":
            topic = self.topics.index(query["topic"])
            return {"channels": ["worker"], "producers": [self._producer(node) for node in self._nodes_of(topic)]}
        listed = []
        for node in range(NODE_COUNT):
            names = [self.topics[topic] for topic in self._topics_on(node)]
            listed.append({**self._producer(node), "topics": names, "tombstones": [False] * len(names)})
        return {"producers": listed}

    def _nsqd(self, node: int) -> Answer:
        topics = self._topics_on(node)

        def answer(_path: str, query: dict[str, str]) -> Any:
            has_clients = query.get("include_clients") != "false"
            wanted = [topic for topic in topics if query.get("topic", self.topics[topic]) == self.topics[topic]]
            return {"version": "1.3.0", "topics": [self._stats(topic, node, has_clients) for topic in wanted]}

        return answer

    def _stats(self, topic: int, node: int, has_clients: bool) -> dict[str, Any]:
        count = int((time.monotonic() - self._began) * (1 + topic % 97) + topic)
        clients = [client(number) for number in range(node, CLIENT_COUNT, NODE_COUNT)] if topic == 0 else []
        channel = {
            "channel_name": "worker",
            "depth": topic % 13,
            "backend_depth": 0,
            "in_flight_count": topic % 7,
            "deferred_count": 0,
            "requeue_count": 0,
            "timeout_count": 0,
            "message_count": count,
            "client_count": len(clients),
            "clients": clients if has_clients else [],
            "paused": topic % 50 == 49,
        }
        figures = {"depth": 0, "backend_depth": 0, "message_count": count, "paused": False}
        return {"topic_name": self.topics[topic], **figures, "channels": [channel]}


def client(number: int) -> dict[str, Any]:
    """One of the many consumers."""
    return {
        "client_id": f"worker-{number:03}",
        "hostname": f"worker-{number:03}.example",
        "version": "V2",
        "remote_address": f"10.0.{number // 250}.{number % 250}:40000",
        "user_agent": "emberq/0.1.0",
        "connect_ts": int(time.time()) - number,
        "in_flight_count": number % 5,
        "ready_count": 100,
        "finish_count": number * 1_000,
        "requeue_count": 0,
        "message_count": number * 1_000,
        "snappy": True,
    }
