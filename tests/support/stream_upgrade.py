"""What a client does after an IDENTIFY that agreed on TLS or compression: it goes on in another kind of stream.

Each function replaces the socket of a `Client` by one that speaks the new kind, and awaits the OK that nsqd sends in
it. They can be stacked: compression inside TLS. Compression is done by zlib and by the tests' own slow snappy.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Callable
from socket import socket
from typing import cast

from tests.support.raw_client import Client
from tests.wire import reference_snappy as snappy

READ_BYTES = 65536


class TranslatedSocket:
    """A socket whose bytes are translated on their way out and in. It has what `Client` uses of a socket."""

    def __init__(self, below: socket, *, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]) -> None:
        self.below = below
        self._encode = encode
        self._decode = decode
        self._read = b""

    def sendall(self, data: bytes) -> None:
        self.below.sendall(self._encode(data))

    def recv(self, size: int) -> bytes:
        while not self._read:
            received = self.below.recv(READ_BYTES)
            if not received:
                return b""
            self._read = self._decode(received)
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    def fileno(self) -> int:
        return self.below.fileno()

    def close(self) -> None:
        self.below.close()


def start_tls(client: Client, context: ssl.SSLContext) -> None:
    """Shake hands, and read the OK inside TLS."""
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    client.expect_ok()


def start_deflate(client: Client, level: int = 6) -> None:
    """Go on in raw deflate, and read the OK inside."""
    deflater, inflater = zlib.compressobj(level, zlib.DEFLATED, -15), zlib.decompressobj(-15)

    def encode(data: bytes) -> bytes:
        return deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)

    _translate(client, encode=encode, decode=inflater.decompress)
    client.expect_ok()


def start_snappy(client: Client) -> None:
    """Go on in snappy's framing format, and read the OK inside."""
    client.send(snappy.IDENTIFIER)
    _translate(client, encode=snappy_chunks, decode=snappy.Reader().feed)
    client.expect_ok()


def snappy_chunks(data: bytes) -> bytes:
    """The data in chunks, each a compressed one, though it does not make it shorter."""
    starts = range(0, len(data), snappy.MAX_PLAIN_BYTES)
    literals = (snappy.Literal(data[start : start + snappy.MAX_PLAIN_BYTES]) for start in starts)
    return b"".join(snappy.compressed_chunk([literal]) for literal in literals)


def _translate(client: Client, *, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]) -> None:
    translated = TranslatedSocket(client.socket, encode=encode, decode=decode)
    client.socket = cast(socket, translated)
