"""The layout of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.message import ATTEMPTS_OFFSET, BODY_OFFSET, ID_OFFSET, Message, decode_message, encode_message
from tests.wire.streams import examples

EXAMPLE = Message(timestamp_ns=0x0123456789ABCDEF, attempts=1, id=b"189b226c92669000", body=b"hi")


def test_a_message_is_time_attempts_id_and_body() -> None:
    encoded = encode_message(EXAMPLE)
    assert encoded == bytes.fromhex("0123456789abcdef 0001") + b"189b226c92669000" + b"hi"
    assert encoded[ATTEMPTS_OFFSET:ID_OFFSET] == b"\x00\x01"
    assert encoded[ID_OFFSET:BODY_OFFSET] == EXAMPLE.id


@examples(200)
@given(
    st.builds(
        Message,
        timestamp_ns=st.integers(-(2**63), 2**63 - 1),
        attempts=st.integers(0, 0xFFFF),
        id=st.binary(min_size=16, max_size=16),
        body=st.binary(max_size=50),
    )
)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_a_header_without_a_body_is_a_message() -> None:
    assert decode_message(encode_message(EXAMPLE._replace(body=b""))).body == b""


@pytest.mark.parametrize("length", [0, 1, 25])
def test_less_than_a_header_is_no_message(length: int) -> None:
    with pytest.raises(ValueError, match=f"a message of {length} bytes; the header alone has 26"):
        decode_message(b"x" * length)
