"""Frames, from both ends."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire import frame
from emberq.wire.frame import Frame, FrameDecoder, FrameError
from tests.wire.held import held_bytes
from tests.wire.streams import examples, int32

MAX_FRAME_BYTES = 100


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (frame.OK, "00000006 00000000 4f4b"),
        (frame.HEARTBEAT, "0000000f 00000000 5f6865617274626561745f"),
        (frame.CLOSE_WAIT, "0000000e 00000000 434c4f53455f57414954"),
        (frame.response(b""), "00000004 00000000"),
        (frame.error(b"E_BAD_PROTOCOL"), "00000012 00000001 455f4241445f50524f544f434f4c"),
    ],
)
def test_a_frame_is_its_size_its_type_and_its_data(encoded: bytes, expected: str) -> None:
    assert encoded == bytes.fromhex(expected)


def encode(sent: Frame) -> bytes:
    return struct.pack(">ii", 4 + len(sent.data), sent.type) + sent.data


frames = st.builds(Frame, st.sampled_from([0, 1, 2, 3, -1, 2**31 - 1]), st.binary(max_size=MAX_FRAME_BYTES - 4))
frame_lists = st.lists(frames, max_size=6)


@examples(300)
@given(frame_lists, st.lists(st.integers(0, 640), max_size=10))
def test_frames_come_out_whole_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    received: list[Frame] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        received += decoder.feed(stream[start:end])
        assert held_bytes(decoder) < 4 + MAX_FRAME_BYTES
    assert received == sent


@examples(100)
@given(frame_lists)
def test_a_frame_comes_with_its_last_byte(sent: list[Frame]) -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    for expected in sent:
        *before, last = [decoder.feed(bytes([byte])) for byte in encode(expected)]
        assert not any(before)
        assert last == [expected]


@pytest.mark.parametrize("size", [3, 0, -1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1, 0x48545450])
def test_a_size_that_no_frame_has_is_refused_before_any_data(size: int) -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    with pytest.raises(FrameError, match=f"a frame of {size} bytes; expected 4 to 100"):
        decoder.feed(int32(size) + int32(0))


@pytest.mark.parametrize("size", [4, MAX_FRAME_BYTES])
def test_sizes_at_the_limits_are_taken(size: int) -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    assert decoder.feed(int32(size) + int32(2) + b"x" * (size - 4)) == [Frame(2, b"x" * (size - 4))]


def test_what_is_no_frame_stays_no_frame() -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    with pytest.raises(FrameError):
        decoder.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(FrameError):
        decoder.feed(frame.OK)


def test_frames_before_a_wrong_one_are_not_lost() -> None:
    decoder = FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)
    assert decoder.feed(frame.error(b"E_INVALID") + b"HTTP/1.1") == [Frame(frame.ERROR, b"E_INVALID")]
    with pytest.raises(FrameError):
        decoder.feed(b"")
