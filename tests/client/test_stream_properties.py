"""Setting up a connection to a hostile nsqd: whatever it answers, there is a connection or an error of ours."""

from __future__ import annotations

import asyncio

from hypothesis import given

from emberq.client.config import ClientConfig
from emberq.client.connection import shake_hands
from emberq.client.error import NsqError
from emberq.client.stream import SETUP_AHEAD_BYTES, IdentifyAnswer, Stream, parse_answer
from tests.client.hostile_wire import Wire, handshakes, identify_answers, in_pieces
from tests.support.examples import examples

CONFIG = ClientConfig(auth_secret=b"secret")


@examples(300)
@given(in_pieces(handshakes))
async def test_any_handshake_ends_in_a_connection_or_in_an_error_of_ours(pieces: list[bytes]) -> None:
    stream = Stream(asyncio.get_running_loop())
    wire = Wire(stream)
    shaking = asyncio.create_task(shake_hands(stream, address="127.0.0.1:4150", config=CONFIG))
    await wire.carry(pieces)
    (outcome,) = await asyncio.gather(shaking, return_exceptions=True)
    assert isinstance(outcome, IdentifyAnswer | NsqError), repr(outcome)
    assert str(outcome).isprintable()
    assert isinstance(outcome, IdentifyAnswer) or len(str(outcome)) < 2000
    assert stream.unread_bytes <= 2 * SETUP_AHEAD_BYTES


@examples(300)
@given(identify_answers)
def test_any_answer_to_identify_is_read_or_refused(data: bytes) -> None:
    try:
        answer = parse_answer(data)
    except ValueError:
        return
    assert answer.msg_timeout_ms > 0
    assert answer.max_rdy_count >= 0
    assert not (answer.snappy and answer.deflate)
