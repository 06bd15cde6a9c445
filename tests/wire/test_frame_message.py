"""The layout of a message. That it is read as it is written is tested with the frames it comes in."""

from __future__ import annotations

from emberq.wire.frame import ATTEMPTS_OFFSET, BODY_OFFSET, ID_OFFSET, WireMessage, encode_message

EXAMPLE = WireMessage(timestamp_ns=0x0123456789ABCDEF, attempts=1, id=b"189b226c92669000", body=b"hi")


def test_a_message_is_time_attempts_id_and_body() -> None:
    encoded = encode_message(EXAMPLE)
    assert encoded == bytes.fromhex("0123456789abcdef 0001") + b"189b226c92669000" + b"hi"
    assert encoded[ATTEMPTS_OFFSET:ID_OFFSET] == b"\x00\x01"
    assert encoded[ID_OFFSET:BODY_OFFSET] == EXAMPLE.id
