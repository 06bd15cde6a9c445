"""Headers around a body: there and back, told from bodies that only look like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.envelope import MARK, MAX_HEADER_BYTES, decode, encode

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(headers=st.dictionaries(TEXTS, TEXTS, max_size=5), body=st.binary(max_size=100))
def test_headers_and_body_come_back(headers: dict[str, str], body: bytes) -> None:
    assert decode(encode(headers, body)) == (headers, body)


def test_the_bytes_are_those_that_are_written_down() -> None:
    assert encode({"a": "ä"}, b"body") == b'\x00NSQH\x01\x00\x00\x00\x0a{"a":"\xc3\xa4"}body'


@given(st.binary(max_size=60))
def test_a_message_without_headers_is_all_body(message: bytes) -> None:
    assert message.startswith(MARK) or decode(message) == ({}, message)


@given(st.binary(max_size=60))
def test_what_begins_like_headers_never_fails(rest: bytes) -> None:
    headers, body = decode(MARK + rest)
    assert headers == {} or (MARK + rest).endswith(body)


@pytest.mark.parametrize(
    "message",
    [
        MARK,
        MARK + b"\x00\x00\x00",
        MARK + b"\x00\x00\x00\x03{}",
        MARK + b"\xff\xff\xff\xff{}body",
        MARK + b"\x00\x00\x00\x02[]body",
        MARK + b'\x00\x00\x00\x07{"a":1}body',
        MARK + b"\x00\x00\x00\x02\xff\xffbody",
        b"\x00NSQH\x02\x00\x00\x00\x02{}body",
    ],
)
def test_what_is_no_envelope_is_a_body(message: bytes) -> None:
    assert decode(message) == ({}, message)


def test_headers_are_texts_and_not_endless() -> None:
    with pytest.raises(TypeError, match="header 'a' is 1; names and values of headers are texts"):
        encode({"a": 1}, b"")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="must not take more than 65536"):
        encode({"a": "x" * MAX_HEADER_BYTES}, b"")
