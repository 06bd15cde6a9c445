"""A network between clients and one server that delays what it carries, or swallows it without a sign.

async with FaultyNetwork(server_port) as network:
    ...                        # clients connect to network.address
    network.delay_s = 0.2      # what the server says takes so long from now on
    network.freeze()           # connections stay open, but nothing comes through any more; new ones are not affected
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

CHUNK_BYTES = 65536


class _Passage:
    """One connection through the network."""

    def __init__(self) -> None:
        self.is_frozen = False
        self.tasks: list[asyncio.Task[None]] = []


class FaultyNetwork:
    """A context manager, in the event loop of its clients."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._passages: list[_Passage] = []
        self._server: asyncio.Server | None = None
        self.delay_s = 0.0
        """How long it takes until what the server sends arrives."""

    @property
    def address(self) -> str:
        assert self._server is not None
        return "{}:{}".format(*self._server.sockets[0].getsockname())

    @property
    def connection_count(self) -> int:
        """How many there have been."""
        return len(self._passages)

    def freeze(self) -> None:
        """Let nothing more through on the connections there are."""
        for passage in self._passages:
            passage.is_frozen = True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for passage in self._passages for task in passage.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        passage = _Passage()
        self._passages.append(passage)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        passage.tasks = [
            asyncio.create_task(self._carry(from_client, to_server, passage, is_delayed=False)),
            asyncio.create_task(self._carry(from_server, to_client, passage, is_delayed=True)),
        ]

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passage: _Passage, *, is_delayed: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if is_delayed and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not passage.is_frozen:
                    writer.write(data)
        if not passage.is_frozen:
            writer.close()
