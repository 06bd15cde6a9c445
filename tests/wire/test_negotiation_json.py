"""The JSON of an IDENTIFY: what is taken, what is ignored, and what is no JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.error import FatalError
from emberq.wire.negotiation import IdentifyRequest, negotiate, parse_request
from tests.wire.streams import examples
from tests.wire.test_negotiation import FRESH, SERVER

UNDECODABLE = b"E_BAD_BODY IDENTIFY failed to decode JSON body"
EXAMPLE_OF: dict[type, Any] = {str: "text", int: 1000, bool: True}
FIELDS: dict[str, type] = {field.name: type(field.default) for field in fields(IdentifyRequest)}


def check_undecodable(body: bytes) -> None:
    with pytest.raises(FatalError) as refusal:
        parse_request(body)
    assert refusal.value.data == UNDECODABLE


@pytest.mark.parametrize("name", FIELDS)
def test_a_key_matches_whatever_its_case(name: str) -> None:
    value = EXAMPLE_OF[FIELDS[name]]
    expected = IdentifyRequest(**{name: value})
    for key in (name, name.upper(), name.title()):
        assert parse_request(json.dumps({key: value}).encode()) == expected


@pytest.mark.conformance(23, 24)
@pytest.mark.parametrize("name", FIELDS)
def test_a_value_of_another_type_is_refused(name: str) -> None:
    wrong: list[Any] = [*EXAMPLE_OF.values(), 0, 1000.5, 1000.0, [], {}, [None]]
    for value in wrong:
        if type(value) is not FIELDS[name]:
            check_undecodable(json.dumps({name: value}).encode())


@pytest.mark.parametrize("name", [name for name, kind in FIELDS.items() if kind is int])
def test_a_number_has_64_bits(name: str) -> None:
    for number in (2**63 - 1, -(2**63)):
        assert getattr(parse_request(b'{"%b":%d}' % (name.encode(), number)), name) == number
    for number in (2**63, -(2**63) - 1, 10**400):
        check_undecodable(b'{"%b":%d}' % (name.encode(), number))


@pytest.mark.parametrize("name", FIELDS)
def test_null_is_as_good_as_nothing(name: str) -> None:
    assert parse_request(json.dumps({name: None}).encode()) == IdentifyRequest()


def test_unknown_keys_are_ignored_whatever_they_hold() -> None:
    body = b'{"short_id":7,"long_id":[],"_":{"client_id":"no"},"":null,"x":1e999,"client_id":"yes"}'
    assert parse_request(body) == IdentifyRequest(client_id="yes")


@pytest.mark.conformance(23)
@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'"text"',
        b"1",
        b"true",
        b"{",
        b"{}}",
        b"{}{}",
        b"{},",
        b"{'client_id':'x'}",
        b'{"client_id":"x",}',
        b'{"client_id":"\n"}',
        b'{"client_id":"\\x41"}',
        b'{"sample_rate":042}',
        b'{"sample_rate":+4}',
        b'{"sample_rate":0x4}',
        b'{"sample_rate":1e1}',
        b'{"sample_rate":NaN}',
        b'{"sample_rate":' + b"9" * 5000 + b"}",
        b"NaN",
        b"\x00",
        b"\xff\xff",
        b"{}\xff",
        b"{}\x00",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    check_undecodable(body)


def test_deep_nesting_is_refused_not_followed() -> None:
    """How deep is too deep differs between editions of Python: 2,000 is for 3.11, and is not for 3.13."""
    depth = 1_000_000
    check_undecodable(b"[" * depth)
    check_undecodable(b'{"x":' * depth + b"1" + b"}" * depth)


@examples(300)
@given(st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_are_a_request_or_undecodable(body: bytes) -> None:
    try:
        request = parse_request(body)
    except FatalError as wrong:
        assert wrong.data == UNDECODABLE  # noqa: PT017 - either outcome will do
    else:
        assert isinstance(request, IdentifyRequest)


@pytest.mark.parametrize("written", [b"\\ud800", b"\\udfff\\ud800", b"\xed\xa0\x80"])
def test_a_lone_surrogate_does_not_spoil_the_answer(written: bytes) -> None:
    outcome = negotiate(parse_request(b'{"feature_negotiation":true,"client_id":"%b"}' % written), FRESH, SERVER)
    assert json.loads(outcome.answer)["version"] == "1.3.0"


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_constants_of_other_languages_are_refused_under_unknown_keys_too(constant: bytes) -> None:
    check_undecodable(b'{"x":%b}' % constant)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_json_is_utf_8_without_a_byte_order_mark(encoding: str) -> None:
    check_undecodable('{"client_id":"x"}'.encode(encoding))


@pytest.mark.parametrize("written", [b"\\ud800", b"a\\udfff", b"\xed\xa0\x80"])
def test_a_name_can_always_be_encoded(written: bytes) -> None:
    client_id = parse_request(b'{"client_id":"%b"}' % written).client_id
    assert "\ufffd" in client_id.encode().decode()


def test_a_name_in_another_encoding_is_taken_with_replacement_characters() -> None:
    assert parse_request(b'{"hostname":"caf\xe9"}').hostname == "caf\ufffd"


def test_of_a_key_written_twice_the_last_value_counts() -> None:
    assert parse_request(b'{"client_id":"a","client_id":"b"}').client_id == "b"
    assert parse_request(b'{"client_id":"a","CLIENT_ID":"b"}').client_id == "b"


def test_of_a_key_written_twice_every_value_is_judged() -> None:
    check_undecodable(b'{"sample_rate":"x","sample_rate":5}')


@pytest.mark.parametrize(
    ("body", "client_id"),
    [
        (b'{"client_id":"a","client_id":null}', "a"),
        (b'{"client_id":"a","CLIENT_ID":"b","client_id":"c"}', "c"),
    ],
)
def test_of_a_key_written_twice_the_order_counts(body: bytes, client_id: str) -> None:
    assert parse_request(body).client_id == client_id
