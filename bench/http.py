"""The bytes of HTTP: requests made once, before the clock starts, and answers counted.

    POST /pub?topic=t HTTP/1.1        HTTP/1.1 200 OK
    Host: 127.0.0.1:4151              Content-Length: 2
    Content-Length: 200               Date: Tue, 17 May 2024 09:30:00 GMT
    ...                               ...

    200 bytes                         OK

A server gives the same answer again and again until its clock shows the next second. So an answer is compared with the
one before it, which costs next to nothing, and only one that differs is looked into. An answer says its length in
Content-Length: that is what both ends of a publish agree on, and any other way fails the run.
"""

from __future__ import annotations

import re

from bench.failure import LoadFailure, ServerRefused

_END_OF_HEAD = b"\r\n\r\n"
_LARGEST_HEAD_BYTES = 8192  # far above what any nsqd sends; anything longer means that we lost our place
_LARGEST_BODY_BYTES = 1 << 20
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9}) *\r\n", re.IGNORECASE)


def post(target: str, body: bytes, *, host: str) -> bytes:
    """A request with the headers that client libraries usually send; the connection stays open."""
    head = (
        f"POST {target} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "User-Agent: emberq-bench\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Content-Type: application/octet-stream\r\n"
        "Accept-Encoding: gzip\r\n"
        "\r\n"
    )
    return head.encode() + body


def lines(messages: list[bytes]) -> bytes:
    """The text body of /mpub; `frame.records` makes the binary one. A line feed within a message becomes a blank."""
    return b"\n".join(message.replace(b"\n", b" ") for message in messages)


class AnswerCounter:
    """Counts the answers of status 200 in what one connection receives; any other status is a failure."""

    def __init__(self) -> None:
        self._usual = b""  # the latest answer that came whole and alone
        self._rest = b""  # an incomplete answer at the end of what was fed last

    def feed(self, data: bytes) -> int:
        if data == self._usual and not self._rest:
            return 1
        return self._walk(self._rest + data)

    def _walk(self, data: bytes) -> int:
        count = position = 0
        while (end := _end_of_answer(data, position)) is not None:
            count, position = count + 1, end
        self._rest = data[position:]
        if count == 1 and not self._rest:
            self._usual = data
        return count


def _end_of_answer(data: bytes, start: int) -> int | None:
    """Where the answer at `start` ends; None while it is not complete."""
    head_end = data.find(_END_OF_HEAD, start)
    if head_end < 0:
        if len(data) - start > _LARGEST_HEAD_BYTES:
            raise LoadFailure(f"nsqd sent a head of more than {_LARGEST_HEAD_BYTES} bytes")
        return None
    head = data[start : head_end + len(_END_OF_HEAD)]
    status, length = _STATUS.match(head), _CONTENT_LENGTH.search(head)
    if status is None or length is None or int(length[1]) > _LARGEST_BODY_BYTES:
        raise LoadFailure(f"nsqd sent an answer that is none of ours: {_shown(head)}")
    end = start + len(head) + int(length[1])
    if end > len(data):
        return None
    if status[1] != b"200":
        raise ServerRefused(f"nsqd answered {_shown(status[1] + b' ' + data[start + len(head) : end])}")
    return end


def _shown(data: bytes) -> str:
    return data[:200].decode(errors="backslashreplace")
