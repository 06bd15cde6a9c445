"""The server's end of a connection: bytes in, commands out.

    feed(data)          give it what arrived
    next_command()      take commands, one at a time, until it returns None
    receive(data)       both at once
    room(), received()  a way for large messages: what is received where `room` says is not fed
    repeated(data)      a short way for a packet that publishes one message, by the same line as the last
    eof()               tell it that the stream has ended

Each of these raises the `FatalError` that the bytes deserve, and as early as the bytes show it: a wrong line is refused
before its body has arrived.

It does three things. `run` takes what clients send most, in runs. `line` parses every other line. A body that has not
arrived in whole is an `ArrivingBody` (`body`, `mpub`), which is given what comes until its end is there.

Bounds: besides the packet last fed, it holds at most one line of MAX_LINE_BYTES or one body of `max_body_size`
(`max_msg_size` for a PUB). A connection that has said all holds one line of MAX_KNOWN_LINE_BYTES.
"""

from __future__ import annotations

from typing import Final

from emberq.wire.body import ArrivingBody, SizedBody, check_size, cut_off, read_size
from emberq.wire.command import (
    FIN_LINE_BYTES,
    MAGIC_V2,
    BodyValue,
    Command,
    CommandWithBody,
    DeferredPublish,
    Fin,
    Identify,
    NumberedPublish,
    Publish,
    Rdy,
)
from emberq.wire.error import BadMagic, FatalError, SilentClose
from emberq.wire.line import MAX_KNOWN_LINE_BYTES, CommandLimits, LineParser
from emberq.wire.mpub import HEAD_BYTES, MpubBody, check_head, head_cut_off, is_head_of_one, mixed_ends
from emberq.wire.run import is_fin, message_end, take_fins, take_pubs, take_rdy, take_req

MAX_LINE_BYTES: Final = 16384  # the reference's read buffer; a longer line can only be garbage
MAX_REQUEST_BYTES: Final = 65536
"""Of an IDENTIFY or AUTH; a real one has some hundred. It comes from a client of whom nothing is known yet, and is
parsed or passed on at one go."""
_F: Final = 0x46
_P: Final = 0x50
_R: Final = 0x52


class CommandDecoder(LineParser):
    """Decodes one connection. Owned by its session."""

    def __init__(self, limits: CommandLimits) -> None:
        super().__init__(limits)
        self._max_msg_size = limits.max_msg_size
        self.greeted = False
        """Whether the client has sent the magic."""
        self._buffer = b""
        """What has arrived; everything before `_position` is decoded. Empty when everything is."""
        self._position = 0
        self._body: ArrivingBody | None = None
        """A body that has not arrived in whole; everything before it is decoded."""
        self._last_line = b""
        """The line by which one message was last published: the next is likely the same, and is not parsed again."""
        self._last_head_bytes = 0
        """What stands between that line and the message."""
        self.last: Publish | DeferredPublish = Publish(b"PUB", "", b"", (), 1)
        """The command of that line."""
        self._eof_error: FatalError | None = None
        """What `eof` raises here; None where the stream may end."""

    def take_sequences(self, wanted: bool) -> None:
        """From here on PUB and MPUB may carry the number of the batch, or may not."""
        self._takes_sequences = wanted
        self._last_line = b""  # the same line may mean something else now

    def repeated(self, data: bytes) -> bytes | None:
        """The message (int32 size and body), if this packet is a command like `last`; then it is decoded.

        A short way for the commonest packets. None: it is to go the long way, by `feed` and `next_command`.
        """
        line = self._last_line
        if not line or not data.startswith(line) or self._buffer or self._body is not None:
            return None
        start = len(line)
        if self._last_head_bytes:
            if not is_head_of_one(data, start, max_body_size=self._limits.max_body_size):
                return None
            start += HEAD_BYTES
        return data[start:] if message_end(data, start, self._max_msg_size) == len(data) else None

    def _remember(self, line: bytes, command: Publish | DeferredPublish, head_bytes: int) -> None:
        self._last_line = line if len(line) <= MAX_KNOWN_LINE_BYTES else b""
        self._last_head_bytes = head_bytes
        self.last = command

    def receive(self, data: bytes) -> Command | None:
        """`feed` and `next_command` in one."""
        is_between_commands = self._body is None and not self._buffer
        if is_between_commands and len(data) == FIN_LINE_BYTES and self.is_subscribed and is_fin(data):
            return Fin(data)  # what most clients send: each FIN by itself
        self.feed(data)
        return self.next_command()

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self._buffer:
            data = self._buffer[self._position :] + data
        self._buffer = data
        self._position = 0

    def next_command(self) -> Command | None:
        """The next command, or None when more bytes are needed for one."""
        buffer = self._buffer
        if not buffer:
            return self._received_body() if self.has_received_body else None
        command = self._take_command(buffer)
        if self._position == len(buffer):
            self._buffer = b""
            self._position = 0
        elif command is None and self._position:
            self._buffer = buffer[self._position :]  # the next packet may be long in coming
            self._position = 0
        return command

    def _take_command(self, buffer: bytes) -> Command | None:
        if self._body is not None:
            return self._continue_body(self._body, buffer)
        self._eof_error = None
        command = self._take_usual(buffer, self._position)
        if command is not None:
            return command
        if not self.greeted and not self._take_magic(buffer):
            return None
        line_end = buffer.find(b"\n", self._position, self._position + MAX_LINE_BYTES)
        if line_end < 0:
            if len(buffer) - self._position >= MAX_LINE_BYTES:
                raise SilentClose("a line longer than any command")
            return None
        line = buffer[self._position : line_end]
        try:
            command = self.parse_line(line)
            if isinstance(command, BodyValue):
                return self._take_body(command, buffer, line_end + 1)
        except FatalError as wrong:
            wrong.line = b"AUTH" if line.startswith(b"AUTH") else line  # its secret may be in the line by mistake
            raise
        self._position = line_end + 1
        return command

    def room(self) -> memoryview | None:
        """Where the next bytes, the rest of a large message, may be received instead of being fed; None if nowhere.

        `received` is to be told how many these were. They become a command when the memoryview is released.
        """
        body = self._body
        return body.room() if isinstance(body, SizedBody) and not self._buffer else None

    def received(self, count: int) -> None:
        """So many bytes were received into `room`."""
        if isinstance(self._body, SizedBody):
            self._body.received(count)

    @property
    def has_received_body(self) -> bool:
        """Whether `next_command` has a command whose body was received into `room`."""
        return isinstance(self._body, SizedBody) and self._body.has_arrived

    def _received_body(self) -> Command | None:
        body, self._body = self._body, None
        return None if body is None else body.command(body.joined())

    def eof(self) -> None:
        """The stream has ended. Raises if that cut a body off."""
        if self._body is not None:
            raise self._body.eof_error()
        if self._eof_error is not None:
            raise self._eof_error

    def discard(self) -> None:
        """Forget what has arrived but is not decoded, as an upgrade of the stream demands."""
        self._buffer = b""
        self._position = 0
        self._body = None
        self._eof_error = None

    def _take_usual(self, buffer: bytes, start: int) -> Command | None:
        """The command that stands here, if it is one that has a short way, and is spelled as clients usually do."""
        letter = buffer[start]
        if letter == _F and self.is_subscribed:
            lines = take_fins(buffer, start)
            if lines:
                self._position = start + len(lines)
                return Fin(lines)
        elif letter == _R and self.takes_rdy:
            req, end = take_req(buffer, start)
            if req is not None:
                self._position = end
                return req
            count, end = take_rdy(buffer, start)
            if end >= 0 and count <= self._limits.max_rdy_count:
                self._position = end
                return Rdy(count)
        elif letter == _P and self._last_line:
            line = self._last_line
            if buffer[start : start + len(line)] == line:
                return self._take_pubs(buffer, line, self.last.topic)
        return None

    def _take_magic(self, buffer: bytes) -> bool:
        """Whether the magic has arrived, and something behind it."""
        if len(buffer) < len(MAGIC_V2):
            return False
        if not buffer.startswith(MAGIC_V2):
            raise BadMagic(buffer[: len(MAGIC_V2)])
        self._position = len(MAGIC_V2)
        self.greeted = True
        return len(buffer) > len(MAGIC_V2)

    # Bodies.

    def _take_body(self, command: CommandWithBody, buffer: bytes, start: int) -> Command | None:
        """The command whose line ended at `start`, if its body is there too."""
        if isinstance(command, Publish):
            line = buffer[self._position : start]
            if command.verb == b"MPUB":
                mpub = self._take_mpub(command.topic, None, buffer, start)
                if isinstance(mpub, Publish) and len(mpub.ends) == 1:
                    self._remember(line, command, HEAD_BYTES)
                return mpub
            self._remember(line, Publish(b"PUB", command.topic, b"", (), 1), 0)
            publish = self._take_pubs(buffer, line, command.topic)
            return self._take_sized(command, b"PUB", buffer, start) if publish is None else publish
        if isinstance(command, NumberedPublish):
            if command.verb == b"MPUB":
                return self._take_mpub(command.topic, command.sequence, buffer, start)
            return self._take_sized(command, b"PUB", buffer, start)
        if isinstance(command, DeferredPublish):
            self._remember(buffer[self._position : start], DeferredPublish(command.topic, command.defer_ms), 0)
            return self._take_sized(command, b"DPUB", buffer, start)
        return self._take_sized(command, b"IDENTIFY" if isinstance(command, Identify) else b"AUTH", buffer, start)

    def _take_pubs(self, buffer: bytes, line: bytes, topic: str) -> Publish | None:
        publish, self._position = take_pubs(
            buffer, self._position, line=line, topic=topic, max_msg_size=self._max_msg_size
        )
        return publish

    def _take_sized(self, command: CommandWithBody, verb: bytes, buffer: bytes, start: int) -> Command | None:
        is_message = verb.endswith(b"PUB")
        if start + 4 > len(buffer):
            self._eof_error = cut_off(verb, is_message=is_message, what=b" size")
            return None
        size = read_size(buffer, start)
        limit = self._max_msg_size if is_message else self._limits.max_body_size
        check_size(verb, size, limit=limit, is_message=is_message)
        if not is_message:
            check_size(verb, size, limit=MAX_REQUEST_BYTES, is_message=False)
        body_start, end = start if is_message else start + 4, start + 4 + size
        if end <= len(buffer):
            command.fill(buffer[body_start:end])
            self._position = end
            return command
        return self._begin_body(SizedBody(command, verb, size, is_message=is_message), buffer, body_start)

    def _take_mpub(self, topic: str, sequence: int | None, buffer: bytes, start: int) -> Command | None:
        max_body_size = self._limits.max_body_size
        count = check_head(buffer, start, topic=topic, max_body_size=max_body_size)
        if count < 0:
            self._eof_error = head_cut_off(len(buffer) - start, topic=topic)
            return None
        start += HEAD_BYTES
        max_msg_size = self._max_msg_size
        if sequence is None and count > 1:
            ends = mixed_ends(buffer, start, count, max_msg_size=max_msg_size, max_body_size=max_body_size)
            if ends is not None:
                self._position = start + ends[-1]
                return Publish(b"MPUB", topic, buffer[start : self._position], ends, 1)
        body = MpubBody(topic, count, max_msg_size=max_msg_size, max_body_size=max_body_size, sequence=sequence)
        return self._begin_body(body, buffer, start)

    def _begin_body(self, body: ArrivingBody, buffer: bytes, start: int) -> Command | None:
        end = body.end_in(buffer, start)
        if end < 0:
            body.keep(buffer, start, len(buffer))
            self._body = body
            self._position = len(buffer)
            return None
        self._position = end
        return body.command(buffer[start:end])

    def _continue_body(self, body: ArrivingBody, buffer: bytes) -> Command | None:
        end = body.end_in(buffer, self._position)
        if end < 0:
            body.keep(buffer, self._position, len(buffer))
            self._position = len(buffer)
            return None
        body.keep(buffer, self._position, end)
        self._position = end
        self._body = None
        return body.command(body.joined())
