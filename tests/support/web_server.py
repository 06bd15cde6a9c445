"""A web server for tests, on raw sockets in the test's event loop: it answers by a script and counts connections."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self


class Request(NamedTuple):
    """What came."""

    line: str
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes


def answer(status: int = 200, *, headers: str = "", body: bytes = b"ok") -> bytes:
    """A whole answer that leaves the connection open."""
    return f"HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class WebServer:
    """Asks `respond(request)` what to send; None means nothing at all, ever. b"" hangs up without a word.

    `hang_up_after(request)` says whether to close the connection behind an answer, without having announced it.
    """

    def __init__(
        self,
        respond: Callable[[Request], bytes | None] = lambda request: answer(),
        *,
        hang_up_after: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self._respond = respond
        self._hang_up_after = hang_up_after
        self.requests: list[Request] = []
        self.connection_count = 0
        self.url = ""

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(request.body for request in self.requests)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        try:
            while True:
                request = await _read_request(reader)
                self.requests.append(request)
                response = self._respond(request)
                if response is None:
                    await reader.read()
                    return
                writer.write(response)
                await writer.drain()
                if not response or b"Connection: close" in response or self._hang_up_after(request):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client hung up, as it may
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *lines = head.rstrip().split("\r\n")
    headers = dict(re.split(": ?", each.lower(), maxsplit=1) for each in lines)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(line, headers, body)
