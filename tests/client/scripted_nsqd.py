"""An nsqd of a few lines that does what a test tells it, and writes down what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from typing import Self

from emberq.wire.frame import WireMessage, encode_message
from tests.support.waiting import until

RESPONSE, ERROR, MESSAGE = 0, 1, 2
_BODY_COMMANDS = {"IDENTIFY", "AUTH", "PUB"}


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


class ScriptedNsqd:
    """Serves any number of connections; messages go out on the newest one."""

    def __init__(self, *, max_rdy_count: int = 2500, msg_timeout_ms: int = 60_000, **told: int) -> None:
        self._answer = {"max_rdy_count": max_rdy_count, "msg_timeout": msg_timeout_ms, "version": "1.3.0", **told}
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._sent_count = 0
        self.port = 0
        self.commands: list[str] = []
        """What came, in order: FIN, REQ and TOUCH without the id, everything else as it was."""
        self.lines: list[str] = []
        """The same with nothing left out."""
        self.replies: dict[str, bytes] = {"CLS": frame(RESPONSE, b"CLOSE_WAIT")}
        """Instead of the usual answer to a command."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection_count(self) -> int:
        return len(self._writers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()

    def drop_connections(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def send(self, body: bytes = b"body", *, attempts: int = 1) -> None:
        """Deliver a message, whatever RDY says."""
        self._sent_count += 1
        message = WireMessage(1_700_000_000_000_000_000, attempts, b"%016x" % self._sent_count, body)
        self._writers[-1].write(frame(MESSAGE, encode_message(message)))

    def respond(self, data: bytes) -> None:
        """Send a response that nobody asked for, or that was held back: `_heartbeat_`, `OK`."""
        self._writers[-1].write(frame(RESPONSE, data))

    def fail(self, data: bytes) -> None:
        """Send an error."""
        self._writers[-1].write(frame(ERROR, data))

    async def expect(self, *commands: str) -> None:
        """Wait until exactly these have come since IDENTIFY and SUB of the first connection."""
        await until(lambda: len(self.commands) >= len(commands) + 2, show=lambda: self.commands)
        assert self.commands[2:] == list(commands)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            assert await reader.readexactly(4) == b"  V2"
            self._writers.append(writer)
            while True:
                line = (await reader.readuntil(b"\n")).decode().rstrip("\n")
                name = line.partition(" ")[0]
                if name in _BODY_COMMANDS:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
                self._take(name, line, writer)
        writer.close()

    def _take(self, name: str, line: str, writer: asyncio.StreamWriter) -> None:
        self.lines.append(line)
        self.commands.append(name if name in ("FIN", "TOUCH", "REQ", "SUB") else line)
        if name in self.replies:
            writer.write(self.replies[name])
        elif name == "IDENTIFY":
            writer.write(frame(RESPONSE, json.dumps(self._answer).encode()))
        elif name in ("SUB", "PUB"):
            writer.write(frame(RESPONSE, b"OK"))
