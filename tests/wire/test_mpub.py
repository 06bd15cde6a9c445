"""The body of an MPUB: of one size or of many, at once or in pieces, honest or not."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.command import Command, Publish
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import CommandLimits
from emberq.wire.mpub import messages_of
from tests.wire.playback import as_seen_in_pieces, bodies_of, commands_in, play
from tests.wire.reference_decoder import End, transcribe
from tests.wire.streams import all_sizes, body_size, examples, honest_mpub, int32, mpub, sized

LIMITS = CommandLimits(max_msg_size=100, max_body_size=1000)


def decode(*pieces: bytes) -> list[Command]:
    decoder = CommandDecoder(LIMITS)
    found: list[Command] = []
    for piece in (b"  V2", *pieces):
        decoder.feed(piece)
        found += commands_in(decoder)
    return found


def only_publish(*pieces: bytes) -> Publish:
    [found] = decode(*pieces)
    assert isinstance(found, Publish)
    return found


def single_bytes(stream: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in stream]


@pytest.mark.conformance(54)
def test_messages_of_one_size_are_kept_as_they_came() -> None:
    sent = honest_mpub(b"t", [40] * 5)
    expected = Publish(b"MPUB", "t", sent[15:], range(44, 221, 44), 1)
    assert only_publish(sent) == expected
    assert only_publish(*single_bytes(sent)) == expected


def test_messages_of_many_sizes_are_kept_as_they_came() -> None:
    sent = honest_mpub(b"t", [1, 40, 2])
    expected = Publish(b"MPUB", "t", sent[15:], array("I", [5, 49, 55]), 1)
    assert only_publish(sent) == expected
    assert only_publish(*single_bytes(sent)) == expected


@pytest.mark.parametrize("sizes", [[10, 5, 15], [2, 1, 3], [3, 1, 5, 3]])
def test_sizes_that_add_up_as_if_they_were_equal_are_told_apart(sizes: list[int]) -> None:
    sent = honest_mpub(b"t", sizes)
    for pieces in ([sent], single_bytes(sent)):
        found = only_publish(*pieces)
        assert [len(body) for body in bodies_of(found.blob, found.ends)] == sizes


@examples(150)
@given(all_sizes, st.integers(0, 200))
def test_what_arrives_behind_a_body_is_the_next_command(sizes: list[int], cut: int) -> None:
    stream = b"  V2" + honest_mpub(b"t", sizes) + honest_mpub(b"u", sizes) + b"NOP\n"
    pieces = [stream[:cut], stream[cut:]]
    assert play(pieces, LIMITS) == as_seen_in_pieces(transcribe(stream, LIMITS), pieces)


@pytest.mark.conformance(61)
def test_a_body_may_hold_more_than_it_declares() -> None:
    for sizes in ([1, 1], [1, 2]):
        sent = mpub(b"t", sizes, count=2, declared=4)
        for pieces in ([sent], single_bytes(sent)):
            assert len(only_publish(*pieces).ends) == 2


@pytest.mark.conformance(62)
@pytest.mark.parametrize("sizes", [[3, 3], [3, 4]])
def test_a_body_may_hold_less_than_it_declares(sizes: list[int]) -> None:
    stream = b"  V2" + mpub(b"t", sizes, count=2, declared=500) + b"NOP\nXX\n"
    for pieces in ([stream], single_bytes(stream)):
        found = play(pieces, LIMITS)
        assert [name for name, *_ in found.commands] == [b"MPUB", b"NOP"]
        assert found.end.data == b"E_INVALID invalid command XX"


def test_a_declared_size_is_never_waited_for() -> None:
    sent = mpub(b"t", [10, 2], count=2, declared=4 + 2 * 14)
    assert len(only_publish(sent).ends) == 2
    assert play([b"  V2" + sent], LIMITS).end == End(None)


def test_a_wrong_size_is_refused_although_the_declared_size_fits_the_first_message() -> None:
    stream = b"  V2MPUB t\n" + int32(4 + 3 * 14) + int32(3) + sized(b"x" * 10) + int32(0)
    expected = End(b"E_BAD_MESSAGE MPUB invalid message(1) body size 0", "t", len(stream))
    assert play(single_bytes(stream), LIMITS).end == expected


def test_a_refused_body_stays_refused() -> None:
    decoder = CommandDecoder(LIMITS)
    decoder.feed(b"  V2" + mpub(b"t", [1, 2, 0, 1], count=4, declared=50))
    for _ in range(2):
        with pytest.raises(FatalError, match=r"^E_BAD_MESSAGE MPUB invalid message\(2\) body size 0$"):
            decoder.next_command()


def test_the_largest_body_is_taken() -> None:
    sizes = [100] * 9 + [56]
    assert body_size(sizes) == 1000
    assert len(only_publish(mpub(b"t", sizes, count=10, declared=4)).ends) == 10
    with pytest.raises(FatalError, match=r"^E_BAD_BODY MPUB body too big 1001 > 1000$"):
        decode(mpub(b"t", [*sizes[:-1], 57], count=10, declared=4))


def test_equal_messages_are_held_to_the_limit_of_a_body_as_well() -> None:
    assert len(only_publish(mpub(b"t", [1] * 199, count=199, declared=4)).ends) == 199
    with pytest.raises(FatalError, match=r"^E_BAD_BODY MPUB body too big 1040 > 1000$"):
        decode(mpub(b"t", [70] * 14, count=14, declared=4))


def test_equal_messages_may_not_go_beyond_the_limit_by_the_size_of_the_count() -> None:
    sent = mpub(b"t", [96] * 10, count=10, declared=4)
    for pieces in ([sent], single_bytes(sent)):
        with pytest.raises(FatalError, match=r"^E_BAD_BODY MPUB body too big 1004 > 1000$"):
            decode(*pieces)


# What is wrong with a body.


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (int32(0), b"E_BAD_BODY MPUB invalid body size 0"),
        (int32(-1), b"E_BAD_BODY MPUB invalid body size -1"),
        (int32(1001), b"E_BAD_BODY MPUB body too big 1001 > 1000"),
        (int32(8) + int32(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (int32(8) + int32(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        (int32(8) + int32(200), b"E_BAD_BODY MPUB invalid message count 200"),
        (int32(8) + int32(1) + int32(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (int32(8) + int32(1) + int32(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (int32(8) + int32(2) + sized(b"x") + int32(-5), b"E_BAD_MESSAGE MPUB invalid message(1) body size -5"),
        (int32(8) + int32(2) + sized(b"x") + int32(101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ],
)
def test_a_body_is_refused_with_the_first_bytes_that_are_wrong(body: bytes, expected: bytes) -> None:
    stream = b"  V2MPUB t\n" + body
    assert play([stream], LIMITS).end == End(expected, "t", len(stream))
    assert play(single_bytes(stream), LIMITS).end == End(expected, "t", len(stream))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\0\0\0", b"E_BAD_BODY MPUB failed to read body size"),
        (int32(1), b"E_BAD_BODY MPUB failed to read message count"),
        (int32(8), b"E_BAD_BODY MPUB failed to read message count"),
        (int32(8) + b"\0\0\0", b"E_BAD_BODY MPUB failed to read message count"),
        (int32(8) + int32(199), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (int32(8) + int32(9) + sized(b"x") * 2, b"E_BAD_MESSAGE MPUB failed to read message(2) body size"),
        (int32(8) + int32(9) + sized(b"x") * 2 + b"\0\0\0", b"E_BAD_MESSAGE MPUB failed to read message(2) body size"),
        (int32(8) + int32(9) + sized(b"x") + sized(b"yy"), b"E_BAD_MESSAGE MPUB failed to read message(2) body size"),
        (int32(8) + int32(9) + int32(5), b"E_BAD_MESSAGE MPUB failed to read message body"),
        (int32(8) + int32(9) + sized(b"x") * 3 + int32(7), b"E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
def test_a_stream_that_ends_within_a_body_says_what_was_awaited(body: bytes, expected: bytes) -> None:
    stream = b"  V2MPUB t\n" + body
    for pieces in ([stream], single_bytes(stream)):
        decoder = CommandDecoder(LIMITS)
        for piece in pieces:
            assert decoder.receive(piece) is None
        with pytest.raises(FatalError) as refusal:
            decoder.eof()
        assert refusal.value.data == expected


# A body that is all there, as HTTP has it.


def messages_in(body: bytes) -> tuple[bytes, list[int]]:
    blob, ends = messages_of(body, topic="t", max_msg_size=100, max_body_size=1000)
    return blob, list(ends)


@examples(100)
@given(all_sizes, st.sampled_from([b"", b"x", b"what is behind is ignored"]))
def test_the_messages_of_a_whole_body_are_those_of_the_command(sizes: list[int], behind: bytes) -> None:
    sent = honest_mpub(b"t", sizes)
    command = only_publish(sent)
    assert messages_in(sent[11:] + behind) == (command.blob, list(command.ends))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", b"E_BAD_BODY MPUB invalid body size 0"),
        (b"\0\0\0", b"E_BAD_BODY MPUB failed to read message count"),
        (int32(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (int32(-1), b"E_BAD_BODY MPUB invalid message count -1"),
        (int32(1), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (int32(2) + sized(b"x") + b"\0\0\0", b"E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (int32(1) + int32(2) + b"x", b"E_BAD_MESSAGE MPUB failed to read message body"),
        (int32(1) + sized(b"x" * 101), b"E_BAD_MESSAGE MPUB message too big 101 > 100"),
        (int32(9) + b"x" * 997, b"E_BAD_BODY MPUB body too big 1001 > 1000"),
    ],
)
def test_a_whole_body_is_refused_for_what_is_wrong_or_missing(body: bytes, expected: bytes) -> None:
    with pytest.raises(FatalError) as refusal:
        messages_in(body)
    assert (refusal.value.data, refusal.value.topic) == (expected, "t")


@pytest.mark.parametrize("sizes", [[1], [3, 3], [1, 2, 3]])
def test_a_body_ends_wherever_its_packets_are_cut(sizes: list[int]) -> None:
    sent = honest_mpub(b"t", sizes)
    expected = only_publish(sent)
    for first in range(1, len(sent)):
        for second in range(first + 1, len(sent)):
            assert only_publish(sent[:first], sent[first:second], sent[second:]) == expected
