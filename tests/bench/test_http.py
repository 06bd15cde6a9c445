"""The load generator's view of HTTP: requests as they are sent, and answers counted exactly."""

from __future__ import annotations

import pytest

from bench.failure import LoadFailure, ServerRefused
from bench.http import AnswerCounter, lines, post


def answer(body: bytes = b"OK", *, status: str = "200 OK", second: int = 0) -> bytes:
    head = f"HTTP/1.1 {status}\r\nDate: Tue, 17 May 2024 09:30:{second:02} GMT\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_a_request_says_where_it_goes_and_how_long_it_is() -> None:
    request_line, *headers, blank, body = post("/pub?topic=t", b"hello", host="q1:4151").split(b"\r\n")
    assert request_line == b"POST /pub?topic=t HTTP/1.1"
    assert {b"Host: q1:4151", b"Content-Length: 5"} <= set(headers)
    assert (blank, body) == (b"", b"hello")


def test_lines_part_messages_and_nothing_else() -> None:
    assert lines([b"a\nb", b"\r", b"c"]) == b"a b\n\r\nc"


def test_answers_are_counted_when_they_come_one_by_one() -> None:
    counter = AnswerCounter()
    fed = [counter.feed(answer(second=second)) for second in (1, 1, 2, 2, 1)]
    assert fed == [1, 1, 1, 1, 1]


def test_answers_are_counted_however_the_stream_is_cut() -> None:
    stream = answer() * 3 + answer(b"") + answer(b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n") + answer() * 2
    for size in range(1, len(stream) + 1):
        counter = AnswerCounter()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert sum(counter.feed(piece) for piece in pieces) == 7


def test_a_usual_answer_behind_half_of_another_is_not_mistaken_for_a_whole_one() -> None:
    counter = AnswerCounter()
    assert counter.feed(answer()) == 1
    assert counter.feed(answer(bytes(1000))[:-500]) == 0
    assert counter.feed(answer()) == 0


def test_the_header_that_tells_the_length_may_be_spelled_in_any_case() -> None:
    assert AnswerCounter().feed(b"HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\nOK") == 1


@pytest.mark.parametrize("status", ["413 Request Entity Too Large", "503 Service Unavailable", "201 Created"])
def test_any_other_status_is_a_failure_that_tells_it(status: str) -> None:
    counter = AnswerCounter()
    counter.feed(answer())
    with pytest.raises(ServerRefused, match=f"nsqd answered {status[:3]} NO"):
        counter.feed(answer(b"NO", status=status))


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 10_000,
    ],
)
def test_what_cannot_be_counted_exactly_is_a_failure_and_not_a_wait(data: bytes) -> None:
    with pytest.raises(LoadFailure, match="nsqd sent"):
        AnswerCounter().feed(data)
