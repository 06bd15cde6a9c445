"""The layout of a message. That it is read as it is written is tested with the frames it comes in."""

from __future__ import annotations

import pytest

from emberq.wire.frame import (
    ATTEMPTS_OFFSET,
    BODY_OFFSET,
    ID_BYTES,
    ID_OFFSET,
    MAX_ATTEMPTS,
    WireMessage,
    decode_message,
    encode_message,
)

EXAMPLE = WireMessage(timestamp_ns=0x0123456789ABCDEF, attempts=1, id=b"189b226c92669000", body=b"hi")


def test_a_message_is_time_attempts_id_and_body() -> None:
    encoded = encode_message(EXAMPLE)
    assert encoded == bytes.fromhex("0123456789abcdef 0001") + b"189b226c92669000" + b"hi"
    assert encoded[ATTEMPTS_OFFSET:ID_OFFSET] == b"\x00\x01"
    assert encoded[ID_OFFSET:BODY_OFFSET] == EXAMPLE.id
    assert len(EXAMPLE.id) == ID_BYTES == BODY_OFFSET - ID_OFFSET
    assert encode_message(EXAMPLE._replace(attempts=MAX_ATTEMPTS))[ATTEMPTS_OFFSET:ID_OFFSET] == b"\xff\xff"


def test_a_message_is_read_as_it_was_written() -> None:
    for message in (EXAMPLE, EXAMPLE._replace(body=b"")):
        assert decode_message(encode_message(message)) == message


def test_what_is_shorter_than_a_header_is_no_message() -> None:
    with pytest.raises(ValueError, match="25 bytes"):
        decode_message(encode_message(EXAMPLE)[: BODY_OFFSET - 1])
