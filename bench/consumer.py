"""Load that receives: it keeps its RDY window open and FINs every message, as a real consumer does.

One process serves all its connections from one poll. What has arrived on a connection is taken in one `recv`,
looked at in runs (see `frame`) and answered in one `send`. A run is over when every channel has had as many
messages as were published to it; then each connection sends CLS, and since commands are executed in order,
CLOSE_WAIT proves that every FIN was accepted, and whatever a channel delivers twice shows up before it.

The rate is taken when 95 % have come: a server may hold the last, half full output buffer back for its
output_buffer_timeout (250 ms), which says nothing about how fast it is.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import frame
from bench.connection import SILENCE_LIMIT_S, Address, connect, subscribe
from bench.crew import Load, Tally
from bench.failure import LoadFailure, Miscounted

RDY = 2500

_RECEIVE_BYTES = 1 << 20  # more than a whole RDY window of frames
_TIMED_PERCENT = 95
_HELD_FINS = 1000  # FINs kept back to be mixed: well below RDY, so that the server never runs dry


@dataclass(frozen=True, kw_only=True)
class Consume:
    """Take `messages` messages from each of `channels`, over `connections` connections for each of them."""

    address: Address
    topic: str
    channels: tuple[str, ...]
    messages: int
    connections: int = 1
    shuffled: bool = False  # FIN out of order
    is_timed: bool = False  # take the latency from the time in each body
    output_buffer_bytes: int | None = None  # None: the server's default; -1: it writes every message at once

    def open(self) -> Load:
        backlogs = [_Backlog(channel, self.messages) for channel in self.channels]
        return _ConsumerLoad([self._lane(backlog) for backlog in backlogs for _ in range(self.connections)])

    def _lane(self, backlog: _Backlog) -> _Lane:
        buffered = self.output_buffer_bytes
        settings: dict[str, object] = {} if buffered is None else {"output_buffer_size": buffered}
        connection = connect(self.address, settings=settings)
        subscribe(connection, topic=self.topic, channel=backlog.channel)
        lane_type = _TimedLane if self.is_timed else _Lane
        return lane_type(connection, backlog, FinMixer() if self.shuffled else None)


class _Backlog:
    """What one channel has still to deliver; shared by the connections to it."""

    def __init__(self, channel: str, messages: int) -> None:
        self.channel = channel
        self.expected = messages
        self.received = 0

    @property
    def is_done(self) -> bool:
        return self.received >= self.expected


class FinMixer:
    """Holds FINs back and lets them go in an order of its own, as a consumer with many workers would.

    Sorting by hash is a shuffle at the price of a sort: Python's hash of bytes is a keyed one.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def mix(self, fins: bytes | bytearray) -> bytes:
        """Take these FINs in; return those to be sent now."""
        lines = bytes(fins)
        size = frame.FIN_BYTES
        self._held += [lines[start : start + size] for start in range(0, len(lines), size)]
        if len(self._held) < _HELD_FINS:
            return b""
        self._held.sort(key=hash)
        now, self._held = self._held[_HELD_FINS // 2 :], self._held[: _HELD_FINS // 2]
        return b"".join(now)

    def rest(self) -> bytes:
        """All that is still held."""
        held, self._held = self._held, []
        return b"".join(held)


class _Lane:
    """One connection of a consumer, with what has arrived on it and is not yet a whole frame."""

    def __init__(self, connection: socket.socket, backlog: _Backlog, mixer: FinMixer | None) -> None:
        self.connection = connection
        self.backlog = backlog
        self.latencies_ns: list[int] = []  # filled by _TimedLane only
        self.is_closed = False  # CLOSE_WAIT has come
        self._mixer = mixer
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def get_ready(self) -> None:
        self.connection.sendall(b"RDY %d\n" % RDY)

    def say_goodbye(self) -> None:
        held = self._mixer.rest() if self._mixer else b""
        self.connection.sendall(held + b"CLS\n")

    def receive(self) -> None:
        """Take what has arrived and answer it."""
        arrived = self.connection.recv_into(self._view[self._filled :])
        if not arrived:
            raise LoadFailure("nsqd closed the connection")
        self._filled += arrived
        position, answer = self._digest()
        rest = self._filled - position
        self._buffer[:rest] = self._buffer[position : self._filled]
        self._filled = rest
        if answer:
            self.connection.sendall(answer)

    def _digest(self) -> tuple[int, bytearray]:
        """Go over the buffered frames; return where the incomplete one begins, and the answer to the rest."""
        position, answer = 0, bytearray()
        while True:
            count = frame.message_run(self._buffer, start=position, end=self._filled)
            if count:
                answer += self._take(position, count)
                position += count * frame.MESSAGE_FRAME_BYTES
            found = frame.next_frame(self._buffer, start=position, end=self._filled)
            if found is None:
                return position, answer
            kind, text, position = found
            answer += self._react(kind, text)

    def _take(self, start: int, count: int) -> bytes | bytearray:
        """Count a run of messages and return the FINs to send."""
        self.backlog.received += count
        repeats = frame.redelivered(self._buffer, start=start, count=count)
        if repeats:
            raise Miscounted(f"{repeats} of {count} messages did not come for the first time")
        fins = frame.fin_commands(self._buffer, start=start, count=count)
        return self._mixer.mix(fins) if self._mixer else fins

    def _react(self, kind: int, text: bytes) -> bytes:
        if (kind, text) == (frame.RESPONSE, frame.HEARTBEAT):
            return b"NOP\n"
        if (kind, text) == (frame.RESPONSE, frame.CLOSE_WAIT):
            self.is_closed = True
            return b""
        raise frame.unexpected(kind, text)


class _TimedLane(_Lane):
    """A lane that also notes how long each message was under way."""

    def _take(self, start: int, count: int) -> bytes | bytearray:
        now_ns = time.monotonic_ns()
        first = start + frame.BODY_OFFSET
        for offset in range(first, first + count * frame.MESSAGE_FRAME_BYTES, frame.MESSAGE_FRAME_BYTES):
            (sent_ns,) = frame.TIMESTAMP_NS.unpack_from(self._buffer, offset)
            self.latencies_ns.append(now_ns - sent_ns)
        return super()._take(start, count)


class _ConsumerLoad:
    def __init__(self, lanes: Sequence[_Lane]) -> None:
        self._lanes = lanes
        self._backlogs = {lane.backlog.channel: lane.backlog for lane in lanes}.values()
        self._selector = selectors.DefaultSelector()
        for lane in lanes:
            self._selector.register(lane.connection, selectors.EVENT_READ, lane)

    def run(self) -> Tally:
        for lane in self._lanes:
            lane.get_ready()
        timed_goal = sum(backlog.expected for backlog in self._backlogs) * _TIMED_PERCENT // 100
        while self._delivered < timed_goal:
            self._serve()
        timed, timed_until_s = self._delivered, time.monotonic()
        while not all(backlog.is_done for backlog in self._backlogs):
            self._serve()
        self._take_leave()
        return Tally(
            delivered=self._delivered,
            timed=timed,
            timed_until_s=timed_until_s,
            latencies_ns=[latency for lane in self._lanes for latency in lane.latencies_ns],
        )

    @property
    def _delivered(self) -> int:
        return sum(backlog.received for backlog in self._backlogs)

    def _take_leave(self) -> None:
        for lane in self._lanes:
            lane.say_goodbye()
        while not all(lane.is_closed for lane in self._lanes):
            self._serve()
        if any(backlog.received != backlog.expected for backlog in self._backlogs):
            raise Miscounted(f"more messages than were published: {self._progress()}")

    def _serve(self) -> None:
        ready = self._selector.select(SILENCE_LIMIT_S)
        if not ready:
            raise Miscounted(f"nothing arrived for {SILENCE_LIMIT_S:g} s; so far {self._progress()}")
        for key, _ in ready:
            key.data.receive()

    def _progress(self) -> str:
        return ", ".join(f"{b.channel}: {b.received} of {b.expected}" for b in self._backlogs)
