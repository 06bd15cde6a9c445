"""One connection: against a real nsqd, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.error import (
    BadRequestError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    MessageTooLargeError,
    NotExecutedError,
    RequestTimeoutError,
)
from emberq.embedded import Embedded
from emberq.wire import command, frame
from emberq.wire.frame import MessageFields
from tests.support.loop import advance, standing_still
from tests.support.scripted_peer import MESSAGE, Peer, keep_open, message_frame, scripted_peer
from tests.support.waiting import PATIENCE_S, turns, until

CONFIG = ClientConfig(heartbeat_interval_ms=1000)


class Ends:
    """Notes how connections end."""

    def __init__(self) -> None:
        self.reasons: list[BaseException | None] = []

    def __call__(self, connection: Connection, reason: BaseException | None) -> None:
        assert not connection.is_open
        self.reasons.append(reason)


# A real nsqd


async def test_a_fatal_error_is_raised_by_the_request_that_caused_it() -> None:
    ends = Ends()
    async with Embedded(with_lookupd=False) as nsq:
        connection = await Connection.open(nsq.nsqd_tcp_addresses[0], CONFIG, on_close=ends)
        good, bad, late = (connection.submit(command.pub(topic, b"x")) for topic in ("t", "a$", "t"))
        assert await good == b"OK"
        with pytest.raises(BadRequestError) as raised:
            await bad
        assert raised.value.code == "E_BAD_TOPIC"
        with pytest.raises(ConnectionLostError):
            await late
        await until(lambda: bool(ends.reasons))
    assert ends.reasons == [raised.value]


async def test_a_late_answer_to_a_message_is_reported_and_ends_nothing() -> None:
    errors: list[bytes] = []
    async with Embedded(with_lookupd=False) as nsq:
        connection = await Connection.open(
            nsq.nsqd_tcp_addresses[0], CONFIG, on_error=lambda _, data: errors.append(data)
        )
        await connection.request(command.sub(topic="t", channel="c"))
        connection.send(command.fin([MESSAGE.id]))
        assert await connection.request(command.pub("t", b"x")) == b"OK"
        assert errors == [b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"]
        await connection.close()


async def test_nobody_at_the_address_is_a_failed_connection() -> None:
    async with scripted_peer(keep_open) as address:
        pass
    with pytest.raises(ConnectError, match=address):
        await Connection.open(address, CONFIG)


async def test_an_address_that_cannot_be_is_a_failed_connection() -> None:
    with pytest.raises(ConnectError, match="99999"):
        await Connection.open("localhost:99999", CONFIG)


async def test_a_peer_that_says_nothing_is_given_up_after_the_connect_timeout() -> None:
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read_identify()
        asked.set()
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        opening = asyncio.create_task(Connection.open(address, ClientConfig(connect_timeout_s=60)))
        await asked.wait()
        advance(60)
        with pytest.raises(ConnectError, match="within 60 s"):
            await opening


# Answers


async def test_answers_go_to_the_questions_in_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        bodies = [await peer.read_publication() for _ in range(100)]
        for body in bodies:
            peer.respond(body)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        answers = [connection.submit(command.pub("t", b"%d" % number)) for number in range(100)]
        assert await asyncio.gather(*answers) == [b"%d" % number for number in range(100)]
        await connection.close()


async def test_the_answer_to_a_question_that_was_given_up_goes_to_nobody_else() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        bodies = [await peer.read_publication() for _ in range(3)]
        await go_on.wait()
        for body in bodies:
            peer.respond(body)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, ClientConfig(request_timeout_s=10))
        timed_out = connection.submit(command.pub("t", b"timed out"))
        advance(10)
        with pytest.raises(RequestTimeoutError, match="within 10 s"):
            await timed_out
        cancelled, awaited = (connection.submit(command.pub("t", body)) for body in (b"cancelled", b"awaited"))
        cancelled.cancel()
        go_on.set()
        assert await awaited == b"awaited"
        assert connection.pending_count == 0
        await connection.close()


async def test_a_question_asked_later_times_out_later() -> None:
    async with scripted_peer(keep_open) as address:
        connection = await Connection.open(address, ClientConfig(request_timeout_s=10))
        first = connection.submit(command.pub("t", b"x"))
        advance(5)
        second = connection.submit(command.pub("t", b"x"))
        advance(5)
        with pytest.raises(RequestTimeoutError):
            await first
        assert not second.done()
        advance(5)
        with pytest.raises(RequestTimeoutError):
            await second
        await connection.close()


@pytest.mark.parametrize(
    "data", [frame.OK, b"\x00\x00\x00\x01garbage", frame.FRAME_HEADER.pack(4, 9), frame.FRAME_HEADER.pack(4, 2)]
)
async def test_a_peer_that_breaks_the_rules_is_cut_off(data: bytes) -> None:
    """An answer to no question, a frame that cannot be, one of an unknown type, a message without a header."""

    ends = Ends()

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(data)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        await Connection.open(address, CONFIG, on_close=ends)
        await until(lambda: len(ends.reasons) == 1)
        assert ends.reasons[0] is not None


async def test_messages_that_arrive_together_are_passed_on_together() -> None:
    batches: list[list[MessageFields]] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.send(message_frame(MESSAGE) * 10 + frame.CLOSE_WAIT)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG, on_messages=lambda _, batch: batches.append(batch))
        assert await connection.request(command.CLS) == b"CLOSE_WAIT"
        assert batches == [[MESSAGE] * 10]
        await connection.close()


async def test_who_decodes_by_themselves_gets_messages_in_their_own_form_and_no_other_frames() -> None:
    decoder = frame.FrameDecoder(max_frame_bytes=CONFIG.max_frame_bytes)
    arrived: list[tuple[int, bool]] = []

    def decode(data: bytes) -> tuple[int, list[frame.Frame]]:
        messages, others = decoder.feed(data)
        return len(messages), others

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.send(frame.CLOSE_WAIT)
        await peer.read_line()
        peer.send(message_frame(MESSAGE) * 10 + frame.CLOSE_WAIT)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(
            address,
            CONFIG,
            decode=decode,
            on_messages=lambda connection, count: arrived.append((count, connection.pending_count == 0)),
        )
        assert await connection.request(command.CLS) == b"CLOSE_WAIT"
        assert arrived == []
        assert await connection.request(command.CLS) == b"CLOSE_WAIT"
        assert arrived == [(10, True)]  # the answer beside them was seen to first
        await connection.close()


async def test_what_somebody_cannot_decode_ends_the_connection() -> None:
    ends = Ends()

    def decode(data: bytes) -> tuple[None, list[frame.Frame]]:
        raise frame.FrameError(f"{len(data)} bytes of nonsense")

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(frame.HEARTBEAT)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        await Connection.open(address, CONFIG, decode=decode, on_close=ends)
        await until(lambda: bool(ends.reasons))
    (reason,) = ends.reasons
    assert isinstance(reason, ConnectionLostError)
    assert reason.reason == f"{len(frame.HEARTBEAT)} bytes of nonsense"


# Heartbeats and alarms


async def test_a_heartbeat_is_answered_at_once() -> None:
    answered = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        peer.send(frame.HEARTBEAT)
        assert await peer.read_line() == b"NOP"
        answered.set()
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        await answered.wait()
        await connection.close()


async def test_a_peer_that_is_silent_for_two_heartbeats_is_dead() -> None:
    ends = Ends()
    async with scripted_peer(keep_open) as address:
        connection = await Connection.open(address, ClientConfig(heartbeat_interval_ms=30_000), on_close=ends)
        with standing_still():
            for _ in range(60):  # in steps, as time passes: an alarm that rings too late would be forgiven
                assert connection.is_open
                advance(1)
                await asyncio.sleep(0)
        await until(lambda: bool(ends.reasons))
    assert isinstance(ends.reasons[0], ConnectionLostError)
    assert "not a byte" in str(ends.reasons[0])


async def test_a_loop_that_was_held_up_does_not_blame_the_peer() -> None:
    sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.send(frame.HEARTBEAT)
        assert await peer.read_line() == b"NOP"
        sent.set()
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, ClientConfig(heartbeat_interval_ms=30_000))
        advance(90)
        await asyncio.sleep(0)  # the alarm rings, half a minute late
        connection.send(command.NOP)
        await sent.wait()
        advance(1)
        await asyncio.sleep(0)
        assert connection.is_open
        await connection.close()


async def test_a_loop_that_was_held_up_still_takes_the_answer_that_came_meanwhile() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await go_on.wait()
        peer.respond(b"OK")
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, ClientConfig(request_timeout_s=10))
        asked = connection.submit(command.pub("t", b"x"))
        advance(50)
        await asyncio.sleep(0)  # the alarm rings, 40 seconds late
        go_on.set()
        assert await asked == b"OK"
        await connection.close()


# Ending


async def test_closing_sends_what_was_written_and_fails_what_was_asked() -> None:
    ends = Ends()
    lines: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        lines.append(await peer.read_line())

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG, on_close=ends)
        connection.send(command.rdy(0))
        pending = connection.submit(command.CLS)
        await connection.close()
        await connection.close()
        with pytest.raises(ClosedError):
            await pending
        with pytest.raises(ClosedError):
            connection.send(command.NOP)
        await until(lambda: lines == [b"RDY 0"])
    assert ends.reasons == [None]


async def test_when_nsqd_closes_everybody_hears_of_it() -> None:
    ends = Ends()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG, on_close=ends)
        with pytest.raises(ConnectionLostError, match="nsqd closed"):
            await connection.request(command.pub("t", b"x"))
        with pytest.raises(ConnectionLostError, match="not connected: nsqd closed the connection"):
            connection.send(command.NOP)
        await until(lambda: len(ends.reasons) == 1)
    assert isinstance(ends.reasons[0], ConnectionLostError)


async def test_a_connection_that_is_reset_is_lost_like_one_that_is_closed() -> None:
    ends = Ends()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()
        peer.reset()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG, on_close=ends)
        with pytest.raises(ConnectionLostError, match="reset by peer"):
            await connection.request(command.pub("t", b"x"))
        await until(lambda: len(ends.reasons) == 1)
    assert isinstance(ends.reasons[0], ConnectionLostError)


# Answers behind which the connection broke


class ResettingPeer:
    """An nsqd in a thread, which answers two commands and resets the connection when it is told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._is_told = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            connection.recv(65536)
            connection.sendall(frame.response(b"{}"))
            assert self._is_told.wait(PATIENCE_S)
            connection.sendall(frame.response(b"OK") + frame.error(b"E_BAD_MESSAGE PUB message too big 2 > 1"))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def answer_and_reset(self) -> None:
        """Returns when it is done; the caller's event loop sees nothing of it meanwhile."""
        self._is_told.set()
        self._thread.join()


@pytest.mark.loop("movable", "uvloop")
async def test_what_nsqd_answered_before_it_reset_the_connection_is_heard_though_a_write_fails() -> None:
    peer = ResettingPeer()
    connection = await Connection.open(peer.address, ClientConfig())
    answers = [connection.submit(command.pub("t", b"x"), answer=b"OK") for _ in range(3)]
    await turns(3)
    peer.answer_and_reset()
    answers.append(connection.submit(command.pub("t", b"x"), answer=b"OK"))
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    await connection.close()
    assert [outcome if outcome == b"OK" else type(outcome) for outcome in outcomes] == [
        b"OK",
        MessageTooLargeError,
        NotExecutedError,
        NotExecutedError,
    ]
