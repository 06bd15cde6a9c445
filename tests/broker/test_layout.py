"""Items in one buffer: what is done at once for items of one size gives what is done item by item; and the shapes,
which all tell the same of the same messages. What becomes of shapes in a batch is tested with batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest

from emberq.broker.layout import (
    FRAMED_HEADER,
    NO_ID,
    PUBLISHED_HEADER,
    STORED_HEADER,
    Frames,
    Gathered,
    Large,
    Lone,
    Published,
    Recorded,
    Shape,
    lone_frame,
    read_column,
    start_of,
    uniform_range,
    write_column,
)
from tests.broker.rig import Message, fin_lines, messages_in, published, stored
from tests.broker.simulated_disk import joined

FIRST_ID = 0x1A2B3C4D5E6F7FF0
TIMESTAMP_NS = 1_700_000_000_123_456_789
BODIES = {
    "one": [b"alone"],
    "of one size": [b"%03d" % number for number in range(7)],
    "of many sizes": [b"x" * size for size in (1, 5, 4061, 4062, 4066, 4067, 9000, 2)],  # around 4096 with a header
}


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


# Shapes.


def shapes(messages: list[Message]) -> Iterator[Shape]:
    """Messages with consecutive ids and one time, in every shape that they can have."""
    bodies = [message.body for message in messages]
    records = joined([stored(message) for message in messages])
    frames = Gathered()
    for index, body in enumerate(bodies):
        frames.add(lone_frame(published([body])[0], FIRST_ID + index, TIMESTAMP_NS))
    as_they_came: list[Shape] = [
        Published(*published(bodies), FIRST_ID, TIMESTAMP_NS),
        Published(b"".join(bodies), list(accumulate(map(len, bodies))), FIRST_ID, TIMESTAMP_NS, 0),
        Recorded(records.blob, records.ends),
        frames,
    ]
    if len(bodies) == 1:
        as_they_came.append(Lone(frames.frames(0, 1, 1)))
        as_they_came.append(Large(published(bodies)[0], FIRST_ID, TIMESTAMP_NS))
        as_they_came.append(Large(bodies[0], FIRST_ID, TIMESTAMP_NS, 0))
    for shape in as_they_came:
        yield shape
        yield shape.framed()


@pytest.mark.parametrize("attempts", [1, 2, 300])
@pytest.mark.parametrize("bodies", BODIES.values(), ids=BODIES)
def test_every_shape_tells_the_same_of_the_same_messages(bodies: list[bytes], attempts: int) -> None:
    messages = [Message(TIMESTAMP_NS, attempts, b"%016x" % (FIRST_ID + i), body) for i, body in enumerate(bodies)]
    count = len(messages)
    for shape in shapes(messages):
        assert len(shape.ends) == count
        for start, stop in {(0, count), (0, 1), (count - 1, count), (count // 3, count - count // 3)}:
            part = messages[start:stop]
            expected = joined([stored(message) for message in part])
            records = shape.records(start, stop, attempts)
            assert (records.blob, list(records.ends)) == (expected.blob, list(expected.ends))
            assert shape.ids(start, stop) == [message.id for message in part]
            assert [shape.published_ns(index) for index in range(start, stop)] == [TIMESTAMP_NS] * len(part)
            assert shape.body_bytes(start, stop) == sum(len(message.body) for message in part)
            if isinstance(shape, Frames):
                check_frames(shape, start, stop, part, attempts)


def check_frames(shape: Frames, start: int, stop: int, part: list[Message], attempts: int) -> None:
    frames = shape.frames(start, stop, attempts)
    assert messages_in(frames) == part
    ends = [0, *shape.frame_ends(start, stop)]
    assert [messages_in(frames[begin:end]) for begin, end in pairwise(ends)] == [[message] for message in part]
    pieces: list[bytes | memoryview] = []
    assert shape.add_frames(pieces, start, stop, attempts) == len(frames)
    assert b"".join(pieces) == frames
    assert shape.fin_lines(start, stop) == fin_lines([message.id for message in part])
    assert shape.framed() is shape


def test_ids_are_known_to_be_consecutive_only_where_they_were_given_together() -> None:
    messages = [Message(TIMESTAMP_NS, 1, b"%016x" % (FIRST_ID + i), b"x") for i in range(3)]
    given = Published(*published([b"x"] * 3), FIRST_ID, TIMESTAMP_NS).framed()
    assert given.first_id() == FIRST_ID
    records = joined([stored(message) for message in messages])
    others: list[Frames] = [Recorded(records.blob, records.ends).framed(), Gathered(), Lone(b""), Large(b"", 1, 1)]
    assert {shape.first_id() for shape in others} == {NO_ID}


def test_messages_of_the_disk_keep_their_own_times_and_attempts() -> None:
    messages = [Message(TIMESTAMP_NS + i, i * 200, b"%016x" % (i * 7), b"x" * (1 + i)) for i in range(4)]
    records = joined([stored(message) for message in messages])
    recorded = Recorded(records.blob, records.ends)
    assert list(recorded.attempts()) == [0, 200, 400, 600]
    for shape in (recorded, recorded.framed()):
        assert [shape.published_ns(index) for index in range(4)] == [message.timestamp_ns for message in messages]
        assert shape.ids(1, 3) == [message.id for message in messages[1:3]]


def test_a_message_is_found_among_those_that_wait_together_by_its_id() -> None:
    gathered = Gathered()
    for index in range(5):
        gathered.add(lone_frame(published([b"x"])[0], FIRST_ID + 2 * index, TIMESTAMP_NS))
    assert [gathered.index_of(b"%016x" % (FIRST_ID + 2 * index)) for index in range(5)] == list(range(5))
