"""Snappy and deflate streams without I/O, the same for both ends of a connection.

    compress(data)      what to send so that the peer can read all of `data` now
    decompress(data)    the plain bytes in what arrived, piece by piece

A few compressed bytes can stand for very many plain ones. So plain bytes come in pieces of at most PIECE_BYTES, each
made when the caller asks for it. The caller may stop at any point: what it has not taken stays compressed in the codec
and comes first out of the next `decompress`, even that of no bytes.

Very many compressed bytes can also stand for few plain ones or none: chunks of padding, empty blocks. They cost time
all the same. So no piece is made of more than MAX_STEP_CHUNKS chunks of snappy or STEP_BYTES of deflate, and if there
was nothing in them, an empty piece lets the caller stop there too.

Deflate is raw (no zlib header, window of 32 KiB) and flushed to a byte boundary after each `compress`.

Snappy is the framing format: a stream is a sequence of chunks, lengths are little-endian.

    chunk                  | uint8 kind | uint24 length | data (length bytes) |
    kind ff, identifier    | "sNaPpY" |                   first in the stream; may be repeated
    kind 00, compressed    | uint32 masked CRC-32C | varint length of the plain bytes, snappy block |
    kind 01, uncompressed  | uint32 masked CRC-32C | plain bytes |
    kind 02 to 7f          reserved; a reader must give up
    kind 80 to fe          padding and extensions; a reader passes over them

The checksum is that of the plain bytes, of which a chunk holds at most 65536. Blocks are left to cramjam, and a stream
to send as a whole. What arrives is taken apart here: cramjam would need a new reader, with buffers of its own, for each
packet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, cast

import cramjam
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from mypy_extensions import i64  # native integers, when compiled

PIECE_BYTES = 256 * 1024
"""Most plain bytes made at once: what one read from a socket brings at most."""
MAX_STEP_CHUNKS = 256
"""Most chunks of snappy read for one piece: they take half a millisecond."""
STEP_BYTES = 64 * 1024
"""Most bytes of deflate read for one piece. The worst, tables of codes for empty blocks, take 3 milliseconds."""
WARY_STEP_BYTES = 16 * 1024
"""The same behind a step that held less than half as many plain bytes, as no honest peer's does."""
WINDOW_BITS = -15
"""Deflate's largest window; negative means without zlib's header and trailer."""

STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
CHUNK_HEADER_BYTES: Final = 4
CHECKSUM_BYTES: Final = 4
MAX_CHUNK_PLAIN_BYTES: Final = 65536
MAX_CHUNK_BLOCK_BYTES: Final = 32 + MAX_CHUNK_PLAIN_BYTES + MAX_CHUNK_PLAIN_BYTES // 6
"""The most that snappy makes of a chunk that does not compress."""

_DeflateError = cast(type[Exception], zlib_ng.error)
_UNCOMPRESSED: Final = 0x01
_FIRST_SKIPPABLE: Final = 0x80
_IDENTIFIER: Final = 0xFF
_NOT_THERE: Final = -1
_CHECKSUM_MASK: Final = 0xA282EAD8
"""The format masks checksums, as data may hold checksums itself."""


class CompressionError(Exception):
    """What the peer sent is not a stream of the agreed kind; nothing more can be read from it."""


class Codec(Protocol):
    """Both directions of one connection. Owned by the connection's session or client."""

    def compress(self, data: bytes) -> bytes:
        """The bytes to send; the peer needs no later ones to read all of `data`."""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes of what arrived, in pieces of 0 to PIECE_BYTES; taking one may raise CompressionError."""


class DeflateCodec:
    """Raw deflate. The level, 1 to 9, is that of what we send; what arrives may have any."""

    def __init__(self, level: int) -> None:
        self._deflater = zlib_ng.compressobj(level, zlib_ng.DEFLATED, WINDOW_BITS)
        self._inflater = zlib_ng.decompressobj(WINDOW_BITS)
        self._arrived = b""
        """What has arrived. The inflater has not taken what stands behind `_position`, because its plain bytes have not
        been asked for."""
        self._position = 0
        self._step_bytes = STEP_BYTES

    def compress(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib_ng.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        if data:
            self._arrived = self._arrived[self._position :] + data
            self._position = 0
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        inflater = self._inflater
        is_full = True  # a full piece may have left plain bytes in the inflater even if it took all that arrived
        while is_full or self._position < len(self._arrived):
            step = self._arrived[self._position : self._position + self._step_bytes]
            try:
                piece = inflater.decompress(step, PIECE_BYTES)
            except _DeflateError as failure:
                raise CompressionError(f"deflate: {failure}") from failure
            taken_bytes = len(step) - len(inflater.unconsumed_tail)
            self._position += taken_bytes
            self._step_bytes = WARY_STEP_BYTES if len(piece) < taken_bytes // 2 else STEP_BYTES
            is_full = len(piece) == PIECE_BYTES
            if piece or self._position < len(self._arrived):
                yield piece
            if inflater.unused_data:
                raise CompressionError("deflate: data behind the end of the stream")
        self._arrived = b""
        self._position = 0


class SnappyCodec:
    """Snappy in the framing format."""

    def __init__(self) -> None:
        self._compressor = cramjam.snappy.Compressor()
        self._crc32c = load_crc32c()
        self._arrived = b""
        """Chunks not decoded yet, from `_position` on; shorter than one chunk, once the caller has taken all pieces."""
        self._position = 0
        self._coming = bytearray()
        """What has come since of a chunk that is not there in whole. It is joined once, not with each packet."""
        self._missing_bytes = 0
        """How much of that chunk is still to come; 0 where that is not known."""
        self._is_identified = False
        self._bytes_to_skip = 0
        """What is still to come of a chunk that is passed over. Such a chunk may be long, and is never kept."""

    def compress(self, data: bytes) -> bytes:
        self._compressor.compress(data)
        return bytes(self._compressor.flush())

    def decompress(self, data: bytes) -> Iterator[bytes]:
        if len(data) < self._missing_bytes:
            self._coming += data
            self._missing_bytes -= len(data)
            return iter(())
        if data:
            rest = self._arrived[self._position :]
            self._arrived = b"".join((rest, self._coming, data)) if rest else data
            self._position = self._missing_bytes = 0
            self._coming.clear()
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        size = 0
        while size != _NOT_THERE:
            memory = _scratch.memory
            plain_bytes = 0
            for _ in range(MAX_STEP_CHUNKS):
                size = self._take_chunk(memory[plain_bytes : plain_bytes + MAX_CHUNK_PLAIN_BYTES])
                if size == _NOT_THERE:
                    break
                plain_bytes += size
                if plain_bytes > PIECE_BYTES - MAX_CHUNK_PLAIN_BYTES:
                    break
            if plain_bytes or size != _NOT_THERE:
                yield bytes(memory[:plain_bytes])
        self._arrived = self._arrived[self._position :]
        self._position = 0

    def _take_chunk(self, memory: memoryview) -> int:
        """Decode the next chunk to `memory`, which ends where the plain bytes of a chunk must. Returns how many it has,
        0 if it is passed over, or _NOT_THERE if it has not arrived in whole.

        One that breaks a limit is refused before it has arrived.
        """
        if self._bytes_to_skip:
            return self._skip()
        arrived = self._arrived
        start: i64 = self._position
        if len(arrived) < start + CHUNK_HEADER_BYTES:
            return _NOT_THERE
        kind: i64 = arrived[start]
        size: i64 = _three_bytes(arrived, start + 1)
        end: i64 = start + CHUNK_HEADER_BYTES + size
        if kind == _IDENTIFIER or not self._is_identified:
            return self._take_identifier()
        if kind >= _FIRST_SKIPPABLE:
            self._bytes_to_skip = end - start
            return self._skip()
        if kind > _UNCOMPRESSED:
            raise CompressionError(f"snappy: unknown kind of chunk {kind:#04x}")
        if not CHECKSUM_BYTES <= size <= CHECKSUM_BYTES + (MAX_CHUNK_PLAIN_BYTES if kind else MAX_CHUNK_BLOCK_BYTES):
            raise CompressionError(f"snappy: a chunk of {size} bytes is out of range")
        if end > len(arrived):
            self._missing_bytes = end - len(arrived)
            return _NOT_THERE
        payload = memoryview(arrived)[start + CHUNK_HEADER_BYTES + CHECKSUM_BYTES : end]
        plain = _copied(payload, memory) if kind else _decoded(payload, memory)
        checksum: i64 = self._crc32c(plain)
        masked: i64 = (checksum >> 15 | checksum << 17) + _CHECKSUM_MASK & 0xFFFFFFFF
        told: i64 = arrived[start + CHUNK_HEADER_BYTES + 3]
        if masked != told << 24 | _three_bytes(arrived, start + CHUNK_HEADER_BYTES):
            raise CompressionError("snappy: a chunk does not match its checksum")
        self._position = end
        return len(plain)

    def _skip(self) -> int:
        """Pass over what has arrived of a chunk that is not for us."""
        skipped_bytes = min(self._bytes_to_skip, len(self._arrived) - self._position)
        self._position += skipped_bytes
        self._bytes_to_skip -= skipped_bytes
        return _NOT_THERE if self._bytes_to_skip else 0

    def _take_identifier(self) -> int:
        """Pass the stream identifier, if it is there in whole."""
        start = self._arrived[self._position : self._position + len(STREAM_IDENTIFIER)]
        if not STREAM_IDENTIFIER.startswith(start):
            raise CompressionError("snappy: no stream identifier")
        if len(start) < len(STREAM_IDENTIFIER):
            return _NOT_THERE
        self._position += len(STREAM_IDENTIFIER)
        self._is_identified = True
        return 0


def load_crc32c() -> Callable[[bytes | memoryview], int]:
    """The package imports what takes a tenth of the time of all that a client imports, and few clients use snappy. A
    server loads it before its loop runs."""
    from crc32c import crc32c

    return crc32c


def _three_bytes(data: bytes, start: i64) -> i64:
    """The number in them, the lowest byte first."""
    number: i64 = data[start]
    number = number | data[start + 1] << 8
    return number | data[start + 2] << 16


def _copied(plain: memoryview, memory: memoryview) -> memoryview:
    copy = memory[: len(plain)]
    copy[:] = plain
    return copy


def _decoded(block: memoryview, memory: memoryview) -> memoryview:
    try:
        size = cramjam.snappy.decompress_raw_into(block, memory)
    except cramjam.DecompressionError as failure:
        raise CompressionError(str(failure)) from failure
    return memory[:size]


class _Scratch(threading.local):
    """Where a piece is decoded to: memory of each one's own would be filled with zeros first."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(PIECE_BYTES))


_scratch = _Scratch()
