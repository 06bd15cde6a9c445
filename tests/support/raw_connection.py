"""What the tests' own clients have in common, whatever they speak: one blocking socket, used byte by byte."""

from __future__ import annotations

import contextlib
import socket
import struct

from tests.support.waiting import PATIENCE_S

Address = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""


class RawConnection:
    """One connection. Every read gives up after `PATIENCE_S`."""

    def __init__(self, address: Address, *, receive_buffer_bytes: int = 0) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(address)

    @property
    def address(self) -> str:
        """The client's end, as the server sees it."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def read_exactly(self, size: int) -> bytes:
        """The next `size` bytes."""
        data = bytearray()
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise EOFError(f"connection closed after {len(data)} of {size} bytes")
            data += received
        return bytes(data)

    def read_until_eof(self) -> bytes:
        """Everything that the server still says; it must then close."""
        data = bytearray()
        while received := self.socket.recv(65536):
            data += received
        return bytes(data)

    def expect_eof(self) -> None:
        """The server closed in order and said nothing more."""
        assert self.socket.recv(1) == b""

    def expect_closed(self) -> None:
        """The server closed, in order or by a reset, and said nothing more."""
        with contextlib.suppress(ConnectionResetError):
            self.expect_eof()

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish: what the server writes from now on cannot be delivered."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        """Close in order. Closing twice is harmless."""
        self.socket.close()
