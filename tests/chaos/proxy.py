"""A bad network between clients and one nsqd: a TCP proxy that delays, stalls, swallows, cuts and resets.

    clients ──> Proxy ──> nsqd

TCP itself repairs a lost packet, at the price of time. So loss shows here as it does to programs: a stretch of bytes
comes late, and now and then the connection breaks in the middle of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass

CHUNK_BYTES = 65536
RETRANSMISSION_S = (0.2, 1.0)
"""How late a lost packet arrives: after the first retransmission or the second."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class Weather:
    """What the network is like at the moment."""

    delay_s: float = 0.0
    """For each stretch of bytes, in both directions."""
    jitter_s: float = 0.0
    """At most so much on top."""
    loss: float = 0.0
    """The part of stretches that come late because they had to be sent again."""
    breaks: float = 0.0
    """The part of stretches in the middle of which the connection breaks."""
    is_refusing: bool = False
    """New connections are closed at once."""


FAIR = Weather()


class Passage:
    """One connection through the proxy."""

    def __init__(self, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._writers = (to_client, to_server)
        self.is_swallowing = False
        """Both ends take the connection for open, and no byte comes through."""
        self.open_ends = 2

    def close(self, *, with_reset: bool) -> None:
        """End it at both ends, in order or by a reset."""
        for writer in self._writers:
            if with_reset:
                connection = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):  # that end is gone
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Listens for clients of one nsqd. Owns their passages; `weather` is set by the caller."""

    def __init__(self, server_port: int, *, dice: random.Random) -> None:
        self.weather = FAIR
        self._server_port = server_port
        self._dice = dice
        self._passages: set[Passage] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut(with_reset=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._passages)

    def cut(self, *, with_reset: bool) -> None:
        """End all connections there are."""
        for passage in list(self._passages):
            passage.close(with_reset=with_reset)

    def swallow(self) -> None:
        """Let nothing more through on the connections there are. They stay open until they are cut."""
        for passage in self._passages:
            passage.is_swallowing = True

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.weather.is_refusing:
            to_client.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:  # there is no nsqd at the moment
            to_client.transport.abort()
            return
        passage = Passage(to_client, to_server)
        self._passages.add(passage)
        for reader, writer in ((from_client, to_server), (from_server, to_client)):
            task = asyncio.create_task(self._carry(reader, writer, passage))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: Passage) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._forward(data, writer, passage)
        except OSError:
            passage.close(with_reset=True)
        finally:
            if not passage.is_swallowing:
                writer.close()
            passage.open_ends -= 1
            if not passage.open_ends:
                self._passages.discard(passage)

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, passage: Passage) -> None:
        weather, dice = self.weather, self._dice
        if weather.delay_s or weather.jitter_s:
            await asyncio.sleep(weather.delay_s + dice.uniform(0, weather.jitter_s))
        if weather.loss and dice.random() < weather.loss:
            await asyncio.sleep(dice.uniform(*RETRANSMISSION_S))
        if weather.breaks and dice.random() < weather.breaks:
            writer.write(data[: dice.randrange(len(data))])
            with contextlib.suppress(OSError):
                await writer.drain()
            passage.close(with_reset=dice.random() < 0.5)
        elif not passage.is_swallowing:
            writer.write(data)
            await writer.drain()
