"""Where answers end; bytes in, events out."""

from __future__ import annotations

import pytest

from emberq.http.client import QueryConnection

CUT_OFF = "the connection was closed before the answer was complete"


class Recorder(QueryConnection):
    """Notes the status of every answer, and why there was none."""

    def __init__(self) -> None:
        super().__init__(max_body_bytes=1000)
        self.events: list[int | str] = []

    def data_received(self, data: bytes) -> None:
        self._parse(data)

    def _complete(self) -> None:
        self.events.append(self._parser.get_status_code())

    def _fail(self, why: str) -> None:
        self.events.append(why)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", [200]),
        (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", [404]),
        (b"HTTP/1.1 204 None\r\n\r\n", [204]),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", [503]),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n" * 2, [200, 200]),
    ],
)
def test_an_answer_ends_where_its_head_says(data: bytes, events: list[int], piece_bytes: int) -> None:
    reader = Recorder()
    for start in range(0, len(data), piece_bytes):
        reader.data_received(data[start : start + piece_bytes])
    assert reader.events == events


def test_a_body_of_untold_length_ends_with_the_connection() -> None:
    reader = Recorder()
    reader.data_received(b"HTTP/1.1 200 OK\r\n\r\nas long as it lasts")
    assert reader.events == []
    reader.connection_lost(None)
    assert reader.events == [200]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nX: y",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_half_an_answer_is_none(data: bytes) -> None:
    reader = Recorder()
    reader.data_received(data)
    reader.connection_lost(ConnectionResetError())
    assert reader.events == [CUT_OFF]


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"])
def test_what_is_not_http_is_no_answer(data: bytes) -> None:
    reader = Recorder()
    reader.data_received(data)
    assert reader.events[-1] == "the answer is not HTTP"
