"""Which answers are compressed, and for whom."""

from __future__ import annotations

import gzip

import pytest

from emberq.http.message import COMPRESS_BYTES, Request, Response, compressed, is_worth_compressing, json, plain, text
from tests.http.site import BIG
from tests.support.raw_http_client import RawClient, request

LONG = "x" * COMPRESS_BYTES


def accepting(encodings: str | None) -> Request:
    return Request("GET", "/", headers={} if encodings is None else {b"accept-encoding": encodings.encode()})


@pytest.mark.parametrize("encodings", ["gzip", "deflate, gzip", "GZIP;q=0.5", "*", "br;q=1.0, *;q=0.1", "gzip; q=1"])
def test_a_long_answer_is_compressed_for_who_accepts_it(encodings: str) -> None:
    assert is_worth_compressing(text(LONG), accepting(encodings))
    assert is_worth_compressing(json(LONG), accepting(encodings))


@pytest.mark.parametrize("encodings", [None, "", "deflate", "gzip;q=0", "gzip; q=0.0, br", "x", "*;q=0", "xgzip"])
def test_nobody_gets_a_compressed_answer_unasked(encodings: str | None) -> None:
    assert not is_worth_compressing(text(LONG), accepting(encodings))


@pytest.mark.parametrize(
    "answer",
    [
        text(LONG[1:]),
        plain(LONG, content_type="application/octet-stream"),
        plain(LONG, content_type=None),
        Response(200, LONG.encode(), content_type="text/css", headers=(("Content-Encoding", "br"),)),
    ],
    ids=["short", "binary", "untyped", "encoded already"],
)
def test_some_answers_are_never_compressed(answer: Response) -> None:
    assert not is_worth_compressing(answer, accepting("gzip"))


@pytest.mark.parametrize("size", [COMPRESS_BYTES, 1_000_000])
async def test_only_the_body_changes(size: int) -> None:
    original = text("x" * size, status=404)
    answer = await compressed(original)
    assert gzip.decompress(answer.body) == original.body
    assert (answer.status, answer.content_type) == (original.status, original.content_type)
    assert answer.headers == (*original.headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))


def test_a_client_that_accepts_gzip_gets_a_shorter_answer(client: RawClient) -> None:
    answer = client.ask("GET", "/big", accept_encoding="gzip, deflate")
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(answer.body) < len(BIG) // 10
    assert gzip.decompress(answer.body).decode() == BIG
    assert client.ask("GET", "/big").text == BIG


def test_compressed_answers_keep_their_place(client: RawClient) -> None:
    client.send(request("GET", "/big", accept_encoding="gzip") + request("GET", "/ping"))
    assert gzip.decompress(client.read_answer().body).decode() == BIG
    assert client.read_answer().body == b"OK"
