"""A body in JSON: as text where it is text, else in base64."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.parameter import body_members, parse_body


def test_text_is_shown_as_text_and_other_bytes_in_base64() -> None:
    assert body_members("für".encode()) == {"body": "für"}
    assert body_members(b"\xff\x00") == {"body_base64": "/wA="}


@given(st.binary(max_size=40))
def test_a_body_comes_back_as_it_was(body: bytes) -> None:
    assert parse_body(body_members(body)) == body


@pytest.mark.parametrize(
    "document",
    [{}, {"body": 7}, {"body": "\ud800"}, {"body_base64": "no base64!"}, {"body_base64": "ÄÖÜ="}, {"body_base64": 7}],
)
def test_an_object_without_a_body_has_none(document: dict[str, Any]) -> None:
    assert parse_body(document) is None
