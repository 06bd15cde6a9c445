"""An HTTP server that answers as a test tells it, for what a healthy nsqd never does."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Reply:
    """What is sent: a status, a body and headers. `drop` closes the connection instead."""

    body: bytes | Mapping[str, Any] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False


@dataclass(frozen=True)
class Received:
    """What a client asked."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedHttp:
    """Sends the replies one after the other, the last one again and again; a context manager."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = deque(replies)
        self.received: list[Received] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _next(self) -> Reply:
        return self._replies.popleft() if len(self._replies) > 1 else self._replies[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.received.append(Received(self.command, self.path, dict(self.headers.items()), body))
                reply = script._next()
                if reply.drop:
                    self.close_connection = True
                    return
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _answer  # noqa: N815 - the names that the server looks for

            def log_message(self, *_args: object) -> None:
                """Nothing: a test shows what it wants shown."""

        return Handler
