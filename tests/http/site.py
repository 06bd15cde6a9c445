"""A table of routes that shows everything a server has to be able to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from emberq.http.body import FileBody
from emberq.http.message import HttpError, Request, Response, empty, json, plain, text
from emberq.http.router import Route, Router

MAX_ECHO_BYTES = 1000
MAX_UPLOAD_BYTES = 1024 * 1024
BIG = "All work and no play makes Jack a dull boy. " * 10_000
HUGE = b"0123456789abcdef" * 1_000_000
"""More than the system keeps for a connection."""


FILE_POSITION = 5


class Site:
    """The handlers. `gate` holds up what goes to `/gate`; used in the loop's thread."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen: list[Request] = []
        """Requests in the order in which handlers were called."""
        self.passed_gate_count = 0
        self.file_path = Path()
        """What `/file` sends from its 5th byte on."""
        self.file_length = 0

    def router(self) -> Router:
        return Router(
            [
                Route("GET", "/ping", self._ping),
                Route("POST", "/echo", self._echo, max_body_bytes=MAX_ECHO_BYTES, too_big="MSG_TOO_BIG", quiet=True),
                Route("POST", "/upload", self._upload, max_body_bytes=MAX_UPLOAD_BYTES),
                Route("POST", "/topic/create", self._create),
                Route("GET", "/config/{option}", self._config),
                Route("GET", "/who", self._who),
                Route("GET", "/query", self._query),
                Route("GET", "/big", self._big),
                Route("GET", "/huge", self._huge),
                Route("GET", "/file", self._file),
                Route("GET", "/file-later", self._file_later),
                Route("GET", "/gate", self._wait_at_gate),
                Route("POST", "/later", self._later, max_body_bytes=MAX_ECHO_BYTES),
                Route("GET", "/crash", self._crash),
                Route("GET", "/crash-later", self._crash_later),
                Route("GET", "/refuse", self._refuse),
                Route("GET", "/refuse-later", self._refuse_later),
            ]
        )

    def _ping(self, request: Request) -> Response:
        self.seen.append(request)
        return plain("OK")

    def _echo(self, request: Request) -> Response:
        self.seen.append(request)
        return text(request.body)

    def _upload(self, request: Request) -> Response:
        self.seen.append(request)
        return json({"bytes": len(request.body)})

    def _create(self, request: Request) -> Response:
        self.seen.append(request)
        return empty()

    def _config(self, request: Request) -> Response:
        return json(dict(request.params))

    def _who(self, request: Request) -> Response:
        return json([request.remote_address, request.is_tls, request.header("X-Who")])

    def _query(self, request: Request) -> Response:
        return json(request.query().get("name"))

    def _big(self, _request: Request) -> Response:
        return text(BIG)

    def _huge(self, _request: Request) -> Response:
        return plain(HUGE, content_type="application/octet-stream")

    def _file(self, _request: Request) -> Response:
        return Response(200, file=FileBody(self.file_path, position=FILE_POSITION, length=self.file_length))

    async def _file_later(self, request: Request) -> Response:
        await self.gate.wait()
        return self._file(request)

    async def _wait_at_gate(self, _request: Request) -> Response:
        await self.gate.wait()
        self.passed_gate_count += 1
        return text("through")

    async def _later(self, request: Request) -> Response:
        await asyncio.sleep(0)
        return text(request.body)

    def _crash(self, _request: Request) -> Response:
        raise RuntimeError("on purpose")

    async def _crash_later(self, _request: Request) -> Response:
        await asyncio.sleep(0)
        raise RuntimeError("on purpose, later")

    def _refuse(self, _request: Request) -> Response:
        raise HttpError(404, "TOPIC_NOT_FOUND")

    async def _refuse_later(self, _request: Request) -> Response:
        await asyncio.sleep(0)
        raise HttpError(404, "CHANNEL_NOT_FOUND")
