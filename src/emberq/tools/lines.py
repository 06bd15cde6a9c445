"""The lines of a file, a pipe or a keyboard, without holding up the event loop.

All lines that one read brought come together: many from a file, one from a keyboard. So batches are as large as they
can be without making anybody wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from emberq.tools.program import ToolError
from emberq.tools.records import BlockReader

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Far longer than any message that nsqd takes; whoever sends more has not sent lines."""


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    r"""The lines that each read completed, without their `\n`. The last one needs none."""
    rest = b""
    async for block in BlockReader(descriptor).blocks():
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield lines
        if len(rest) > MAX_LINE_BYTES:
            raise ToolError(f"a line is longer than {MAX_LINE_BYTES} bytes")
    if rest:
        yield [rest]
