"""Bodies of /mpub, judged by taking the batches apart again."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.http.message import HttpError
from emberq.nsqd.api.publish import Batch, batch_of_lines, batch_of_records
from tests.support.raw_client import mpub_body

MESSAGES = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20)
LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=20)


def bodies(batch: Batch) -> list[bytes]:
    """The messages of a batch; fails unless sizes and ends agree."""
    blob, ends = batch
    found: list[bytes] = []
    start = 0
    for end in ends:
        (size,) = struct.unpack_from(">i", blob, start)
        assert end == start + 4 + size
        found.append(blob[start + 4 : end])
        start = end
    assert start == len(blob)
    return found


def of_lines(body: bytes, *, max_msg_size: int = 100) -> Batch:
    return batch_of_lines(body, max_msg_size=max_msg_size)


def of_records(body: bytes, *, max_msg_size: int = 100, max_body_size: int = 1000) -> Batch:
    return batch_of_records(body, topic="t", max_msg_size=max_msg_size, max_body_size=max_body_size)


@given(LINES)
def test_every_line_that_is_not_empty_is_a_message(lines: list[bytes]) -> None:
    wanted = [line for line in lines if line]
    assert bodies(of_lines(b"\n".join(lines))) == wanted
    assert bodies(of_lines(b"".join(line + b"\n" for line in lines))) == wanted


def test_a_carriage_return_is_part_of_its_message() -> None:
    assert bodies(of_lines(b"a\r\nb\n\r\n")) == [b"a\r", b"b", b"\r"]


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_a_body_without_a_message_is_an_empty_batch(body: bytes) -> None:
    assert bodies(of_lines(body)) == []


def test_lines_of_one_size_end_at_a_range() -> None:
    assert of_lines(b"aa\nbb\ncc\n")[1] == range(6, 19, 6)


def test_a_line_above_the_limit_is_refused() -> None:
    assert bodies(of_lines(b"12345\n1", max_msg_size=5)) == [b"12345", b"1"]
    with pytest.raises(HttpError, match="MSG_TOO_BIG") as refused:
        of_lines(b"1\n123456\n1", max_msg_size=5)
    assert refused.value.status == 413


@given(MESSAGES)
def test_records_are_taken_as_they_are(messages: list[bytes]) -> None:
    assert bodies(of_records(mpub_body(messages))) == messages


@given(MESSAGES, st.integers(min_value=1))
def test_records_cut_short_are_refused(messages: list[bytes], missing: int) -> None:
    whole = mpub_body(messages)
    with pytest.raises(HttpError, match="BAD_") as refused:
        of_records(whole[: -(missing % len(whole) or 1)])
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "BAD_BODY"),
        (b"\x00\x00", "BAD_BODY"),
        (struct.pack(">i", 0), "BAD_BODY"),
        (struct.pack(">i", -1), "BAD_BODY"),
        (struct.pack(">i", 200), "BAD_BODY"),  # more than a body of 1000 bytes can hold
        (struct.pack(">i", 1), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 5) + b"abc", "BAD_MESSAGE"),
        (mpub_body([b"a", b""]), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -1), "BAD_MESSAGE"),
        (mpub_body([b"x" * 101]), "BAD_MESSAGE"),
    ],
)
def test_a_record_or_count_that_cannot_be_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(HttpError, match=complaint) as refused:
        of_records(body)
    assert refused.value.status == 413


def test_what_follows_the_last_record_is_ignored() -> None:
    assert bodies(of_records(mpub_body([b"one", b"three"]) + b"rest")) == [b"one", b"three"]
