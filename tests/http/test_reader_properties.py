"""Requests are answered the same way in whatever pieces they come, and nothing a client sends can hurt."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.playback import Played, Stage, damaged, damages, examples, expected, final_answers, pieces_of, streams
from tests.support.raw_http_client import request

MIB = 1024 * 1024


@examples(300)
@given(stream=streams, cuts=st.lists(st.integers(0, 1 << 20), max_size=30), fills_up=st.booleans())
async def test_any_pieces_of_any_stream_of_requests_give_the_same_answers(
    stream: list[Played], cuts: list[int], fills_up: bool
) -> None:
    data = b"".join(played.data for played in stream)
    wanted = list(expected(stream))
    stage = Stage()
    for pieces in ([data], pieces_of(data, cuts)):
        transport = await stage.play(pieces, fills_up=fills_up)
        answers = final_answers(transport.written)
        assert [answer.status for answer in answers] == [played.status for played in wanted]
        assert all(played.fits(answer) for played, answer in zip(wanted, answers, strict=True))
        assert transport.has_ended == wanted[-1].is_last
        await stage.leave(transport)


@examples(50)
@given(stream=streams)
async def test_single_bytes_give_the_same_answers(stream: list[Played]) -> None:
    data = b"".join(played.data for played in stream)[:4000]
    whole = await Stage().play([data])
    bytewise = await Stage().play([bytes([byte]) for byte in data])
    assert final_answers(whole.written) == final_answers(bytewise.written)


@examples(300)
@given(stream=streams, damage=damages, cuts=st.lists(st.integers(0, 1 << 20), max_size=5))
async def test_a_damaged_stream_is_answered_with_well_formed_answers(
    stream: list[Played], damage: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    transport = await Stage().play(pieces_of(damaged(stream, damage), cuts))
    assert all(100 <= answer.status < 600 for answer in final_answers(transport.written))


@examples(200)
@given(pieces=st.lists(st.binary(max_size=200), max_size=20))
async def test_random_bytes_are_refused_or_ignored(pieces: list[bytes]) -> None:
    transport = await Stage().play(pieces)
    assert all(400 <= answer.status < 600 for answer in final_answers(transport.written))


CHUNKED = request("POST", "/echo", content_length="", transfer_encoding="chunked")


@pytest.mark.parametrize(
    ("start", "filler"),
    [
        pytest.param(b"", b"\r\n", id="blank lines"),
        pytest.param(b"GET /", b"x", id="target"),
        pytest.param(b"GET /ping HTTP/1.1\r\n", b"x", id="header name"),
        pytest.param(b"GET /ping HTTP/1.1\r\nX:", b"x", id="header value"),
        pytest.param(b"GET /ping HTTP/1.1\r\nX:", b" ", id="blanks in a header"),
        pytest.param(b"GET /ping HTTP/1.1\r\n", b"X: y\r\n", id="headers"),
        pytest.param(CHUNKED, b"0", id="zeros of a chunk's size"),
        pytest.param(CHUNKED + b"1;", b"x", id="chunk extension"),
        pytest.param(CHUNKED + b"0\r\n", b"X: y\r\n", id="trailers"),
        pytest.param(CHUNKED + b"0\r\nX:", b"y", id="one trailer"),
        pytest.param(CHUNKED, b"1\r\nx\r\n", id="small chunks"),
        pytest.param(request("POST", "/echo", content_length="1000000000"), b"x", id="body too long"),
        pytest.param(request("POST", "/nowhere", content_length="1000000000"), b"x", id="body of a refused request"),
        pytest.param(request("GET", "/gate"), request("GET", "/ping"), id="requests behind a slow one"),
        pytest.param(b"", request("GET", "/query?name=x", x_long="y" * 500), id="requests"),
    ],
)
async def test_no_stream_without_end_fills_the_memory(start: bytes, filler: bytes) -> None:
    """Eight megabytes of it, or as much as the server reads."""
    stage = Stage()
    transport = await stage.play([start])
    protocol = transport.get_protocol()
    piece = filler * (16_384 // len(filler) + 1)
    tracemalloc.start()
    for _ in range(8 * MIB // len(piece)):
        if transport.is_paused or transport.is_closing():
            break
        protocol.data_received(piece)
        transport.written = b""
    await asyncio.sleep(0)
    transport.written = b""
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await stage.leave(transport)
    assert held_bytes < MIB
