"""What to_nsq reads: standard input, cut into records at a delimiter of one byte.

    abc \n \n def          delimiter \n
    --- ----- ---
    abc       de

Empty records are skipped. What stands behind the last delimiter is a record too, but loses its last byte: NSQ's to_nsq
takes that byte for the delimiter, and scripts have come to rely on it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

from emberq.tools.program import ToolError

BLOCK_BYTES = 256 * 1024
"""Read at a time: what fits a pipe arrives in one go, and the records of a block make a good batch."""
MAX_BLOCKS_AHEAD = 2
"""One being published, one ready."""
MAX_RECORD_BYTES = 256 * 1024 * 1024
"""No nsqd takes a message of that length; input without delimiters must not fill the memory."""


class RecordSplitter:
    """Blocks in, records out."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._pieces: list[bytes] = []
        """The beginning of a record whose end has not been seen."""
        self._pieces_bytes = 0

    def feed(self, block: bytes) -> list[bytes]:
        """The records that end in this block."""
        first, *others = block.split(self._delimiter)
        self._pieces.append(first)
        self._pieces_bytes += len(first)
        if self._pieces_bytes > MAX_RECORD_BYTES:
            raise ToolError(f"a record is longer than {MAX_RECORD_BYTES} bytes")
        if not others:
            return []
        whole = b"".join(self._pieces)
        unfinished = others.pop()
        self._pieces = [unfinished]
        self._pieces_bytes = len(unfinished)
        return [record for record in (whole, *others) if record]

    def end(self) -> list[bytes]:
        """The record behind the last delimiter, without its last byte."""
        last = b"".join(self._pieces)[:-1]
        return [last] if last else []


class BlockReader:
    """Reads a file descriptor in a thread, because it may be of any kind: a pipe, a file, a terminal.

    The thread does not keep the process alive: it may wait for input that never comes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._free = threading.Semaphore(MAX_BLOCKS_AHEAD)
        self._thread = threading.Thread(target=self._read_all, name="stdin", daemon=True)

    async def blocks(self) -> AsyncIterator[bytes]:
        """What is read, to the end; ToolError if it cannot be read."""
        self._thread.start()
        while block := await self._blocks.get():
            if isinstance(block, OSError):
                raise ToolError(f"failed to read - {block.strerror}")
            yield block
            self._free.release()

    def _read_all(self) -> None:
        while True:
            self._free.acquire()
            try:
                block: bytes | OSError = os.read(self._descriptor, BLOCK_BYTES)
            except OSError as error:
                block = error
            try:
                self._loop.call_soon_threadsafe(self._blocks.put_nowait, block)
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return
            if not block or isinstance(block, OSError):
                return
