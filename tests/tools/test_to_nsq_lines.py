"""Lines as `emberq pub` reads them."""

from __future__ import annotations

import os

import pytest

from emberq.base.program import ToolError
from emberq.tools import to_nsq as lines_module
from emberq.tools.to_nsq import read_lines


async def lines_of(content: bytes) -> list[bytes]:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    try:
        return [line async for group in read_lines(reader) for line in group]
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n", [b"", b"", b"a"]),
        (b"a\r\nb\x00\xff\n", [b"a\r", b"b\x00\xff"]),
    ],
)
async def test_a_line_ends_at_a_newline_or_at_the_end(content: bytes, lines: list[bytes]) -> None:
    assert await lines_of(content) == lines


async def test_a_line_may_come_in_pieces_and_is_there_as_soon_as_it_is_whole() -> None:
    reader, writer = os.pipe()
    groups = read_lines(reader)
    os.write(writer, b"fir")
    os.write(writer, b"st\nsec")
    assert await anext(groups) == [b"first"]
    os.write(writer, b"ond\n")
    assert await anext(groups) == [b"second"]
    os.close(writer)
    assert [group async for group in groups] == []
    os.close(reader)


async def test_what_has_no_lines_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    with pytest.raises(ToolError, match="longer than 10 bytes"):
        await lines_of(b"x" * 11)
