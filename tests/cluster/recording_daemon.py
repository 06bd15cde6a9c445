"""A daemon that answers as a test says and notes what it was asked, in one list with others: for the order of calls."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

POLL_INTERVAL_S = 0.01
"""How soon it notices that it is to stop."""


class RecordingDaemon:
    """Answers each path with its document, anything else with 404. A context manager."""

    def __init__(self, name: str, answers: dict[str, Any], calls: list[str]) -> None:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                daemon._answer(self)

            def do_POST(self) -> None:
                daemon._answer(self)

            def log_message(self, *_parts: object) -> None:
                pass

        self._name = name
        self.answers = answers
        self._calls = calls
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self._calls.append(f"{request.command} {self._name}{request.path}")
        document = self.answers.get(request.path.partition("?")[0])
        body = json.dumps({"message": "NOT_FOUND"} if document is None else document).encode()
        request.send_response(404 if document is None else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
