"""A peer that does what the test says, where a real nsqd would behave too well.

    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.read_publication() == b"x"
        peer.respond(b"OK")

    async with scripted_peer(script) as address: ...

The script runs for each connection; when it returns, the connection is closed. What it raises fails the test, but not
that the client hung up: a client may do so at any time, even before it has said a word, and whether its end is heard of
as an end or as a reset depends on what was under way.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from emberq.wire import frame
from emberq.wire.frame import WireMessage, encode_message

ANSWER = {"max_rdy_count": 2500, "version": "1.3.0", "msg_timeout": 60_000, "max_msg_timeout": 900_000}
MESSAGE = WireMessage(timestamp_ns=1, attempts=1, id=b"0123456789abcdef", body=b"hello")


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read_identify(self) -> dict[str, Any]:
        """What the client says about itself in its first words."""
        assert await self._reader.readexactly(4) == b"  V2"
        assert await self.read_line() == b"IDENTIFY"
        document: dict[str, Any] = json.loads(await self.read_body())
        return document

    async def accept(self, **answer: Any) -> None:
        """Read an IDENTIFY and agree."""
        await self.read_identify()
        self.respond(json.dumps(ANSWER | answer).encode())

    async def read_line(self) -> bytes:
        return (await self._reader.readuntil(b"\n")).rstrip(b"\n")

    async def read_body(self) -> bytes:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def read_some(self) -> bytes:
        """What has come, as it came; nothing at the end."""
        return await self._reader.read(65536)

    async def read_publication(self) -> bytes:
        """The body of the next PUB, MPUB or DPUB."""
        line = await self.read_line()
        assert line.startswith((b"PUB ", b"MPUB ", b"DPUB ")), line
        return await self.read_body()

    async def confirm_forever(self) -> None:
        """Say OK to every publication until the client closes."""
        while True:
            await self.read_publication()
            self.respond(b"OK")

    async def wait_until_closed(self) -> None:
        """Read on, whatever it is, and answer nothing."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Shake hands, as the server. To be called before the client has had time for its part."""
        try:
            await self._writer.start_tls(context)
        except ssl.SSLError as error:
            raise ConnectionAbortedError(str(error)) from error  # the client hung up in the middle of it

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def flood(self, data: bytes, *, times: int) -> int:
        """Send the same again and again, as fast as the client takes it; how often until it hung up."""
        for sent in range(times):
            try:
                self.send(data)
                await self._writer.drain()
            except ConnectionError:
                return sent
        return times

    def respond(self, data: bytes) -> None:
        self.send(frame.response(data))

    def refuse(self, data: bytes) -> None:
        self.send(frame.error(data))

    def reset(self) -> None:
        """Cut the connection off: the client's end says "reset by peer", not merely that nothing more comes."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@asynccontextmanager
async def scripted_peer(
    script: Callable[[Peer], Awaitable[None]], *, unix_path: str | None = None
) -> AsyncIterator[str]:
    """The address at which the script awaits connections: a free port of this machine, or the path given."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await script(Peer(reader, writer))
        finally:
            writer.close()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    if unix_path is not None:
        server, address = await asyncio.start_unix_server(start, unix_path), unix_path
    else:
        server = await asyncio.start_server(start, "127.0.0.1", 0)
        address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield address
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        raise failures[0]


async def keep_open(peer: Peer) -> None:
    """A script: let the client in, and say nothing more."""
    await peer.accept()
    await peer.wait_until_closed()


def message_frame(message: WireMessage) -> bytes:
    data = encode_message(message)
    return frame.FRAME_HEADER.pack(4 + len(data), frame.MESSAGE) + data
