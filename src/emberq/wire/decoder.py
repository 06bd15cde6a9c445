"""The server's end of a connection: bytes in, commands out; and the table of which command is legal when.

    feed(data)          give it what arrived
    next_command()      take commands, one at a time, until it returns None
    receive(data)       both at once
    repeated_pub(data)  a short way for a packet that is one PUB like the last
    eof()               tell it that the stream has ended

Each of these raises the `FatalError` that the bytes deserve, and as early as the bytes show it: a wrong line is refused
before its body has arrived. The decoder follows the connection's state itself (SUB subscribes, CLS closes), because
what may come next depends on it, and a client may send everything in one packet.

Commands are decoded in runs, so that nothing is paid per message that can be paid per packet: see `command`.

Bounds: besides the packet last fed, it holds at most one line of MAX_LINE_BYTES or one body of `max_body_size`
(`max_msg_size` for a PUB).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate

from emberq.wire import error
from emberq.wire.command import (
    FIN_LINE_BYTES,
    FIN_PREFIX,
    MAGIC_V2,
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    Nop,
    NumberedPublish,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.error import BadMagic, FatalError, SilentClose
from emberq.wire.frame import ID_BYTES
from emberq.wire.mpub import MpubBody
from emberq.wire.parameter import parse_int64, parse_name, parse_sequence, quote


class State(IntEnum):
    """The state of a connection; the numbers are what /stats shows."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


_ALWAYS = frozenset(State)
_BEFORE_SUB = frozenset({State.INIT})
_AFTER_SUB = frozenset({State.SUBSCRIBED, State.CLOSING})

LEGAL_STATES: dict[bytes, frozenset[State]] = {
    b"IDENTIFY": _BEFORE_SUB,
    b"AUTH": _BEFORE_SUB,
    b"SUB": _BEFORE_SUB,
    b"PUB": _ALWAYS,
    b"MPUB": _ALWAYS,
    b"DPUB": _ALWAYS,
    b"NOP": _ALWAYS,
    b"RDY": _AFTER_SUB,  # while closing it is legal and has no effect
    b"FIN": _AFTER_SUB,
    b"REQ": _AFTER_SUB,
    b"TOUCH": _AFTER_SUB,
    b"CLS": frozenset({State.SUBSCRIBED}),
}

MAX_LINE_BYTES = 16384  # the reference's read buffer; a longer line can only be garbage
MAX_FIN_RUN = 512  # one odd id sends its whole run to the line by line path, so a run must not be a whole packet
MAX_WAITING_PACKETS = 256  # each is an object: a body sent two bytes at a time must not take twenty times its size
_INT32 = struct.Struct(">i")
_NOP = Nop()


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """The sizes and numbers that a server accepts."""

    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_req_timeout_ms: int = 3_600_000
    max_rdy_count: int = 2500


class CommandDecoder:
    """Decodes one connection. Owned by its session."""

    def __init__(self, limits: CommandLimits) -> None:
        self._limits = limits
        self.state = State.INIT
        self.tls_required = False
        """While set, anything but IDENTIFY is refused."""
        self.heartbeats_enabled = True
        """SUB is refused without them."""
        self._takes_sequences = False
        """Whether a further parameter of PUB and MPUB is the number of the batch; otherwise it is ignored."""
        self.greeted = False
        """Whether the client has sent the magic."""
        self._buffer = b""
        """What has arrived; everything before `_position` is decoded."""
        self._position = 0
        self._waiting: list[bytes] = []
        """Packets kept apart until `_wanted_bytes` are there, so that a big body is joined once."""
        self._waiting_bytes = 0
        self._wanted_bytes = 0
        self._pub_line = b""
        self.pub_topic = ""
        """The line of the last PUB and its topic: the next line is likely the same and need not be parsed again."""
        self._mpub_line = b""
        self._mpub_topic = ""
        """The same of the last MPUB."""
        self._mpub: MpubBody | None = None
        """An MPUB whose body has not arrived in whole."""
        self._mpub_sequence: int | None = None
        """Its number, if it has one."""
        self._eof_error: FatalError | None = None
        """What `eof` raises here; None where the stream may end."""

    def take_sequences(self, wanted: bool) -> None:
        """From here on PUB and MPUB may carry the number of the batch, or may not."""
        self._takes_sequences = wanted
        self._pub_line = self._mpub_line = b""  # the same line may mean something else now

    def repeated_pub(self, data: bytes) -> bytes | None:
        """The message (int32 size and body), if this packet is just one PUB to `pub_topic`; then it is decoded.

        A short way for the commonest packet. None: it is to go the long way, by `feed` and `next_command`.
        """
        line = self._pub_line
        if not data.startswith(line) or self._buffer or self._waiting or self._mpub is not None or not line:
            return None
        start = len(line)
        size = int.from_bytes(data[start : start + 4])  # a negative one reads as too big
        if start + 4 + size != len(data) or not 0 < size <= self._limits.max_msg_size:
            return None
        return data[start:]

    def receive(self, data: bytes) -> Command | None:
        """`feed` and `next_command` in one."""
        self.feed(data)
        return self.next_command()

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self._mpub is not None:
            self._buffer = self._buffer[self._position :] + data if self._position < len(self._buffer) else data
            self._position = 0
            return
        if self._waiting:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes < self._wanted_bytes:
                if len(self._waiting) == MAX_WAITING_PACKETS:
                    self._waiting = [b"".join(self._waiting)]
                return
            data = b"".join(self._waiting)
            self._waiting.clear()
        elif self._position < len(self._buffer):
            rest = self._buffer[self._position :]
            if len(rest) + len(data) < self._wanted_bytes:
                self._waiting = [rest, data]
                self._waiting_bytes = len(rest) + len(data)
                data = b""
            else:
                data = rest + data
        self._buffer = data
        self._position = 0

    def next_command(self) -> Command | None:
        """The next command, or None when more bytes are needed for one."""
        if self._mpub is not None:
            return self._continue_mpub(self._mpub)
        buffer = self._buffer
        position = self._position
        if position == len(buffer):
            if buffer:
                self._buffer = b""  # an idle connection holds no memory
                self._position = 0
            return None
        self._eof_error = None
        if self._pub_line and buffer.startswith(self._pub_line, position):
            return self._take_pub_run(self.pub_topic, self._pub_line)
        if self._mpub_line and buffer.startswith(self._mpub_line, position):
            return self._take_mpub(self._mpub_topic, position + len(self._mpub_line))
        if buffer.startswith(FIN_PREFIX, position) and self.state is not State.INIT and not self.tls_required:
            run = self._take_fin_run()
            if run is not None:
                return run
        if not self.greeted:
            return self.next_command() if self._take_magic() else None
        return self._take_line()

    def _take_line(self) -> Command | None:
        buffer, position = self._buffer, self._position
        line_end = buffer.find(b"\n", position, position + MAX_LINE_BYTES)
        if line_end < 0:
            if len(buffer) - position >= MAX_LINE_BYTES:
                raise SilentClose("a line longer than any command")
            self._wait_for(len(buffer) + 1)
            return None
        line = buffer[position:line_end]
        if line.endswith(b"\r"):
            line = line[:-1]
        name, *params = line.split(b" ")
        try:
            self._check_legal(name)
            return _PARSERS[name](self, params, line_end + 1)
        except FatalError as wrong:
            wrong.line = b"AUTH" if name == b"AUTH" else line  # a client may have put its secret into the line
            raise

    def eof(self) -> None:
        """The stream has ended. Raises if that cut a body off."""
        if self._mpub is not None:
            raise self._mpub.eof_error()
        if self._eof_error is not None:
            raise self._eof_error

    def discard(self) -> None:
        """Forget what has arrived but is not decoded, as an upgrade of the stream demands."""
        self._buffer = b""
        self._position = 0
        self._waiting.clear()

    # Lines.

    def _take_magic(self) -> bool:
        magic = self._buffer[self._position : self._position + len(MAGIC_V2)]
        if len(magic) < len(MAGIC_V2):
            self._wait_for(self._position + len(MAGIC_V2))
            return False
        if magic != MAGIC_V2:
            raise BadMagic(magic)
        self._position += len(MAGIC_V2)
        self.greeted = True
        return True

    def _wait_for(self, end: int, eof_error: FatalError | None = None) -> None:
        """Nothing can be decoded before the buffer reaches `end`."""
        self._wanted_bytes = end - self._position
        self._eof_error = eof_error

    def _check_legal(self, name: bytes) -> None:
        if self.tls_required and name != b"IDENTIFY":
            raise FatalError(error.INVALID, b"cannot %b in current state (TLS required)" % name)
        states = LEGAL_STATES.get(name)
        if states is None:
            raise FatalError(error.INVALID, b"invalid command %b" % name)
        if self.state not in states:
            raise FatalError(error.INVALID, b"cannot %b in current state" % name)

    def _parse_nop(self, _params: Sequence[bytes], after_line: int) -> Command:
        self._position = after_line
        return _NOP

    def _parse_sub(self, params: Sequence[bytes], after_line: int) -> Command:
        if not self.heartbeats_enabled:
            raise FatalError(error.INVALID, b"cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise FatalError(error.INVALID, b"SUB insufficient number of parameters")
        topic = _parse_topic(b"SUB", params[0])
        channel = parse_name(params[1])
        if channel is None:
            raise FatalError(error.BAD_CHANNEL, b"SUB channel name %b is not valid" % quote(params[1]))
        self._position = after_line
        self.state = State.SUBSCRIBED
        return Sub(topic, channel)

    def _parse_rdy(self, params: Sequence[bytes], after_line: int) -> Command:
        if self.state is State.CLOSING:
            self._position = after_line
            return Rdy(0)  # whatever it says, it has no effect
        raw = params[0] if params else b"1"
        count = parse_int64(raw)
        if count is None:
            raise FatalError(error.INVALID, b"RDY could not parse count %b" % raw)
        if not 0 <= count <= self._limits.max_rdy_count:
            text = b"RDY count %d out of range 0-%d" % (count, self._limits.max_rdy_count)
            raise FatalError(error.INVALID, text)
        self._position = after_line
        return Rdy(count)

    def _parse_cls(self, _params: Sequence[bytes], after_line: int) -> Command:
        self._position = after_line
        self.state = State.CLOSING
        return Cls()

    def _take_fin_run(self) -> Fin | None:
        """All the plain `FIN <id>` lines in a row at the start of the buffer, or None if even the first is unusual.

        A column of the run is a slice with the line's length as its stride. So the check is a few passes over the bytes
        in C, and no work per line in Python.
        """
        buffer, start = self._buffer, self._position
        count = min((len(buffer) - start) // FIN_LINE_BYTES, MAX_FIN_RUN)
        for column, letter in ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (FIN_LINE_BYTES - 1, b"\n")):
            letters = buffer[start + column : start + count * FIN_LINE_BYTES : FIN_LINE_BYTES]
            count -= len(letters.lstrip(letter))
            if count == 0:
                return None
        end = start + count * FIN_LINE_BYTES
        lines = buffer[start:end]
        if lines.count(b" ") != count or lines.count(b"\n") != count or b"\r" in lines:
            return None  # an id with a separator in it: the line by line path parses each
        self._position = end
        return Fin(lines)

    def _parse_fin(self, params: Sequence[bytes], after_line: int) -> Command:
        message_id = _parse_id(b"FIN", params, needed=1)
        self._position = after_line
        return Fin(b"FIN %b\n" % message_id)

    def _parse_req(self, params: Sequence[bytes], after_line: int) -> Command:
        message_id = _parse_id(b"REQ", params, needed=2)
        timeout_ms = parse_int64(params[1])
        if timeout_ms is None:
            raise FatalError(error.INVALID, b"REQ could not parse timeout %b" % params[1])
        self._position = after_line
        return Req(message_id, timeout_ms)

    def _parse_touch(self, params: Sequence[bytes], after_line: int) -> Command:
        message_id = _parse_id(b"TOUCH", params, needed=1)
        self._position = after_line
        return Touch(message_id)

    # Lines with a body.

    def _parse_identify(self, _params: Sequence[bytes], after_line: int) -> Command | None:
        body = self._take_body(b"IDENTIFY", after_line)
        return None if body is None else Identify(body)

    def _parse_auth(self, params: Sequence[bytes], after_line: int) -> Command | None:
        if params:
            raise FatalError(error.INVALID, b"AUTH invalid number of parameters")
        secret = self._take_body(b"AUTH", after_line)
        return None if secret is None else Auth(secret)

    def _take_body(self, verb: bytes, start: int) -> bytes | None:
        """The body that starts with its size at `start`, or None while it is not all there."""
        buffer = self._buffer
        if len(buffer) < start + 4:
            self._wait_for(start + 4, FatalError(error.BAD_BODY, b"%b failed to read body size" % verb))
            return None
        (size,) = _INT32.unpack_from(buffer, start)
        if size > self._limits.max_body_size:
            text = b"%b body too big %d > %d" % (verb, size, self._limits.max_body_size)
            raise FatalError(error.BAD_BODY, text)
        if size <= 0:
            raise FatalError(error.BAD_BODY, b"%b invalid body size %d" % (verb, size))
        end = start + 4 + size
        if len(buffer) < end:
            self._wait_for(end, FatalError(error.BAD_BODY, b"%b failed to read body" % verb))
            return None
        self._position = end
        return buffer[start + 4 : end]

    def _parse_pub(self, params: Sequence[bytes], after_line: int) -> Command | None:
        if not params:
            raise FatalError(error.INVALID, b"PUB insufficient number of parameters")
        topic = _parse_topic(b"PUB", params[0])
        if self._takes_sequences and len(params) > 1:
            return self._take_numbered_pub(topic, _parse_sequence(b"PUB", params[1]), after_line)
        line = self._buffer[self._position : after_line]
        self.pub_topic, self._pub_line = topic, line
        return self._take_pub_run(topic, line)

    def _take_numbered_pub(self, topic: str, sequence: int, start: int) -> NumberedPublish | None:
        end = self._message_end(b"PUB", start)
        if end is None:
            return None
        self._position = end
        return NumberedPublish(b"PUB", topic, self._buffer[start:end], (end - start,), sequence)

    def _take_pub_run(self, topic: str, line: bytes) -> Publish | None:
        """All the PUBs in a row at the start of the buffer that begin with this line; None until one is all there."""
        buffer = self._buffer
        start = self._position + len(line)
        end = self._plain_message_end(start) or self._message_end(b"PUB", start)
        if end is None:
            return None
        self._position = end
        first = buffer[start:end]
        if end == len(buffer):
            return Publish(b"PUB", topic, first, (end - start,), 1)
        messages = [first]
        while buffer.startswith(line, end):
            next_start = end + len(line)
            next_end = self._plain_message_end(next_start)
            if next_end is None:
                break  # incomplete or invalid: the next call waits or raises
            messages.append(buffer[next_start:next_end])
            end = next_end
        self._position = end
        return Publish(b"PUB", topic, b"".join(messages), _ends_of(messages), len(messages))

    def _parse_dpub(self, params: Sequence[bytes], after_line: int) -> Command | None:
        if len(params) < 2:
            raise FatalError(error.INVALID, b"DPUB insufficient number of parameters")
        topic = _parse_topic(b"DPUB", params[0])
        defer_ms = parse_int64(params[1])
        if defer_ms is None:
            raise FatalError(error.INVALID, b"DPUB could not parse timeout %b" % params[1])
        if not 0 <= defer_ms <= self._limits.max_req_timeout_ms:
            text = b"DPUB timeout %d out of range 0-%d" % (defer_ms, self._limits.max_req_timeout_ms)
            raise FatalError(error.INVALID, text)
        end = self._message_end(b"DPUB", after_line)
        if end is None:
            return None
        self._position = end
        return DeferredPublish(topic, defer_ms, self._buffer[after_line:end])

    def _message_end(self, verb: bytes, start: int) -> int | None:
        """Where the message that starts with its size at `start` ends, or None while it is not all there."""
        buffer = self._buffer
        if len(buffer) < start + 4:
            self._wait_for(start + 4, FatalError(error.BAD_MESSAGE, b"%b failed to read message body size" % verb))
            return None
        (size,) = _INT32.unpack_from(buffer, start)
        if size <= 0:
            raise FatalError(error.BAD_MESSAGE, b"%b invalid message body size %d" % (verb, size))
        if size > self._limits.max_msg_size:
            text = b"%b message too big %d > %d" % (verb, size, self._limits.max_msg_size)
            raise FatalError(error.BAD_MESSAGE, text)
        end: int = start + 4 + size
        if len(buffer) < end:
            self._wait_for(end, FatalError(error.BAD_MESSAGE, b"%b failed to read message body" % verb))
            return None
        return end

    def _plain_message_end(self, start: int) -> int | None:
        """As `_message_end`, but None for all that is no complete and valid message."""
        buffer = self._buffer
        size = int.from_bytes(buffer[start : start + 4])  # a negative one reads as too big
        end = start + 4 + size
        return end if 0 < size <= self._limits.max_msg_size and end <= len(buffer) else None

    def _parse_mpub(self, params: Sequence[bytes], after_line: int) -> Command | None:
        if not params:
            raise FatalError(error.INVALID, b"MPUB insufficient number of parameters")
        topic = parse_name(params[0])
        if topic is None:
            # The reference's answer has the code twice, so ours has too.
            text = b"E_BAD_TOPIC MPUB topic name %b is not valid" % quote(params[0])
            raise FatalError(error.BAD_TOPIC, text)
        if self._takes_sequences and len(params) > 1:
            return self._take_mpub(topic, after_line, sequence=_parse_sequence(b"MPUB", params[1]))
        self._mpub_topic, self._mpub_line = topic, self._buffer[self._position : after_line]
        return self._take_mpub(topic, after_line)

    def _take_mpub(self, topic: str, after_line: int, *, sequence: int | None = None) -> Command | None:
        body = MpubBody(
            topic,
            max_msg_size=self._limits.max_msg_size,
            max_body_size=self._limits.max_body_size,
        )
        command, end = body.begin(self._buffer, after_line)
        if command is not None:
            self._position = end
            return command if sequence is None else _numbered(command, sequence)
        self._buffer = b""
        self._position = 0
        self._mpub = body
        self._mpub_sequence = sequence
        return None

    def _continue_mpub(self, body: MpubBody) -> Command | None:
        """Give the body what has arrived: up to its declared end first, so that what follows need not be copied."""
        self._position += body.extend_to_declared(self._buffer[self._position :] if self._position else self._buffer)
        command = body.take()
        if command is None and self._position < len(self._buffer):
            body.extend(self._buffer[self._position :])  # it declared too little; the counts in it decide
            self._position = len(self._buffer)
            command = body.take()
        if command is None:
            self._buffer = b""
            self._position = 0
            return None
        self._mpub = None
        rest = body.rest()
        if rest:
            self._buffer = rest + self._buffer[self._position :]
            self._position = 0
        return command if self._mpub_sequence is None else _numbered(command, self._mpub_sequence)


_PARSERS: dict[bytes, Callable[[CommandDecoder, Sequence[bytes], int], Command | None]] = {
    b"PUB": CommandDecoder._parse_pub,
    b"MPUB": CommandDecoder._parse_mpub,
    b"DPUB": CommandDecoder._parse_dpub,
    b"FIN": CommandDecoder._parse_fin,
    b"REQ": CommandDecoder._parse_req,
    b"TOUCH": CommandDecoder._parse_touch,
    b"RDY": CommandDecoder._parse_rdy,
    b"NOP": CommandDecoder._parse_nop,
    b"SUB": CommandDecoder._parse_sub,
    b"CLS": CommandDecoder._parse_cls,
    b"IDENTIFY": CommandDecoder._parse_identify,
    b"AUTH": CommandDecoder._parse_auth,
}
"""Each takes the line's parameters and where the line ended; None when the body has not arrived in whole."""


def _parse_topic(verb: bytes, raw: bytes) -> str:
    topic = parse_name(raw)
    if topic is None:
        raise FatalError(error.BAD_TOPIC, b"%b topic name %b is not valid" % (verb, quote(raw)))
    return topic


def _parse_sequence(verb: bytes, raw: bytes) -> int:
    sequence = parse_sequence(raw)
    if sequence is None:
        raise FatalError(error.INVALID, b"%b could not parse sequence %b" % (verb, raw))
    return sequence


def _numbered(command: Publish, sequence: int) -> NumberedPublish:
    return NumberedPublish(command.verb, command.topic, command.blob, command.ends, sequence)


def _parse_id(verb: bytes, params: Sequence[bytes], *, needed: int) -> bytes:
    if len(params) < needed:
        raise FatalError(error.INVALID, b"%b insufficient number of params" % verb)
    if len(params[0]) != ID_BYTES:
        raise FatalError(error.INVALID, b"invalid message ID")
    return params[0]


def _ends_of(messages: Sequence[bytes]) -> Sequence[int]:
    """Where each message ends once they are joined; a `range` when all have one size."""
    size = len(messages[0])
    if all(len(message) == size for message in messages):
        return range(size, size * len(messages) + 1, size)
    return list(accumulate(map(len, messages)))
