"""What a client's bytes mean, read the plain way: a line, a size, a body, one after the other, as if reads blocked.

This is the judge of `CommandDecoder`, which reads in runs, in whatever pieces the bytes come. It knows the whole stream
beforehand, makes no attempt to be fast, and shares nothing with the decoder but its limits and the quoting of names.

A stream is told as a `Transcript`: what happened, each with the number of bytes that had to arrive before it could
happen. Runs have no place in it: a FIN is one event, and so is a PUB.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from emberq.wire.decoder import MAX_REQUEST_BYTES
from emberq.wire.line import CommandLimits
from emberq.wire.parameter import quote

LONGEST_LINE_BYTES = 16384
AT_EOF = -1

Event = tuple[bytes, ...] | tuple[bytes, bytes, int] | tuple[bytes, bytes, int, bytes] | tuple[bytes, int]
"""A command's name and its parameters; an MPUB's are its topic and its messages."""


@dataclass(frozen=True)
class End:
    """How a stream ended: cleanly (`data` None), with an error frame, or refused without a word (`data` empty)."""

    data: bytes | None
    topic: str | None = None
    """The topic that exists although its MPUB failed."""
    position: int = AT_EOF
    """How many bytes show that this is the end; AT_EOF when only the end of the stream does."""


@dataclass(frozen=True)
class Transcript:
    """All there is to say about a stream."""

    events: list[tuple[int, Event]]
    end: End

    @property
    def commands(self) -> list[Event]:
        """The events, whenever they happened."""
        return [event for _, event in self.events]


def transcribe(stream: bytes, limits: CommandLimits) -> Transcript:
    """Read a whole stream, to its end or to the first error."""
    reader = _Reader(stream, limits)
    events: list[tuple[int, Event]] = []
    try:
        for event in reader.events():
            events.append((reader.position, event))  # noqa: PERF401 - what came before an error must be kept
    except _Ended as ended:
        return Transcript(events, ended.end)
    raise AssertionError("a stream is read until it ends")


class _Ended(Exception):
    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end = end


class _Reader:
    def __init__(self, stream: bytes, limits: CommandLimits) -> None:
        self.position = 0
        self._stream = stream
        self._limits = limits
        self._subscribed = False
        self._closing = False
        self._topic: str | None = None

    def events(self) -> Iterator[Event]:
        if self._exactly(4, cut_off=None) != b"  V2":
            raise self._refusal(b"E_BAD_PROTOCOL")
        while True:
            self._topic = None
            name, *params = self._line().split(b" ")
            read = _COMMANDS.get(name)
            if read is None:
                raise self._refusal(b"E_INVALID invalid command " + name)
            if not self._is_legal(name):
                raise self._refusal(b"E_INVALID cannot " + name + b" in current state")
            yield read(self, params)

    def _is_legal(self, name: bytes) -> bool:
        if name in (b"IDENTIFY", b"AUTH", b"SUB"):
            return not self._subscribed
        if name in (b"RDY", b"FIN", b"REQ", b"TOUCH"):
            return self._subscribed
        if name == b"CLS":
            return self._subscribed and not self._closing
        return True

    # Reading.

    def _refusal(self, data: bytes) -> _Ended:
        return _Ended(End(data, self._topic, self.position))

    def _exactly(self, size: int, *, cut_off: bytes | None) -> bytes:
        taken = self._stream[self.position : self.position + size]
        if len(taken) < size:
            raise _Ended(End(cut_off, self._topic if cut_off else None))
        self.position += size
        return taken

    def _int32(self, *, cut_off: bytes) -> int:
        value: int = struct.unpack(">i", self._exactly(4, cut_off=cut_off))[0]
        return value

    def _line(self) -> bytes:
        line, newline, _ = self._stream[self.position :].partition(b"\n")
        if len(line + newline) > LONGEST_LINE_BYTES or (not newline and len(line) == LONGEST_LINE_BYTES):
            raise _Ended(End(b"", position=self.position + LONGEST_LINE_BYTES))
        if not newline:
            raise _Ended(End(None))
        self.position += len(line) + 1
        return line.removesuffix(b"\r")

    def _need(self, params: list[bytes], count: int, verb: bytes, what: bytes) -> None:
        if len(params) < count:
            raise self._refusal(b"E_INVALID " + verb + b" insufficient number of " + what)

    def _name(self, raw: bytes, error: bytes) -> bytes:
        if len(raw) > 64 or not re.fullmatch(rb"[.a-zA-Z0-9_-]+(#ephemeral)?", raw):
            raise self._refusal(error + b" name " + quote(raw) + b" is not valid")
        return raw

    def _id(self, raw: bytes) -> bytes:
        if len(raw) != 16:
            raise self._refusal(b"E_INVALID invalid message ID")
        return raw

    def _number(self, raw: bytes, error: bytes) -> int:
        if not re.fullmatch(rb"[0-9]*", raw):
            raise self._refusal(error + b" " + raw)
        value = 0
        for digit in raw:
            value = (value * 10 + digit - ord("0")) % 2**64
        return value - 2**64 if value >= 2**63 else value

    def _body(self, verb: bytes) -> bytes:
        prefix = b"E_BAD_BODY " + verb
        size = self._int32(cut_off=prefix + b" failed to read body size")
        for limit in (self._limits.max_body_size, MAX_REQUEST_BYTES):
            if size > limit:
                raise self._refusal(prefix + b" body too big %d > %d" % (size, limit))
        if size <= 0:
            raise self._refusal(prefix + b" invalid body size %d" % size)
        return self._exactly(size, cut_off=prefix + b" failed to read body")

    def _message(self, verb: bytes) -> bytes:
        prefix = b"E_BAD_MESSAGE " + verb
        size = self._int32(cut_off=prefix + b" failed to read message body size")
        if size <= 0:
            raise self._refusal(prefix + b" invalid message body size %d" % size)
        if size > self._limits.max_msg_size:
            raise self._refusal(prefix + b" message too big %d > %d" % (size, self._limits.max_msg_size))
        return self._exactly(size, cut_off=prefix + b" failed to read message body")

    # The commands.

    def nop(self, _params: list[bytes]) -> Event:
        return (b"NOP",)

    def identify(self, _params: list[bytes]) -> Event:
        return (b"IDENTIFY", self._body(b"IDENTIFY"))

    def auth(self, params: list[bytes]) -> Event:
        if params:
            raise self._refusal(b"E_INVALID AUTH invalid number of parameters")
        return (b"AUTH", self._body(b"AUTH"))

    def sub(self, params: list[bytes]) -> Event:
        self._need(params, 2, b"SUB", b"parameters")
        topic = self._name(params[0], b"E_BAD_TOPIC SUB topic")
        channel = self._name(params[1], b"E_BAD_CHANNEL SUB channel")
        self._subscribed = True
        return (b"SUB", topic, channel)

    def pub(self, params: list[bytes]) -> Event:
        self._need(params, 1, b"PUB", b"parameters")
        return (b"PUB", self._name(params[0], b"E_BAD_TOPIC PUB topic"), self._message(b"PUB"))

    def dpub(self, params: list[bytes]) -> Event:
        self._need(params, 2, b"DPUB", b"parameters")
        topic = self._name(params[0], b"E_BAD_TOPIC DPUB topic")
        defer_ms = self._number(params[1], b"E_INVALID DPUB could not parse timeout")
        limit_ms = self._limits.max_req_timeout_ms
        if not 0 <= defer_ms <= limit_ms:
            raise self._refusal(b"E_INVALID DPUB timeout %d out of range 0-%d" % (defer_ms, limit_ms))
        return (b"DPUB", topic, defer_ms, self._message(b"DPUB"))

    def mpub(self, params: list[bytes]) -> Event:
        self._need(params, 1, b"MPUB", b"parameters")
        topic = self._name(params[0], b"E_BAD_TOPIC E_BAD_TOPIC MPUB topic")
        self._topic = topic.decode()
        size = self._int32(cut_off=b"E_BAD_BODY MPUB failed to read body size")
        if size <= 0:
            raise self._refusal(b"E_BAD_BODY MPUB invalid body size %d" % size)
        self._check_mpub_size(size)
        count = self._int32(cut_off=b"E_BAD_BODY MPUB failed to read message count")
        if not 1 <= count <= (self._limits.max_body_size - 4) // 5:
            raise self._refusal(b"E_BAD_BODY MPUB invalid message count %d" % count)
        bodies: list[bytes] = []
        used = 4
        for index in range(count):
            bodies.append(self._mpub_message(index, used))
            used += 4 + len(bodies[-1])
        return (b"MPUB", topic, *bodies)

    def _check_mpub_size(self, size: int) -> None:
        if size > self._limits.max_body_size:
            raise self._refusal(b"E_BAD_BODY MPUB body too big %d > %d" % (size, self._limits.max_body_size))

    def _mpub_message(self, index: int, used: int) -> bytes:
        size = self._int32(cut_off=b"E_BAD_MESSAGE MPUB failed to read message(%d) body size" % index)
        if size <= 0:
            raise self._refusal(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (index, size))
        if size > self._limits.max_msg_size:
            raise self._refusal(b"E_BAD_MESSAGE MPUB message too big %d > %d" % (size, self._limits.max_msg_size))
        self._check_mpub_size(used + 4 + size)  # ours: what the messages add up to is held to the limit as well
        return self._exactly(size, cut_off=b"E_BAD_MESSAGE MPUB failed to read message body")

    def rdy(self, params: list[bytes]) -> Event:
        if self._closing:
            return (b"RDY", 0)  # it has no effect
        count = self._number(params[0] if params else b"1", b"E_INVALID RDY could not parse count")
        if not 0 <= count <= self._limits.max_rdy_count:
            raise self._refusal(b"E_INVALID RDY count %d out of range 0-%d" % (count, self._limits.max_rdy_count))
        return (b"RDY", count)

    def fin(self, params: list[bytes]) -> Event:
        self._need(params, 1, b"FIN", b"params")
        return (b"FIN", self._id(params[0]))

    def req(self, params: list[bytes]) -> Event:
        self._need(params, 2, b"REQ", b"params")
        message_id = self._id(params[0])
        return (b"REQ", message_id, self._number(params[1], b"E_INVALID REQ could not parse timeout"))

    def touch(self, params: list[bytes]) -> Event:
        self._need(params, 1, b"TOUCH", b"params")
        return (b"TOUCH", self._id(params[0]))

    def cls(self, _params: list[bytes]) -> Event:
        self._closing = True
        return (b"CLS",)


_COMMANDS: dict[bytes, Callable[[_Reader, list[bytes]], Event]] = {
    b"NOP": _Reader.nop,
    b"IDENTIFY": _Reader.identify,
    b"AUTH": _Reader.auth,
    b"SUB": _Reader.sub,
    b"PUB": _Reader.pub,
    b"DPUB": _Reader.dpub,
    b"MPUB": _Reader.mpub,
    b"RDY": _Reader.rdy,
    b"FIN": _Reader.fin,
    b"REQ": _Reader.req,
    b"TOUCH": _Reader.touch,
    b"CLS": _Reader.cls,
}
