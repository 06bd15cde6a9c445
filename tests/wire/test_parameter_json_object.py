"""An object from the network: what is taken, what is ignored, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.parameter import UndecodableError, parse_object
from tests.wire.streams import examples

FIELD_TYPES: dict[str, type] = {"name": str, "count": int, "on": bool}


def parse(body: bytes) -> dict[str, Any]:
    return parse_object(body, FIELD_TYPES)


def test_known_fields_are_read_and_others_ignored() -> None:
    assert parse(b'{"name":"n","count":-7,"on":true,"other":[{"name":1}]}') == {"name": "n", "count": -7, "on": True}


def test_keys_match_whatever_their_case() -> None:
    assert parse(b'{"NAME":"n","Count":1}') == {"name": "n", "count": 1}


@pytest.mark.parametrize("body", [b"null", b" null\n", b"{}", b'{"name":null}'])
def test_null_counts_as_absent(body: bytes) -> None:
    assert parse(body) == {}


def test_the_last_of_equal_keys_counts_and_every_one_is_judged() -> None:
    assert parse(b'{"count":1,"COUNT":2,"count":null}') == {"count": 2}
    with pytest.raises(UndecodableError, match="str where int belongs"):
        parse(b'{"count":"1","count":2}')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'"x"', b"true", b"{} x", b"{'name':1}", b'{"other":NaN}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(UndecodableError):
        parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":1}',
        b'{"count":true}',
        b'{"count":1.0}',
        b'{"on":1}',
        b'{"on":"true"}',
        b'{"name":[]}',
        b'{"count":{}}',
    ],
)
def test_a_value_of_another_type_is_refused(body: bytes) -> None:
    with pytest.raises(UndecodableError, match="belongs"):
        parse(body)


def test_numbers_fit_64_bits() -> None:
    for number in (-(1 << 63), (1 << 63) - 1):
        assert parse(b'{"count":%d}' % number) == {"count": number}
    for number in (-(1 << 63) - 1, 1 << 63):
        with pytest.raises(UndecodableError, match="64 bits"):
            parse(b'{"count":%d}' % number)
    with pytest.raises(UndecodableError, match="digits"):
        parse(b'{"count":%b}' % (b"9" * 5000))


def test_deep_nesting_is_refused_not_fatal() -> None:
    # Python 3.14 goes as deep as its stack allows, which may be to the end.
    with pytest.raises(UndecodableError, match=r"recursion|Stack overflow|Expecting value"):
        parse(b"[" * 50_000)


def test_broken_characters_are_replaced() -> None:
    assert parse(b'{"name":"\xff"}') == {"name": "\ufffd"}
    assert parse(b'{"name":"\\ud800x"}') == {"name": "\ufffdx"}
    assert parse(b'{"name":"\\ud83d\\ude00"}') == {"name": "\U0001f600"}


@examples(100)
@given(
    st.fixed_dictionaries(
        {}, optional={"name": st.text(), "count": st.integers(-(1 << 63), (1 << 63) - 1), "on": st.booleans()}
    )
)
def test_what_is_written_is_read(fields: dict[str, Any]) -> None:
    assert parse(json.dumps(fields).encode()) == fields


@examples(300)
@given(st.binary(max_size=50))
def test_no_bytes_do_worse_than_be_undecodable(body: bytes) -> None:
    try:
        found = parse(body)
    except UndecodableError:
        return
    assert all(type(value) is FIELD_TYPES[name] for name, value in found.items())
