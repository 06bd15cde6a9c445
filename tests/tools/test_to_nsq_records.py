"""Standard input, cut into records."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.program import ToolError
from emberq.tools import to_nsq
from emberq.tools.to_nsq import BLOCK_BYTES, BlockReader, RecordSplitter
from tests.support.waiting import PATIENCE_S


def split(*blocks: bytes, delimiter: bytes = b"\n") -> list[bytes]:
    splitter = RecordSplitter(delimiter)
    found = [record for block in blocks for record in splitter.feed(block)]
    return found + splitter.end()


@pytest.mark.conformance(260)
def test_empty_records_are_skipped_and_an_unfinished_one_loses_its_last_byte() -> None:
    assert split(b"abc\n\ndef") == [b"abc", b"de"]


def test_input_that_ends_in_a_delimiter_ends_in_no_other_record() -> None:
    assert split(b"abc\ndef\n") == [b"abc", b"def"]


def test_a_single_byte_behind_the_last_delimiter_is_nothing() -> None:
    assert split(b"a") == []


def test_any_byte_can_be_the_delimiter() -> None:
    assert split(b"a\nb\0c\0", delimiter=b"\0") == [b"a\nb", b"c"]


@given(data=st.binary(max_size=60).map(lambda raw: raw.replace(b"\x01", b"\n")), cuts=st.lists(st.integers(0, 60)))
def test_it_makes_no_difference_where_blocks_begin(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    blocks = [data[start:end] for start, end in pairwise(edges)]
    assert split(*blocks) == split(data)


def test_a_record_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_nsq, "MAX_RECORD_BYTES", 10)
    splitter = RecordSplitter(b"\n")
    splitter.feed(b"0123456789")
    with pytest.raises(ToolError, match="longer than 10 bytes"):
        splitter.feed(b"0")


async def read_all(descriptor: int) -> bytes:
    return b"".join([block async for block in BlockReader(descriptor).blocks()])


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    content = os.urandom(3 * BLOCK_BYTES + 5)
    path = tmp_path / "input"
    path.write_bytes(content)
    with path.open("rb") as file:
        assert await read_all(file.fileno()) == content


async def test_a_line_is_there_as_soon_as_it_is_written() -> None:
    reading, writing = os.pipe()
    with closing(os.fdopen(reading)), closing(os.fdopen(writing, "wb", 0)) as writer:
        blocks = BlockReader(reading).blocks()
        writer.write(b"first\n")
        assert await anext(blocks) == b"first\n"
        writer.write(b"second\n")
        assert await anext(blocks) == b"second\n"
        writer.close()
        assert [block async for block in blocks] == []


async def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(ToolError, match="failed to read - Is a directory"):
            await asyncio.wait_for(read_all(descriptor), timeout=PATIENCE_S)
    finally:
        os.close(descriptor)
