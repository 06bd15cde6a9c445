"""What nsq_to_nsq passes on of JSON messages."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.tools.nsq_to_nsq import Dropped, FieldMissingError, JsonFilter


def passes(body: bytes, *, field: str = "f", value: str = "") -> bool:
    try:
        assert JsonFilter(required_field=field, required_value=value).apply(body) == body
    except Dropped:
        return False
    return True


def whitelisted(body: bytes, *fields: str) -> bytes:
    return JsonFilter(allowed_fields=fields).apply(body)


def test_without_flags_it_looks_at_nothing() -> None:
    assert not JsonFilter().is_active
    assert JsonFilter(required_field="f").is_active
    assert JsonFilter(allowed_fields=("f",)).is_active


def test_a_message_passes_unchanged_if_it_has_the_field() -> None:
    assert passes(b'{ "f": null }')
    assert not passes(b'{"g": 1}')


@pytest.mark.parametrize(
    ("value", "wanted", "is_passed"),
    [
        ("abc", "abc", True),
        ("abc", "ab", False),
        ("5", "5", True),
        (5, "5", True),
        (5.0, "5", True),
        (5, "5.0", True),
        ("5.0", "5", False),
        (5, "6", False),
        (5, "five", False),
        (True, "true", False),
        (True, "1", False),
        (None, "null", False),
        ([5], "5", False),
    ],
)
def test_strings_compare_as_strings_and_numbers_as_numbers(value: Any, wanted: str, is_passed: bool) -> None:
    assert passes(json.dumps({"f": value}).encode(), value=wanted) is is_passed


def test_a_message_without_the_field_whose_value_is_required_is_a_fault() -> None:
    with pytest.raises(FieldMissingError, match="missing field to check required value: f"):
        JsonFilter(required_field="f", required_value="5").apply(b"{}")


@pytest.mark.parametrize("body", [b"", b"no", b"[1]", b'"f"', b"5", b'{"f": NaN}', b"\xff", b"[" * 100_000])
def test_what_is_not_a_json_object_is_dropped_with_a_reason(body: bytes) -> None:
    with pytest.raises(Dropped, match="unable to decode JSON"):
        JsonFilter(required_field="f").apply(body)


def test_only_whitelisted_fields_are_kept_with_their_keys_in_order() -> None:
    assert whitelisted(b'{"c": {"z": 1, "y": 2}, "b": 2, "a": "x"}', "c", "a", "nope") == b'{"a":"x","c":{"y":2,"z":1}}'


def test_integral_floats_are_written_as_integers() -> None:
    body = b'{"a": 1.0, "b": [2.0, 2.5], "c": 1e30, "d": 12345678901234567890, "e": true}'
    assert whitelisted(body, *"abcde") == b'{"a":1,"b":[2,2.5],"c":1e+30,"d":12345678901234567890,"e":true}'


def test_text_is_written_as_it_was_read() -> None:
    assert whitelisted('{"a": "ü\\ud800"}'.encode(), "a") == '{"a":"ü\\ud800"}'.encode()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(document=st.dictionaries(st.text(), _json, max_size=5))
def test_a_whitelist_of_everything_keeps_every_value(document: dict[str, Any]) -> None:
    written = whitelisted(json.dumps(document).encode(), *document)
    assert json.loads(written) == document


@given(body=st.binary(max_size=40))
def test_any_bytes_are_passed_dropped_or_a_fault(body: bytes) -> None:
    with suppress(Dropped, FieldMissingError):
        JsonFilter(required_field="f", required_value="1", allowed_fields=("f",)).apply(body)
