"""Frames are found wherever the bytes are cut, and become commands, keys and rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.spark.channel_frames import attempts, finish_commands, keys, rows, times_ns
from emberq.spark.schema import COLUMNS, HEADERS, arrow_schema_of, byte_strings
from emberq.wire import envelope
from emberq.wire.frame import FRAME_HEADER, HEARTBEAT, FrameDecoder, FrameError
from tests.spark.message_frames import HERE, array, frame

MAX_BYTES = 1024


@given(
    st.lists(st.one_of(st.just(None), st.binary(max_size=60)), max_size=12),
    st.lists(st.integers(min_value=0, max_value=1200), max_size=8),
)
def test_frames_are_found_wherever_the_bytes_are_cut(sent: list[bytes | None], cuts: list[int]) -> None:
    frames = [HEARTBEAT if body is None else frame(number, body=body) for number, body in enumerate(sent)]
    data = b"".join(frames)
    decoder = FrameDecoder(max_frame_bytes=MAX_BYTES)
    pieces, lengths, heartbeats = b"", [], 0
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        received = decoder.feed_whole(data[start:end])
        pieces += b"".join(received.pieces)
        lengths += received.lengths
        heartbeats += len(received.others)
    messages = [each for each, body in zip(frames, sent, strict=True) if body is not None]
    assert byte_strings([pieces], lengths).to_pylist() == messages
    assert heartbeats == len(frames) - len(messages)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param((MAX_BYTES + 1, 2), id="too long"),
        pytest.param((29, 2), id="too short for a message"),
        pytest.param((-1, 0), id="no size"),
    ],
)
def test_what_is_no_frame_is_refused(header: tuple[int, int]) -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_BYTES)
    received = decoder.feed_whole(frame(1) + FRAME_HEADER.pack(*header) + bytes(100))
    assert received.pieces == [frame(1)]
    with pytest.raises(FrameError):
        decoder.feed_whole(b"")


def test_the_columns_of_frames() -> None:
    frames = array(frame(1, attempts=3, time_ns=1_500_000_000_123_456_789, body=b""), frame(2, time_ns=77, body=b"two"))
    assert attempts(frames).to_pylist() == [3, 1]
    assert times_ns(frames).to_pylist() == [1_500_000_000_123_456_789, 77]
    assert finish_commands(frames) == b"FIN 0000000000000001\nFIN 0000000000000002\n"
    first, second = rows(frames, HERE).to_pylist()
    assert first == {
        "topic": "t",
        "nsqd": "n:4150",
        "offset": None,
        "id": "0000000000000001",
        "timestamp": datetime(2017, 7, 14, 2, 40, 0, 123456, UTC),
        "attempts": 3,
        "body": b"",
    }
    assert (second["id"], second["body"]) == ("0000000000000002", b"two")


def test_the_rows_of_a_part_are_those_of_the_whole() -> None:
    frames = array(*(frame(number) for number in range(10)))
    part = rows(frames.slice(3, 4), HERE)
    part.validate(full=True)
    assert part.schema == arrow_schema_of(COLUMNS)
    assert part.column("body").to_pylist() == [b"m3", b"m4", b"m5", b"m6"]
    assert finish_commands(frames.slice(9)) == b"FIN 0000000000000009\n"


def test_headers_are_taken_from_the_bodies_if_they_are_asked_for() -> None:
    frames = array(frame(1, body=envelope.encode({"k": "v"}, b"one")), frame(2, body=b"two"))
    found = rows(frames, HERE, ("id", "body", HEADERS))
    assert found.schema == arrow_schema_of(("id", "body", HEADERS))
    assert found.column("body").to_pylist() == [b"one", b"two"]
    assert found.column(HEADERS).to_pylist() == [[("k", "v")], None]


def test_a_key_is_the_same_for_every_delivery_and_for_no_other_message() -> None:
    frames = array(frame(1), frame(1, attempts=2), frame(1, time_ns=9), frame(2, time_ns=1))
    first, again, later, other = keys(frames).to_pylist()
    assert first == again
    assert len({first, later, other}) == 3
