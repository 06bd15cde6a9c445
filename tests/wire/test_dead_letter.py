"""Dead letters tell what they were told, whatever the body; nothing else is taken for one."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.dead_letter import DeadLetter, RedriveTarget, decode_dead_letter, encode_dead_letter, target_of

LETTER = DeadLetter(
    topic="orders",
    channel="billing",
    id="0a1b2c3d4e5f6071",
    attempts=5,
    timestamp_ns=1_700_000_000_000_000_000,
    reason="not finished in 5 attempts",
    body=b"hello",
)


def document_of(letter: DeadLetter, *, max_bytes: int = 10_000) -> dict[str, Any]:
    encoded = encode_dead_letter(letter, max_bytes=max_bytes)
    assert encoded is not None
    assert len(encoded) <= max_bytes
    document: dict[str, Any] = json.loads(encoded)
    return document


def test_a_letter_can_be_read_without_us() -> None:
    assert document_of(LETTER) == {
        "emberq_dead_letter": 1,
        "topic": "orders",
        "channel": "billing",
        "id": "0a1b2c3d4e5f6071",
        "attempts": 5,
        "timestamp_ns": 1_700_000_000_000_000_000,
        "reason": "not finished in 5 attempts",
        "body": "hello",
    }


def test_a_body_of_json_stays_readable() -> None:
    assert document_of(replace(LETTER, body=b'{"name":"Zo\xc3\xab"}'))["body"] == '{"name":"Zoë"}'


@pytest.mark.parametrize("body", [b"\xff\x00", b"\x01" * 100, b"\xed\xa0\x80"])
def test_what_is_no_text_or_would_grow_too_much_is_in_base64(body: bytes) -> None:
    document = document_of(replace(LETTER, body=body))
    assert "body" not in document
    assert base64.b64decode(document["body_base64"]) == body


def test_base64_is_tried_when_text_is_too_long() -> None:
    letter = replace(LETTER, body=b'"' * 300)
    assert "body" in document_of(letter, max_bytes=1000)
    assert "body_base64" in document_of(letter, max_bytes=700)


def test_letters_are_as_readable_as_what_they_tell() -> None:
    encoded = encode_dead_letter(replace(LETTER, reason="für Zoë", body="Zoë".encode()), max_bytes=10_000)
    assert encoded is not None
    assert '"reason":"für Zoë","body":"Zoë"'.encode() in encoded


@pytest.mark.parametrize(("body", "field"), [(b"aaaa\x01", "body"), (b"aaa\x01", "body_base64")])
def test_text_may_be_twice_as_long_as_the_body(body: bytes, field: str) -> None:
    assert field in document_of(replace(LETTER, body=body))


def test_a_letter_may_be_as_long_as_allowed() -> None:
    encoded = encode_dead_letter(LETTER, max_bytes=10_000)
    assert encoded is not None
    assert encode_dead_letter(LETTER, max_bytes=len(encoded)) == encoded
    assert encode_dead_letter(LETTER, max_bytes=len(encoded) - 1) is None


def test_there_is_no_letter_longer_than_allowed() -> None:
    assert encode_dead_letter(replace(LETTER, body=b"x" * 1000), max_bytes=1000) is None


@given(st.binary(min_size=1, max_size=300) | st.text(min_size=1, max_size=300).map(lambda text: text.encode()))
def test_what_goes_in_comes_out_and_at_most_doubles(body: bytes) -> None:
    letter = replace(LETTER, body=body)
    encoded = encode_dead_letter(letter, max_bytes=10_000)
    assert encoded is not None
    assert decode_dead_letter(encoded) == letter
    assert len(encoded) <= 2 * len(body) + 300


@pytest.mark.parametrize(
    "changed",
    [
        {"emberq_dead_letter": 2},
        {"emberq_dead_letter": None},
        {"topic": 7},
        {"attempts": "5"},
        {"attempts": True},
        {"reason": None},
        {"body": None},
        {"body": 5},
        {"body": None, "body_base64": "*"},
        {"body": "\ud800"},
    ],
)
def test_what_lacks_something_is_no_letter(changed: dict[str, Any]) -> None:
    document = {**document_of(LETTER), **changed}
    assert decode_dead_letter(json.dumps(document).encode()) is None


@pytest.mark.parametrize("data", [b"", b"hello", b"[]", b'"emberq_dead_letter"', b'{"emberq_dead_letter":1', b"\xff"])
def test_other_bodies_are_no_letters(data: bytes) -> None:
    assert decode_dead_letter(data) is None


def test_a_letter_goes_back_to_the_topic_it_names_or_to_the_one_asked_for() -> None:
    encoded = encode_dead_letter(LETTER, max_bytes=10_000)
    assert encoded is not None
    assert target_of(encoded, to=None) == RedriveTarget("orders", b"hello")
    assert target_of(encoded, to="again") == RedriveTarget("again", b"hello")


def test_a_message_without_an_envelope_goes_only_to_the_topic_asked_for() -> None:
    assert target_of(b"hello", to=None) is None
    assert target_of(b"hello", to="again") == RedriveTarget("again", b"hello")


def test_a_letter_of_an_impossible_topic_has_no_target() -> None:
    encoded = encode_dead_letter(replace(LETTER, topic="no topic!"), max_bytes=10_000)
    assert encoded is not None
    assert target_of(encoded, to=None) is None
