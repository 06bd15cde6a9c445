"""Items in one buffer: what is done at once for items of one size gives what is done item by item."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.broker.batch import (
    FRAMED_HEADER,
    PUBLISHED_HEADER,
    STORED_HEADER,
    convert,
    read_column,
    start_of,
    uniform_range,
    write_column,
)

uniform_items = st.tuples(st.integers(2, 40), st.integers(1, 20)).flatmap(
    lambda shape: st.lists(st.binary(min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1])
)
mixed_items = st.lists(st.binary(min_size=2, max_size=40), min_size=1, max_size=20)


def test_headers_have_the_sizes_of_the_protocol() -> None:
    assert (PUBLISHED_HEADER.size, STORED_HEADER.size, FRAMED_HEADER.size) == (4, 30, 34)


def test_a_uniform_range_names_the_end_of_each_item() -> None:
    assert list(uniform_range(size=7, count=3)) == [7, 14, 21]
    assert uniform_range(size=7, count=3).step == 7
    assert list(uniform_range(size=7, count=1)) == [7]


def test_the_first_item_starts_at_zero_and_the_others_where_the_previous_ends() -> None:
    assert [start_of([5, 9, 12], index) for index in range(3)] == [0, 5, 9]


def length_header(length: int) -> bytes:
    return struct.pack(">H", length)


@settings(max_examples=60)
@given(items=mixed_items, cut=st.integers(0, 1), data=st.data())
def test_conversion_replaces_the_head_of_each_item(items: list[bytes], cut: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(items) - 1))
    stop = data.draw(st.integers(start + 1, len(items)))
    expected = [length_header(len(item) - cut) + item[cut:] for item in items[start:stop]]
    ends_before = list(accumulate(map(len, items)))
    converted, ends = convert(b"".join(items), ends_before, start=start, stop=stop, cut=cut, header=length_header)
    assert bytes(converted) == b"".join(expected)
    assert list(ends) == list(accumulate(map(len, expected)))


@settings(max_examples=60)
@given(items=uniform_items, cut=st.integers(0, 1), data=st.data())
def test_items_of_one_size_are_converted_as_any_others(items: list[bytes], cut: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(items) - 1))
    stop = data.draw(st.integers(start + 1, len(items)))
    blob = b"".join(items)
    uniform = uniform_range(size=len(items[0]), count=len(items))
    fast, fast_ends = convert(blob, uniform, start=start, stop=stop, cut=cut, header=length_header)
    slow, slow_ends = convert(blob, list(uniform), start=start, stop=stop, cut=cut, header=length_header)
    assert isinstance(fast_ends, range)
    assert (bytes(fast), list(fast_ends)) == (bytes(slow), list(slow_ends))


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
