"""Frames, from both ends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire import frame
from emberq.wire.frame import (
    BODY_OFFSET,
    ERROR,
    FRAME_HEADER,
    MAX_ANSWER_BYTES,
    MESSAGE,
    RESPONSE,
    Frame,
    FrameDecoder,
    FrameError,
    Received,
    WholeMessages,
    WireMessage,
    encode_message,
)
from tests.wire.held import held_bytes, memory_bytes
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


Sent = Frame | WireMessage


def encode(sent: Sent) -> bytes:
    frame_type, data = (frame.MESSAGE, encode_message(sent)) if isinstance(sent, WireMessage) else sent
    return struct.pack(">ii", 4 + len(data), frame_type) + data


others = st.builds(Frame, st.sampled_from([0, 1, 3, -1, 2**31 - 1]), st.binary(max_size=MAX_FRAME_BYTES - 4))
messages = st.builds(
    WireMessage,
    timestamp_ns=st.integers(-(2**63), 2**63 - 1),
    attempts=st.integers(0, 0xFFFF),
    id=st.binary(min_size=16, max_size=16),
    body=st.binary(max_size=MAX_FRAME_BYTES - 4 - BODY_OFFSET),
)
sent_lists = st.lists(others | messages, max_size=6)


def as_received(sent: Iterable[Sent]) -> Received:
    """What the other end should see."""
    sent = list(sent)
    return Received(
        [each for each in sent if isinstance(each, WireMessage)], [each for each in sent if isinstance(each, Frame)]
    )


def make_decoder() -> FrameDecoder:
    return FrameDecoder(max_frame_bytes=MAX_FRAME_BYTES)


@examples(300)
@given(sent_lists, st.lists(st.integers(0, 640), max_size=10))
def test_frames_come_out_whole_however_they_are_cut(sent: list[Sent], cuts: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder = make_decoder()
    received = Received([], [])
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        messages, others = decoder.feed(stream[start:end])
        received.messages.extend(messages)
        received.others.extend(others)
        assert held_bytes(decoder) < 4 + MAX_FRAME_BYTES
    assert received == as_received(sent)


@examples(100)
@given(sent_lists)
def test_a_frame_comes_with_its_last_byte(sent: list[Sent]) -> None:
    decoder = make_decoder()
    for expected in sent:
        *before, last = [decoder.feed(bytes([byte])) for byte in encode(expected)]
        assert not any(any(received) for received in before)
        assert last == as_received([expected])


@pytest.mark.parametrize("size", [3, 0, -1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1, 0x48545450])
def test_a_size_that_no_frame_has_is_refused_before_any_data(size: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {size} bytes and type 0; expected 4 to 100 bytes"):
        make_decoder().feed(int32(size) + int32(0))


@pytest.mark.parametrize("size", [4, MAX_FRAME_BYTES])
def test_sizes_at_the_limits_are_taken(size: int) -> None:
    data = b"x" * (size - 4)
    assert make_decoder().feed(int32(size) + int32(1) + data) == Received([], [Frame(1, data)])


def test_a_header_without_a_body_is_a_message() -> None:
    sent = WireMessage(timestamp_ns=1, attempts=2, id=b"189b226c92669000", body=b"")
    assert make_decoder().feed(encode(sent)) == Received([sent], [])


@pytest.mark.parametrize("length", [0, 1, BODY_OFFSET - 1])
def test_less_than_a_header_is_no_message(length: int) -> None:
    short = encode(Frame(frame.MESSAGE, b"x" * length))
    with pytest.raises(FrameError, match=f"a frame of {4 + length} bytes and type 2; expected 30 to 100 bytes"):
        make_decoder().feed(short + frame.OK * 9)


def test_a_message_beyond_the_limit_is_refused_though_it_is_all_there() -> None:
    with pytest.raises(FrameError, match="a frame of 101 bytes and type 2; expected 30 to 100 bytes"):
        make_decoder().feed(encode(Frame(frame.MESSAGE, b"x" * (MAX_FRAME_BYTES - 3))))


@pytest.mark.parametrize("feed", [FrameDecoder.feed, FrameDecoder.feed_whole])
def test_a_frame_that_comes_in_tiny_pieces_takes_no_more_memory_than_it_holds(
    feed: Callable[[FrameDecoder, bytes], object],
) -> None:
    decoder = FrameDecoder(max_frame_bytes=1_000_000)
    feed(decoder, FRAME_HEADER.pack(1_000_000, MESSAGE))
    for number in range(100_000):
        feed(decoder, number.to_bytes(3, "big"))  # no two alike, as Python may share those
    assert memory_bytes(decoder) < 3 * 300_000


@pytest.mark.parametrize("frame_type", [RESPONSE, ERROR])
def test_only_messages_may_be_very_long(frame_type: int) -> None:
    decoder = FrameDecoder(max_frame_bytes=2 * MAX_ANSWER_BYTES)
    assert decoder.feed(FRAME_HEADER.pack(2 * MAX_ANSWER_BYTES, MESSAGE)) == Received([], [])
    decoder = FrameDecoder(max_frame_bytes=2 * MAX_ANSWER_BYTES)
    longest = bytes(MAX_ANSWER_BYTES - 4)
    assert decoder.feed(FRAME_HEADER.pack(MAX_ANSWER_BYTES, frame_type) + longest).others == [
        Frame(frame_type, longest)
    ]
    with pytest.raises(FrameError, match=f"expected 4 to {MAX_ANSWER_BYTES} bytes"):
        decoder.feed(FRAME_HEADER.pack(MAX_ANSWER_BYTES + 1, frame_type))


def test_what_is_no_frame_stays_no_frame() -> None:
    decoder = make_decoder()
    with pytest.raises(FrameError):
        decoder.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(FrameError):
        decoder.feed(frame.OK)


def test_frames_before_a_wrong_one_are_not_lost() -> None:
    decoder = make_decoder()
    assert decoder.feed(frame.error(b"E_INVALID") + b"HTTP/1.1") == Received([], [Frame(frame.ERROR, b"E_INVALID")])
    with pytest.raises(FrameError):
        decoder.feed(b"")


# Messages that are left in their frames.


@examples(300)
@given(sent_lists, st.lists(st.integers(0, 640), max_size=10))
def test_messages_left_in_their_frames_come_out_whole_however_they_are_cut(sent: list[Sent], cuts: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    decoder = make_decoder()
    pieces, lengths, others = b"", list[int](), list[Frame]()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(stream)], strict=True):
        received = decoder.feed_whole(stream[start:end])
        assert sum(map(len, received.pieces)) == sum(received.lengths)
        pieces += b"".join(received.pieces)
        lengths += received.lengths
        others += received.others
        assert held_bytes(decoder) < 4 + MAX_FRAME_BYTES
    encoded = [encode(each) for each in sent if isinstance(each, WireMessage)]
    assert (pieces, lengths) == (b"".join(encoded), list(map(len, encoded)))
    assert others == as_received(sent).others


def test_messages_that_follow_each_other_are_one_piece() -> None:
    message = WireMessage(timestamp_ns=1, attempts=2, id=b"189b226c92669000", body=b"body")
    one = encode(message)
    assert make_decoder().feed_whole(one * 3 + frame.OK + one) == WholeMessages(
        [one * 3, one], [len(one)] * 4, [Frame(frame.RESPONSE, b"OK")]
    )


@pytest.mark.parametrize("body_bytes", [0, MAX_FRAME_BYTES - 4 - BODY_OFFSET])
def test_messages_of_the_least_and_the_largest_size_are_left_whole(body_bytes: int) -> None:
    sent = encode(WireMessage(timestamp_ns=1, attempts=2, id=b"189b226c92669000", body=b"x" * body_bytes))
    assert make_decoder().feed_whole(sent) == WholeMessages([sent], [len(sent)], [])


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 29])
def test_what_is_no_message_is_not_left_whole_either(size: int) -> None:
    decoder = make_decoder()
    assert decoder.feed_whole(frame.OK + int32(size) + int32(2) + b"x" * size).others == [Frame(0, b"OK")]
    with pytest.raises(FrameError):
        decoder.feed_whole(b"")
