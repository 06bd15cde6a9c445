"""An authorization server for tests: it answers what the test tells it to, and shows what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

BOTH = ("subscribe", "publish")


def entry(
    topic: str = ".*", channels: Sequence[str] = (".*",), permissions: Sequence[str] = BOTH
) -> dict[str, list[str] | str]:
    """An element of `authorizations`."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def grant(*entries: dict[str, Any], ttl: int = 3600, **fields: Any) -> dict[str, Any]:
    """An answer that allows what the entries say."""
    return {"ttl": ttl, "authorizations": list(entries), **fields}


class Question(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    """With the query string."""
    headers: dict[str, str]
    body: bytes

    @property
    def params(self) -> dict[str, list[str]]:
        """What it asks, whichever way."""
        if self.method == "POST":
            document: dict[str, list[str]] = json.loads(self.body)
            return document
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)


class AuthServer:
    """A real HTTP server in threads of its own; a context manager.

    `answer` may be exchanged at any time: a JSON document, or bytes to be sent as they are. While `gate` is cleared
    every question waits.
    """

    def __init__(self, answer: Any, *, status: int = 200, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.status = status
        self.gate = threading.Event()
        self.gate.set()
        self.questions: list[Question] = []
        self._scheme = "http" if tls is None else "https"
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._http.daemon_threads = True
        if tls is not None:
            # Handshakes are left to the threads of the connections: one that hangs must not hold up the end.
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def address(self) -> str:
        """As `--auth-http-address` takes it."""
        return f"127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.address}/auth"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.questions.append(Question(self.command, self.path, dict(self.headers), body))
                server.gate.wait()
                answer = server.answer
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _serve  # noqa: N815 - http.server looks for these names

            def log_message(self, *_args: object) -> None:
                """Tests do not want to read it."""

        return Handler
