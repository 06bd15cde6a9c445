"""Items in one buffer: what is done at once for items of one size gives what is done item by item.

The shapes themselves are tested as parts of batches."""

from __future__ import annotations

import pytest

from emberq.broker.layout import (
    FRAMED_HEADER,
    PUBLISHED_HEADER,
    STORED_HEADER,
    read_column,
    start_of,
    uniform_range,
    write_column,
)


def test_headers_have_the_sizes_of_the_protocol() -> None:
    assert (PUBLISHED_HEADER.size, STORED_HEADER.size, FRAMED_HEADER.size) == (4, 30, 34)


def test_a_uniform_range_names_the_end_of_each_item() -> None:
    assert list(uniform_range(size=7, count=3)) == [7, 14, 21]
    assert uniform_range(size=7, count=3).step == 7
    assert list(uniform_range(size=7, count=1)) == [7]


def test_the_first_item_starts_at_zero_and_the_others_where_the_previous_ends() -> None:
    assert [start_of([5, 9, 12], index) for index in range(3)] == [0, 5, 9]


@pytest.mark.parametrize("is_range", [True, False])
def test_a_column_is_written_and_read_at_one_offset_of_each_item(is_range: bool) -> None:
    uniform = uniform_range(size=4, count=3)
    ends = uniform if is_range else list(uniform)
    data = bytearray(b"aaaabbbbcccc")
    write_column(data, ends, offset=2, column=b"123")
    assert data == b"aa1abb2bcc3c"
    assert read_column(bytes(data), ends, offset=2) == b"123"
    assert read_column(bytes(data), ends, offset=0) == b"abc"


def test_columns_follow_items_of_different_sizes() -> None:
    data = bytearray(b"aabbbbccc")
    write_column(data, [2, 6, 9], offset=1, column=b"123")
    assert data == b"a1b2bbc3c"
    assert read_column(bytes(data), [2, 6, 9], offset=1) == b"123"
