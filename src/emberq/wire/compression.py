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

The checksum is that of the plain bytes, of which a chunk holds at most 65536. Blocks and checksums are left to
cramjam. It is given many chunks at once, because clients that flush after every command send very small ones. Setting
its reader up costs more than such a chunk, so one that comes alone has a short way.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from itertools import count
from typing import Protocol, cast

import cramjam
from zlib_ng import zlib_ng

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
CHUNK_HEADER_BYTES = 4
CHECKSUM_BYTES = 4
MAX_LENGTH_VARINT_BYTES = 5
MAX_CHUNK_PLAIN_BYTES = 65536
MAX_CHUNK_BLOCK_BYTES = 32 + MAX_CHUNK_PLAIN_BYTES + MAX_CHUNK_PLAIN_BYTES // 6
"""The most that snappy makes of a chunk that does not compress."""

SMALL_CHUNK_BYTES = 2048
"""From here on cramjam's reader is faster than to make a chunk for the checksum's sake."""

_DeflateError = cast(type[Exception], zlib_ng.error)
_UINT32 = struct.Struct("<I")
_MIN_DATA_CHUNK_BYTES = CHUNK_HEADER_BYTES + CHECKSUM_BYTES + 1
_COMPRESSED = 0x00
_UNCOMPRESSED = 0x01
_FIRST_SKIPPABLE = 0x80
_IDENTIFIER = 0xFF
_MAX_PAYLOAD_BYTES = {_COMPRESSED: MAX_CHUNK_BLOCK_BYTES, _UNCOMPRESSED: MAX_CHUNK_PLAIN_BYTES}


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
    """Snappy in the framing format.

    cramjam takes a stream from its identifier on. So the identifier is written over what stands before the chunks that
    are next: they need not be copied behind one.
    """

    def __init__(self) -> None:
        self._compressor = cramjam.snappy.Compressor()
        self._arrived = bytearray()
        """Chunks not decoded yet, from `_position` on; shorter than one chunk, once the caller has taken all pieces."""
        self._position = 0
        self._identified = False
        self._bytes_to_skip = 0
        """What is still to come of a chunk that is passed over. Such a chunk may be long, and is never kept."""

    def compress(self, data: bytes) -> bytes:
        self._compressor.compress(data)
        return bytes(self._compressor.flush())

    def decompress(self, data: bytes) -> Iterator[bytes]:
        if data:
            with memoryview(self._arrived) as kept:
                self._arrived = bytearray().join((STREAM_IDENTIFIER, kept[self._position :], data))
            self._position = len(STREAM_IDENTIFIER)
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        small = self._take_small()
        if small:
            yield small
            return
        while True:
            yield from self._reach_data()
            run_end = self._measure_run()
            if run_end == self._position:
                break
            yield self._take_run(run_end)
        del self._arrived[: self._position]
        self._position = 0

    def _take_run(self, run_end: int) -> bytes:
        """The plain bytes of these chunks."""
        start = self._position - len(STREAM_IDENTIFIER)
        self._arrived[start : self._position] = STREAM_IDENTIFIER
        self._position = run_end
        try:
            with memoryview(self._arrived) as arrived:
                return bytes(cramjam.snappy.decompress(arrived[start:run_end]))
        except cramjam.DecompressionError as failure:
            raise CompressionError(str(failure)) from failure

    def _take_small(self) -> bytes:
        """The plain bytes, if what has arrived is just one small chunk of data; none for all else, right or wrong."""
        start = self._position
        size = len(self._arrived) - start
        if not _MIN_DATA_CHUNK_BYTES <= size <= SMALL_CHUNK_BYTES or self._bytes_to_skip or not self._identified:
            return b""
        arrived = self._arrived[start:]
        (header,) = _UINT32.unpack_from(arrived)
        if CHUNK_HEADER_BYTES + (header >> 8) != size:
            return b""
        payload = bytes(arrived[CHUNK_HEADER_BYTES + CHECKSUM_BYTES :])
        kind = header & 0xFF
        if kind == _COMPRESSED:
            try:
                if cramjam.snappy.decompress_raw_len(payload) > SMALL_CHUNK_BYTES:
                    return b""
                payload = bytes(cramjam.snappy.decompress_raw(payload))
            except cramjam.DecompressionError:
                return b""
        elif kind != _UNCOMPRESSED:
            return b""
        if _checksum.of(payload) != arrived[CHUNK_HEADER_BYTES : CHUNK_HEADER_BYTES + CHECKSUM_BYTES]:
            return b""
        self._arrived.clear()
        self._position = 0
        return payload

    def _reach_data(self) -> Iterator[bytes]:
        """Pass the chunks that hold no data, up to one that does; an empty piece after each MAX_STEP_CHUNKS of them."""
        arrived = self._arrived
        for number in count(1):
            if number % MAX_STEP_CHUNKS == 0:
                yield b""
            if self._bytes_to_skip:
                skipped_bytes = min(self._bytes_to_skip, len(arrived) - self._position)
                self._position += skipped_bytes
                self._bytes_to_skip -= skipped_bytes
            if len(arrived) - self._position < CHUNK_HEADER_BYTES:
                return
            kind = arrived[self._position]
            if kind == _IDENTIFIER or not self._identified:
                if not self._take_identifier():
                    return
            elif kind >= _FIRST_SKIPPABLE:
                (header,) = _UINT32.unpack_from(arrived, self._position)
                self._bytes_to_skip = CHUNK_HEADER_BYTES + (header >> 8)
            elif kind in _MAX_PAYLOAD_BYTES:
                return
            else:
                raise CompressionError(f"snappy: unknown kind of chunk {kind:#04x}")

    def _take_identifier(self) -> bool:
        """Pass the stream identifier, if it is there in whole."""
        start = self._arrived[self._position : self._position + len(STREAM_IDENTIFIER)]
        if not STREAM_IDENTIFIER.startswith(start):
            raise CompressionError("snappy: no stream identifier")
        if len(start) < len(STREAM_IDENTIFIER):
            return False
        self._position += len(STREAM_IDENTIFIER)
        self._identified = True
        return True

    def _measure_run(self) -> int:
        """Where the next chunks end: complete ones with data, as many as fit into a piece."""
        run_end = self._position
        plain_bytes = 0
        for _ in range(MAX_STEP_CHUNKS):
            chunk = self._data_chunk(run_end)
            if chunk is None:
                break
            chunk_end, chunk_plain_bytes = chunk
            plain_bytes += chunk_plain_bytes
            if plain_bytes > PIECE_BYTES:
                break
            run_end = chunk_end
        return run_end

    def _data_chunk(self, start: int) -> tuple[int, int] | None:
        """Where the data chunk that begins here ends, and how many plain bytes it claims to hold.

        None if it is of another kind or incomplete. One that breaks a limit raises before it is complete.
        """
        arrived = self._arrived
        if len(arrived) < start + CHUNK_HEADER_BYTES:
            return None
        (header,) = _UINT32.unpack_from(arrived, start)
        kind, end = header & 0xFF, start + CHUNK_HEADER_BYTES + (header >> 8)
        if kind not in _MAX_PAYLOAD_BYTES:
            return None
        payload_start = start + CHUNK_HEADER_BYTES + CHECKSUM_BYTES
        if not 0 <= end - payload_start <= _MAX_PAYLOAD_BYTES[kind]:
            raise CompressionError(f"snappy: a chunk of {header >> 8} bytes is out of range")
        if end > len(arrived):
            return None
        if kind == _UNCOMPRESSED:
            return end, end - payload_start
        return end, _parse_plain_bytes(arrived[payload_start : min(payload_start + MAX_LENGTH_VARINT_BYTES, end)])


class _Checksum(threading.local):
    """Checksums as chunks have them. cramjam tells them only in the chunks that it makes; so it makes one."""

    def __init__(self) -> None:
        self._compressor = cramjam.snappy.Compressor()
        self.of(b"a chunk, to be rid of the identifier before it")

    def of(self, plain: bytes) -> bytes:
        """The masked CRC-32C of some plain bytes; they must fit into one chunk."""
        self._compressor.compress(plain)
        return bytes(self._compressor.flush())[CHUNK_HEADER_BYTES : CHUNK_HEADER_BYTES + CHECKSUM_BYTES]


_checksum = _Checksum()


def _parse_plain_bytes(varint: bytearray) -> int:
    try:
        plain_bytes = cramjam.snappy.decompress_raw_len(varint)
    except cramjam.DecompressionError as failure:
        raise CompressionError(str(failure)) from failure
    if plain_bytes > MAX_CHUNK_PLAIN_BYTES:
        raise CompressionError(f"snappy: a chunk claims to hold {plain_bytes} bytes")
    return plain_bytes
