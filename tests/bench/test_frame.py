"""The load generator's view of the protocol: runs of frames, their FINs, and what does not belong there."""

from __future__ import annotations

import pytest

from bench import frame
from bench.failure import LoadFailure, ServerRefused

HEARTBEAT_FRAME = frame.response(frame.HEARTBEAT)


def message(number: int, *, attempts: int = 1, body: bytes | None = None) -> bytes:
    """A message frame whose id tells its number."""
    body = frame.bodies(1)[0] if body is None else body
    data = (1).to_bytes(8, "big") + attempts.to_bytes(2, "big") + b"%016x" % number + body
    return frame.HEADER.pack(len(data) + 4, frame.MESSAGE) + data


def fin(number: int) -> bytes:
    return b"FIN %016x\n" % number


def run_length(data: bytes, *, start: int = 0) -> int:
    return frame.message_run(bytearray(data), start=start, end=len(data))


def test_an_mpub_is_laid_out_as_the_protocol_says() -> None:
    assert frame.mpub("t", [b"a", b"bb"]) == (
        b"MPUB t\n\x00\x00\x00\x0f\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x02bb"
    )


def test_a_pub_is_laid_out_as_the_protocol_says() -> None:
    assert frame.pub("t", b"hi") == b"PUB t\n\x00\x00\x00\x02hi"


def test_bodies_have_the_measured_size_and_are_the_same_in_every_run() -> None:
    assert {len(body) for body in frame.bodies(5)} == {frame.BODY_BYTES}
    assert frame.bodies(5) == frame.bodies(5)


def test_a_run_counts_complete_messages_only() -> None:
    data = b"".join(message(number) for number in range(3))
    assert run_length(data) == 3
    assert run_length(data[:-1]) == 2
    assert run_length(b"") == 0


def test_a_run_ends_where_something_else_stands_between_messages() -> None:
    assert run_length(message(1) + message(2) + HEARTBEAT_FRAME + message(3) + message(4)) == 2
    assert run_length(HEARTBEAT_FRAME + message(1) + message(2)) == 0


def test_a_message_of_another_size_ends_the_run() -> None:
    assert run_length(message(1) + message(2, body=b"short") + message(3)) == 1


def test_a_run_may_begin_within_the_buffer() -> None:
    data = HEARTBEAT_FRAME + message(1) + message(2)
    assert run_length(data, start=len(HEARTBEAT_FRAME)) == 2


def test_the_fins_of_a_run_name_its_ids_in_order() -> None:
    data = bytearray(HEARTBEAT_FRAME + b"".join(message(number) for number in (7, 8, 0xABCDEF)))
    fins = frame.fin_commands(data, start=len(HEARTBEAT_FRAME), count=3)
    assert fins == fin(7) + fin(8) + fin(0xABCDEF)


@pytest.mark.parametrize(("attempts", "repeats"), [(1, 0), (2, 1), (257, 1), (0, 1)])
def test_a_message_that_comes_again_is_noticed(attempts: int, repeats: int) -> None:
    data = bytearray(message(1) + message(2, attempts=attempts) + message(3))
    assert frame.redelivered(data, start=0, count=3) == repeats


def test_frames_are_walked_one_by_one() -> None:
    data = HEARTBEAT_FRAME + frame.OK_FRAME
    assert frame.next_frame(data, start=0, end=len(data)) == (frame.RESPONSE, frame.HEARTBEAT, len(HEARTBEAT_FRAME))
    assert frame.next_frame(data, start=len(HEARTBEAT_FRAME), end=len(data) - 1) is None
    assert frame.next_frame(data, start=len(data), end=len(data)) is None


def test_a_frame_of_impossible_size_is_a_failure_and_not_a_wait() -> None:
    with pytest.raises(LoadFailure, match="frame of -1 bytes"):
        frame.next_frame(b"\xff\xff\xff\xff\x00\x00\x00\x00", start=0, end=8)


def test_oks_are_counted_however_the_stream_is_cut() -> None:
    stream = frame.OK_FRAME * 3 + HEARTBEAT_FRAME + frame.OK_FRAME * 2
    for size in range(1, len(stream) + 1):
        counter = frame.OkCounter()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert sum(counter.feed(piece) for piece in pieces) == 5


def test_an_error_frame_is_reported_with_its_text() -> None:
    error = frame.HEADER.pack(4 + len(b"E_BAD_TOPIC no"), frame.ERROR) + b"E_BAD_TOPIC no"
    with pytest.raises(ServerRefused, match="nsqd answered E_BAD_TOPIC no"):
        frame.OkCounter().feed(frame.OK_FRAME + error)
