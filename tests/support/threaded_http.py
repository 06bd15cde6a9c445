"""An HTTP server of the standard library in threads of its own: for daemons that answer as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

POLL_INTERVAL_S = 0.01
"""How soon it notices that it is to stop."""
ACCEPT_QUEUE = 1024
"""Connections that may wait for it, as many as daemons have room for. The library's default is 5: what overflows is
tried again by the client's system after a second, and nsqadmin waits two."""


class Received(NamedTuple):
    """A request as it arrived."""

    method: str
    target: str
    """With the query string."""
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What is sent: a status, a body and headers. `drop` closes the connection instead."""

    body: bytes | Mapping[str, Any] = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False


NOT_FOUND = Reply({"message": "NOT_FOUND"}, status=404)


class PatientServer(ThreadingHTTPServer):
    """Has room for many that come at once, like a daemon."""

    request_queue_size = ACCEPT_QUEUE
    daemon_threads = True


class ThreadedHttp:
    """Asks `answer`, in any thread, what to reply to each request; a context manager."""

    def __init__(
        self, answer: Callable[[Received], Reply], *, tls: ssl.SSLContext | None = None, keeps_alive: bool = False
    ) -> None:
        self.received: list[Received] = []
        self._server = PatientServer(("127.0.0.1", 0), self._handler(answer, keeps_alive=keeps_alive))
        if tls is not None:
            # Handshakes are left to the threads of the connections: one that hangs must not hold up the end.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_INTERVAL_S,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self, answer: Callable[[Received], Reply], *, keeps_alive: bool) -> type[BaseHTTPRequestHandler]:
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keeps_alive else "HTTP/1.0"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Received(self.command, self.path, dict(self.headers), body)
                received.append(request)
                reply = answer(request)
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
