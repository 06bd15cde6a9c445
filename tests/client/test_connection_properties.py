"""A connection to a hostile nsqd: nothing that it sends raises where no caller is, and memory stays bounded."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import ManualClock
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.connection import Connection
from emberq.client.error import NsqError
from emberq.client.message import Message
from emberq.client.rdy import Share
from emberq.client.stream import IdentifyAnswer, Stream
from emberq.client.subscription import EXTRA_MESSAGES, OVERSHOOT, Subscription
from emberq.wire import command
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.frame import FrameDecoder, MessageFields
from tests.client.hostile_wire import Wire, compressed, frames, in_pieces
from tests.support.examples import examples

CONFIG = ClientConfig(max_frame_bytes=1000)
RDY = 5


class Victim:
    """One end of a connection in memory, with a subscription that asked for a few messages, or a producer's."""

    def __init__(self, *, consumes: bool) -> None:
        self.ends: list[BaseException | None] = []
        self.stream = Stream(asyncio.get_running_loop())
        self.wire = Wire(self.stream)
        self.connection = Connection(
            self.stream,
            address="127.0.0.1:4150",
            config=CONFIG,
            answer=IdentifyAnswer(),
            decode=FrameDecoder(max_frame_bytes=CONFIG.max_frame_bytes).feed,
            on_messages=self._take if consumes else None,
            on_error=None,
            on_close=lambda _, failure: self.ends.append(failure),
        )
        self.taken: list[Message] = []
        self.subscription = Subscription(
            self.connection, Share(cap=100), config=ConsumerConfig(), clock=ManualClock(), on_outcome=lambda _: None
        )

    def start(self) -> None:
        self.connection._start()
        self.subscription.send_rdy(RDY)

    def _take(self, _connection: Connection, received: list[MessageFields]) -> None:
        self.taken += self.subscription.receive(received)
        if len(self.taken) > 2 * RDY:
            self.taken.pop().finish()


@examples(300)
@given(in_pieces(frames), st.booleans(), st.integers(0, 3))
async def test_any_stream_is_taken_or_ends_the_connection(pieces: list[bytes], consumes: bool, asked: int) -> None:
    victim = Victim(consumes=consumes)
    victim.start()
    questions = [victim.connection.submit(command.pub("t", b"x"), answer=b"OK") for _ in range(asked)]
    await victim.wire.carry(pieces)
    await _ended(victim, questions)


@examples(200)
@given(frames, st.sampled_from(["snappy", "deflate"]), st.booleans(), st.binary(max_size=40), st.integers(0, 2000))
async def test_any_compressed_stream_is_taken_or_ends_the_connection(
    data: bytes, kind: str, consumes: bool, damage: bytes, place: int
) -> None:
    victim = Victim(consumes=consumes)
    victim.stream.start_codec(SnappyCodec() if kind == "snappy" else DeflateCodec(6))
    victim.start()
    question = victim.connection.submit(command.pub("t", b"x"), answer=b"OK")  # it is what `compressed` begins with
    stream = compressed(data, kind)
    await victim.wire.carry([stream[:place] + damage + stream[place:]])
    await _ended(victim, [question])


async def _ended(victim: Victim, questions: list[asyncio.Future[bytes]]) -> None:
    """The connection has ended, by itself or because the wire was cut, and has told so as it should."""
    (failure,) = victim.ends
    assert isinstance(failure, NsqError)
    assert str(failure).isprintable()
    assert len(victim.subscription.in_flight) <= OVERSHOOT * RDY + EXTRA_MESSAGES
    for outcome in await asyncio.gather(*questions, return_exceptions=True):
        assert outcome == b"OK" or isinstance(outcome, NsqError)
    assert len(victim.wire.written) < 10_000
    victim.subscription.ended()
