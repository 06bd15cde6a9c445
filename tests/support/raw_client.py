"""A client for tests that shares no code with emberq, so that it can judge it.

It speaks NSQ's V2 protocol on a blocking socket and shows what arrived exactly as it arrived. Layouts, all
integers big-endian:

    server -> client   | int32 size | int32 type | data (size - 4 bytes) |
    a message's data   | int64 timestamp ns | uint16 attempts | 16 bytes id | body |
    client -> server   | COMMAND params... LF |   or   | COMMAND params... LF | int32 size | body |
    an MPUB's body     | int32 count | count x ( int32 size | body ) |
"""

from __future__ import annotations

import contextlib
import json
import select
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.support.raw_connection import Address, RawConnection

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
SCRATCH_TOPIC = "scratch#ephemeral"
"""Where `frames_until_now` publishes: ephemeral, so that it leaves no trace on disk."""


class Frame(NamedTuple):
    """What the server sends: a type and its data."""

    type: int
    data: bytes


class Message(NamedTuple):
    """The data of a message frame, or the payload of a record on disk."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def parse_message(data: bytes) -> Message:
    """Take a message apart."""
    timestamp_ns, attempts, message_id = struct.unpack_from(">qH16s", data)
    return Message(timestamp_ns, attempts, message_id, data[26:])


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    """The body of an MPUB without its leading size."""
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


class Client(RawConnection):
    """One connection."""

    def __init__(self, address: Address, *, magic: bytes = MAGIC, receive_buffer_bytes: int = 0) -> None:
        super().__init__(address, receive_buffer_bytes=receive_buffer_bytes)
        self.send(magic)

    # Sending

    def command(self, line: bytes, body: bytes | None = None) -> None:
        """Send a command line, and with a body also its size and the body, in one go."""
        tail = b"" if body is None else struct.pack(">i", len(body)) + body
        self.send(line + b"\n" + tail)

    def pub(self, topic: str, body: bytes) -> None:
        """Publish and await OK."""
        self.command(b"PUB " + topic.encode(), body)
        self.expect_ok()

    def mpub(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish several and await OK."""
        self.command(b"MPUB " + topic.encode(), mpub_body(bodies))
        self.expect_ok()

    def dpub(self, topic: str, defer_ms: int, body: bytes) -> None:
        """Publish deferred and await OK."""
        self.command(b"DPUB %s %d" % (topic.encode(), defer_ms), body)
        self.expect_ok()

    def sub(self, topic: str, channel: str) -> None:
        """Subscribe and await OK."""
        self.command(f"SUB {topic} {channel}".encode())
        self.expect_ok()

    def rdy(self, count: int) -> None:
        """Open the window to `count` messages."""
        self.command(b"RDY %d" % count)

    def fin(self, message: Message) -> None:
        """Acknowledge."""
        self.command(b"FIN " + message.id)

    def req(self, message: Message, timeout_ms: int = 0) -> None:
        """Requeue."""
        self.command(b"REQ %s %d" % (message.id, timeout_ms))

    def touch(self, message: Message) -> None:
        """Ask for more time."""
        self.command(b"TOUCH " + message.id)

    def nop(self) -> None:
        """Say that the client is alive."""
        self.command(b"NOP")

    def send_identify(self, **fields: Any) -> None:
        """Send IDENTIFY and leave its answer unread."""
        self.command(b"IDENTIFY", json.dumps(fields).encode())

    def identify(self, **fields: Any) -> dict[str, Any]:
        """IDENTIFY with feature negotiation; returns the negotiated values."""
        self.send_identify(feature_negotiation=True, **fields)
        negotiated: dict[str, Any] = json.loads(self.read_response())
        return negotiated

    # Receiving

    def read_frame(self) -> Frame:
        """The next frame, whatever it is."""
        size, frame_type = struct.unpack(">ii", self.read_exactly(8))
        return Frame(frame_type, self.read_exactly(size - 4))

    def _read_past_heartbeats(self) -> Frame:
        while (frame := self.read_frame()) == Frame(RESPONSE, HEARTBEAT):
            pass
        return frame

    def read_response(self) -> bytes:
        """The data of the next frame, which must be a response."""
        frame = self._read_past_heartbeats()
        assert frame.type == RESPONSE, frame
        return frame.data

    def read_message(self) -> Message:
        """The next frame, which must be a message."""
        frame = self._read_past_heartbeats()
        assert frame.type == MESSAGE, frame
        return parse_message(frame.data)

    def read_messages(self, count: int) -> list[Message]:
        """The next `count` messages."""
        return [self.read_message() for _ in range(count)]

    def frames_until_now(self) -> list[Frame]:
        """Everything the server had to say before this moment.

        A publish is answered after whatever the server sent before it, so the frames ahead of its OK are all there
        were: the proof that something did not arrive, and the proof that earlier commands have been executed.
        """
        self.command(b"PUB " + SCRATCH_TOPIC.encode(), b"-")
        frames: list[Frame] = []
        while (frame := self.read_frame()) != Frame(RESPONSE, b"OK"):
            frames.append(frame)
        return frames

    def messages_until_now(self) -> list[Message]:
        """The messages the server had sent before this moment, past any heartbeats."""
        frames = [frame for frame in self.frames_until_now() if frame != Frame(RESPONSE, HEARTBEAT)]
        assert all(frame.type == MESSAGE for frame in frames), frames
        return [parse_message(frame.data) for frame in frames]

    def frames_until_eof(self) -> list[Frame]:
        """Everything the server still has to say; it must then close."""
        frames: list[Frame] = []
        with contextlib.suppress(EOFError):
            while True:
                frames.append(self.read_frame())
        return frames

    def has_input(self) -> bool:
        """Is there anything to read, be it the end of the stream? Unlike `frames_until_now` it sends nothing."""
        readable, _, _ = select.select([self.socket], [], [], 0)
        return bool(readable)

    # Expecting

    def expect_ok(self) -> None:
        """The next frame is OK."""
        assert self._read_past_heartbeats() == Frame(RESPONSE, b"OK")

    def expect_heartbeat(self) -> None:
        """The next frame is a heartbeat."""
        assert self.read_frame() == Frame(RESPONSE, HEARTBEAT)

    def expect_error(self, text: str | bytes) -> None:
        """The next frame is an error with exactly this text."""
        data = text.encode() if isinstance(text, str) else text
        assert self._read_past_heartbeats() == Frame(ERROR, data)

    def expect_fatal(self, text: str | bytes) -> None:
        """An error with exactly this text, and then the end."""
        self.expect_error(text)
        self.expect_eof()
