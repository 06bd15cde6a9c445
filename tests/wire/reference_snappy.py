"""Snappy written down from its two specifications, byte by byte: slow, and sharing no code with what it judges.

The framing format is drawn in `emberq.wire.compression`. A block is the varint length of the plain bytes and then
elements, whose first byte tells by its lower two bits what they are:

    00  literal   upper six bits: length - 1; 60 to 63 mean that the length - 1 follows in 1 to 4 bytes
    01  copy      three bits: length - 4; three bits and one byte: offset back into the plain bytes
    10  copy      upper six bits: length - 1; two bytes: offset
    11  copy      upper six bits: length - 1; four bytes: offset
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED, UNCOMPRESSED, PADDING = 0x00, 0x01, 0xFE
MAX_PLAIN_BYTES = 65536
CRC32C_POLYNOMIAL = 0x82F63B78


def _crc_table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (CRC32C_POLYNOMIAL if value & 1 else 0)
    return value


_CRC_TABLE = [_crc_table_entry(value) for value in range(256)]


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked_checksum(data: bytes) -> bytes:
    """The checksum as chunks carry it: rotated and shifted, so that it can be summed up once more without harm."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


# Writing


@dataclass(frozen=True)
class Literal:
    """Plain bytes as they are."""

    data: bytes


@dataclass(frozen=True)
class Copy:
    """Plain bytes that were there before: `offset` bytes back, in an element with so many bytes of offset."""

    offset: int
    length: int
    offset_bytes: int


Element = Literal | Copy


def varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the top bit says that more follow."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def element(written: Element) -> bytes:
    """The bytes of one element."""
    if isinstance(written, Literal):
        length = len(written.data) - 1
        if length < 60:
            return bytes([length << 2]) + written.data
        length_bytes = (length.bit_length() + 7) // 8
        return bytes([(59 + length_bytes) << 2]) + length.to_bytes(length_bytes, "little") + written.data
    if written.offset_bytes == 1:
        return bytes([(written.offset >> 8) << 5 | (written.length - 4) << 2 | 1, written.offset & 0xFF])
    tag = 2 if written.offset_bytes == 2 else 3
    return bytes([(written.length - 1) << 2 | tag]) + written.offset.to_bytes(written.offset_bytes, "little")


def plain_bytes_of(elements: Iterable[Element]) -> bytes:
    """What the elements stand for."""
    plain = bytearray()
    for written in elements:
        if isinstance(written, Literal):
            plain += written.data
        else:
            for _ in range(written.length):  # one by one: a copy may reach into what it makes
                plain.append(plain[-written.offset])
    return bytes(plain)


def block(elements: Iterable[Element]) -> bytes:
    """A block with these elements."""
    elements = list(elements)
    return varint(len(plain_bytes_of(elements))) + b"".join(map(element, elements))


def chunk(kind: int, data: bytes) -> bytes:
    """Any chunk."""
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def compressed_chunk(elements: Iterable[Element]) -> bytes:
    """A chunk with a block."""
    elements = list(elements)
    return chunk(COMPRESSED, masked_checksum(plain_bytes_of(elements)) + block(elements))


def uncompressed_chunk(plain: bytes) -> bytes:
    """A chunk without a block."""
    return chunk(UNCOMPRESSED, masked_checksum(plain) + plain)


# Reading


class Reader:
    """Reads a stream as it comes, and is strict about it."""

    def __init__(self) -> None:
        self._arrived = b""
        self._identified = False

    def feed(self, data: bytes) -> bytes:
        """The plain bytes of all chunks that are there in whole now."""
        self._arrived += data
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        while len(self._arrived) >= 4:
            end = 4 + int.from_bytes(self._arrived[1:4], "little")
            if len(self._arrived) < end:
                return
            kind, data, self._arrived = self._arrived[0], self._arrived[4:end], self._arrived[end:]
            if not self._identified:
                assert chunk(kind, data) == IDENTIFIER
                self._identified = True
            else:
                plain = data[4:] if kind == UNCOMPRESSED else read_block(data[4:])
                assert kind in (COMPRESSED, UNCOMPRESSED), "the identifier comes once, and there is no need for others"
                assert len(plain) <= MAX_PLAIN_BYTES
                assert data[:4] == masked_checksum(plain)
                yield plain


def read_block(data: bytes) -> bytes:
    """The plain bytes of a block."""
    declared_bytes, position = _read_varint(data)
    plain = bytearray()
    while position < len(data):
        read = _read_copy if data[position] & 3 else _read_literal
        position = read(data, position, plain)
    assert len(plain) == declared_bytes
    return bytes(plain)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = position = 0
    while True:
        value |= (data[position] & 0x7F) << 7 * position
        position += 1
        if data[position - 1] < 0x80:
            return value, position


def _read_literal(data: bytes, position: int, plain: bytearray) -> int:
    length = data[position] >> 2
    position += 1
    if length >= 60:
        length_bytes = length - 59
        length = int.from_bytes(data[position : position + length_bytes], "little")
        position += length_bytes
    plain += data[position : position + length + 1]
    return position + length + 1


def _read_copy(data: bytes, position: int, plain: bytearray) -> int:
    first = data[position]
    if first & 3 == 1:
        offset_bytes, length, offset = 1, (first >> 2 & 7) + 4, (first >> 5) << 8 | data[position + 1]
    else:
        offset_bytes, length = 2 if first & 3 == 2 else 4, (first >> 2) + 1
        offset = int.from_bytes(data[position + 1 : position + 1 + offset_bytes], "little")
    assert 0 < offset <= len(plain)
    for _ in range(length):
        plain.append(plain[-offset])
    return position + 1 + offset_bytes
