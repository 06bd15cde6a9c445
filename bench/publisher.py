"""Load that publishes.

    PipelinedPublish   one prepared buffer again and again, a bounded number of them unanswered
    LockstepPublish    one PUB per connection at a time, the next only after its OK
    LockstepPost       the same with HTTP requests
    PacedPublish       single PUBs at a fixed rate, each with its time of sending in its body

A plan is a value that travels to a worker process; `open` connects there and returns the load ready to run.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench import frame, http
from bench.connection import Address, connect, connect_plain, received
from bench.crew import Load, Tally
from bench.failure import Miscounted

_RECEIVE_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class PipelinedPublish:
    """Send `payload`, which earns `oks` OKs and holds `messages` messages, `repeats` times."""

    address: Address
    payload: bytes
    oks: int
    messages: int
    repeats: int
    window: int = 8  # unanswered payloads: enough that the server never waits for us, few enough to be real

    def open(self) -> Load:
        return _PipelinedLoad(self, connect(self.address))


class _PipelinedLoad:
    """Waits until a payload is answered whole, in one call: a call for each of its OKs would cost too much."""

    def __init__(self, plan: PipelinedPublish, connection: socket.socket) -> None:
        self._plan = plan
        self._connection = connection

    def run(self) -> Tally:
        plan, connection, counter = self._plan, self._connection, frame.OkCounter()
        wanted, answer_bytes = plan.oks * plan.repeats, plan.oks * len(frame.OK_FRAME)
        sent = answered = 0
        while answered < wanted:
            while sent < plan.repeats and sent * plan.oks - answered < plan.window * plan.oks:
                connection.sendall(plan.payload)
                sent += 1
            answered += counter.feed(received(connection.recv(answer_bytes, socket.MSG_WAITALL)))
        published = plan.messages * plan.repeats
        return Tally(published=published, timed=published)


@dataclass(frozen=True, kw_only=True)
class LockstepPublish:
    """`messages` PUBs over `connections` connections, each waiting for its OK before its next."""

    address: Address
    payload: bytes
    messages: int
    connections: int

    def open(self) -> Load:
        dialogues = [(connect(self.address), frame.OkCounter()) for _ in range(self.connections)]
        return _LockstepLoad(dialogues, payload=self.payload, messages=1, repeats=self.messages)


@dataclass(frozen=True, kw_only=True)
class LockstepPost:
    """`request`, which publishes `messages` messages, `repeats` times over `connections` connections that are
    kept alive, each waiting for its answer before its next."""

    address: Address
    request: bytes
    messages: int
    repeats: int
    connections: int

    def open(self) -> Load:
        dialogues = [(connect_plain(self.address), http.AnswerCounter()) for _ in range(self.connections)]
        return _LockstepLoad(dialogues, payload=self.request, messages=self.messages, repeats=self.repeats)


class _Counter(Protocol):
    """Finds the answers in what a connection receives."""

    def feed(self, data: bytes) -> int: ...


class _LockstepLoad:
    """Goes round its connections: take the answer of one, send its next. Two system calls a payload, no more."""

    def __init__(
        self, dialogues: Sequence[tuple[socket.socket, _Counter]], *, payload: bytes, messages: int, repeats: int
    ) -> None:
        self._dialogues = dialogues
        self._payload = payload
        self._messages = messages
        self._repeats = repeats

    def run(self) -> Tally:
        payload, total = self._payload, self._repeats
        waiting = self._dialogues[:total]
        for connection, _ in waiting:
            connection.sendall(payload)
        sent, answered = len(waiting), 0
        while answered < total:
            for connection, counter in waiting[: total - answered]:
                while not (answers := counter.feed(received(connection.recv(_RECEIVE_BYTES)))):
                    pass  # a heartbeat, or half of the answer
                if answers > 1:
                    raise Miscounted(f"nsqd gave {answers} answers where one was due")
                answered += 1
                if sent < total:
                    connection.sendall(payload)
                    sent += 1
        published = self._messages * total
        return Tally(published=published, timed=published)


@dataclass(frozen=True, kw_only=True)
class PacedPublish:
    """`messages` PUBs at `rate` a second on one connection, not waiting for their OKs."""

    address: Address
    topic: str
    messages: int
    rate: int

    def open(self) -> Load:
        return _PacedLoad(self, connect(self.address))


class _PacedLoad:
    """Open loop: message `n` is due at `n / rate`, whatever the server does, so that a pause of the server
    shows in the latency of every message that was due meanwhile (the socket holds seconds of them).

    The time in the body is that of the sending, not the due time: what `sleep` oversleeps is not the server's.
    """

    def __init__(self, plan: PacedPublish, connection: socket.socket) -> None:
        self._plan = plan
        self._connection = connection
        self._command = bytearray(frame.pub(plan.topic, bytes(frame.BODY_BYTES)))
        self._body_offset = len(self._command) - frame.BODY_BYTES

    def run(self) -> Tally:
        plan, connection, counter = self._plan, self._connection, frame.OkCounter()
        answered = 0
        start_ns = time.monotonic_ns()
        for index in range(plan.messages):
            self._send_when_due(start_ns + index * 1_000_000_000 // plan.rate)
            if index % 64 == 63:  # OKs are small: now and then is often enough to keep the socket empty
                answered += counter.feed(self._arrived())
        while answered < plan.messages:
            answered += counter.feed(received(connection.recv(_RECEIVE_BYTES)))
        return Tally(published=plan.messages, timed=plan.messages)

    def _send_when_due(self, due_ns: int) -> None:
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        frame.TIMESTAMP_NS.pack_into(self._command, self._body_offset, time.monotonic_ns())
        self._connection.sendall(self._command)

    def _arrived(self) -> bytes:
        try:
            return received(self._connection.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return b""
