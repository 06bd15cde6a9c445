"""What leaves on a connection: frames, held back if the client asked for that, compressed if that was agreed.

Output buffering. A client may ask that message frames be held until its buffer is full or a timeout has passed. Held
frames leave early with any other frame, and when the client can take no more messages anyway. Holding only saves system
calls, and here a turn of the event loop already gathers what there is to send; so a client that accepts the server's
default timeout gets its messages at once. One that asks for another timeout gets what it asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from emberq.broker.stats import ClientStats
from emberq.wire.compression import Codec

MAX_UNREAD_REPLY_BYTES = 1024 * 1024
"""Answers that a client has not read before we stop reading its commands."""


class ClientConnection(Protocol):
    """An open connection, as those see it that do not speak with its client."""

    @property
    def has_published(self) -> bool: ...

    def abort(self) -> None:
        """Close now."""
        ...

    def stats(self) -> ClientStats:
        """The connection as /stats shows it."""
        ...


class Output:
    """The writing side of one connection. Owned by its session."""

    __slots__ = (
        "_held",
        "_held_bytes",
        "_is_unread",
        "_suspended",
        "buffer_bytes",
        "codec",
        "holds",
        "is_closing",
        "is_full",
        "transport",
        "write",
    )

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.write: Callable[[bytes], None]
        """Sends now."""
        self.codec: Codec | None = None
        self.holds = False
        """Whether message frames are held back."""
        self.buffer_bytes = 0
        """How much is held at most."""
        self.is_full = False
        """The socket does not take more for now."""
        self.is_closing = False
        """The connection is gone or about to go: nothing is worth answering any more."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_unread = False
        """Too many answers wait for the client to read them; until it does, it is not read from."""
        self._suspended = False
        """The session does not want to read for now."""

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Send by this transport from here on."""
        self.transport = transport
        self.write = transport.write

    def use_codec(self, codec: Codec) -> None:
        """Compress what is sent from here on."""
        self.codec = codec
        send = self.transport.write
        self.write = lambda data: send(codec.compress(data))

    def reply(self, data: bytes) -> None:
        """Send what is not a message; what is held goes before it."""
        if self._held:
            self.flush()
        self.write(data)
        if self.is_full:
            self._stop_reading_beyond_limit()

    def hold(self, frames: bytes) -> bool:
        """Keep frames back; whether that fills the buffer."""
        self._held.append(frames)
        self._held_bytes += len(frames)
        return self._held_bytes >= self.buffer_bytes

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            self.write(b"".join(self._held))
            self._held.clear()
            self._held_bytes = 0

    @property
    def has_held(self) -> bool:
        return bool(self._held)

    def _stop_reading_beyond_limit(self) -> None:
        if not self._is_unread and self.transport.get_write_buffer_size() > MAX_UNREAD_REPLY_BYTES:
            self._is_unread = True
            self.transport.pause_reading()

    def has_room(self) -> None:
        """The socket takes more again."""
        self.is_full = False
        self._is_unread = False
        self._read_if_wanted()

    def suspend_reading(self) -> None:
        """Leave what the client sends in the socket."""
        self._suspended = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._suspended = False
        self._read_if_wanted()

    def _read_if_wanted(self) -> None:
        if not self._suspended and not self._is_unread and not self.transport.is_reading():
            self.transport.resume_reading()
