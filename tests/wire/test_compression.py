"""Compressed streams: what one end sends the other reads, whatever the pieces, and whoever wrote the other end.

The judges are zlib and a slow snappy of our own. Memory is measured, not believed: see the bombs.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.compression import (
    MAX_CHUNK_BLOCK_BYTES,
    MAX_CHUNK_PLAIN_BYTES,
    MAX_STEP_CHUNKS,
    PIECE_BYTES,
    STEP_BYTES,
    WARY_STEP_BYTES,
    Codec,
    CompressionError,
    DeflateCodec,
    SnappyCodec,
)
from tests.wire import reference_snappy as snappy
from tests.wire.reference_snappy import Copy, Element, Literal
from tests.wire.streams import examples

LEVEL = 6
MAKERS: list[Callable[[], Codec]] = [lambda: DeflateCodec(LEVEL), SnappyCodec]
both = pytest.mark.parametrize("make", MAKERS, ids=["deflate", "snappy"])


NOISE = random.Random(1).randbytes(128_000)
"""Bytes that no compressor makes fewer."""


@st.composite
def cut(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The stream in single bytes, or cut anywhere."""
    every_byte = range(1, len(stream))
    anywhere = st.lists(st.integers(0, len(stream)), max_size=12).map(sorted)
    cuts = draw(st.just(every_byte) | anywhere)
    return [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]


def read_or_refuse(codec: Codec, pieces: list[bytes]) -> None:
    """Reads; any other error than the one that may come is a failed test."""
    with contextlib.suppress(CompressionError):
        for piece in pieces:
            read_all(codec, piece)


def read_all(codec: Codec, data: bytes) -> bytes:
    return b"".join(codec.decompress(data))


def raw_deflate(plain: bytes, level: int = LEVEL) -> bytes:
    """A deflate stream that is flushed but not at its end."""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    return deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)


# Both directions.


@both
@examples(100)
@given(writes=st.lists(st.binary(max_size=200) | st.binary(max_size=8).map(lambda part: part * 40_000), max_size=6))
def test_what_was_written_can_be_read_at_once(make: Callable[[], Codec], writes: list[bytes]) -> None:
    near, far = make(), make()
    for data in writes:
        assert read_all(far, near.compress(data)) == data


@both
@examples(100)
@given(data=st.data())
def test_the_pieces_in_which_a_stream_arrives_make_no_difference(
    make: Callable[[], Codec], data: st.DataObject
) -> None:
    plain = [b"FIN 0123456789abcdef\n", b"x" * 3000, bytes(range(256)) * 3, NOISE[:300]]
    writer = make()
    stream = b"".join(writer.compress(part) for part in plain)
    pieces = data.draw(cut(stream))
    reader = make()
    assert b"".join(read_all(reader, piece) for piece in pieces) == b"".join(plain)


@both
def test_a_stream_can_arrive_byte_by_byte(make: Callable[[], Codec]) -> None:
    stream = make().compress(b"a message " * 100)
    reader = make()
    assert b"".join(read_all(reader, bytes([byte])) for byte in stream) == b"a message " * 100


@both
def test_nothing_arriving_means_nothing_read(make: Callable[[], Codec]) -> None:
    assert list(make().decompress(b"")) == []


# Bounds.


@both
def test_plain_bytes_come_in_bounded_pieces(make: Callable[[], Codec]) -> None:
    plain = b"z" * (5 * PIECE_BYTES + 1)
    pieces = list(make().decompress(make().compress(plain)))
    assert b"".join(pieces) == plain
    assert max(map(len, pieces)) <= PIECE_BYTES


@both
def test_an_end_exactly_on_the_bound_is_read(make: Callable[[], Codec]) -> None:
    near, far = make(), make()
    for size in (PIECE_BYTES, 2 * PIECE_BYTES, PIECE_BYTES - 1, 1):
        assert read_all(far, near.compress(b"q" * size)) == b"q" * size


@both
def test_a_reader_that_stops_half_way_goes_on_where_it_stopped(make: Callable[[], Codec]) -> None:
    near, far = make(), make()
    plain = bytes(range(251)) * 5000
    first = next(far.decompress(near.compress(plain)))
    rest = read_all(far, near.compress(b"later"))
    assert first + rest == plain + b"later"


@both
def test_what_was_not_taken_comes_without_new_bytes_too(make: Callable[[], Codec]) -> None:
    far = make()
    plain = b"w" * (3 * PIECE_BYTES)
    first = next(far.decompress(make().compress(plain)))
    assert first + read_all(far, b"") == plain


@both
def test_what_was_read_is_not_kept(make: Callable[[], Codec]) -> None:
    near, far = make(), make()
    read_all(far, near.compress(b"to begin with"))
    tracemalloc.start()
    try:
        assert read_all(far, near.compress(NOISE)) == NOISE
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < len(NOISE) // 2


NEXT_TO_NOTHING: list[tuple[Codec, bytes]] = [
    (SnappyCodec(), snappy.IDENTIFIER + snappy.chunk(snappy.PADDING, b"") * 10_000),
    (SnappyCodec(), snappy.IDENTIFIER * 10_000),
    (SnappyCodec(), snappy.IDENTIFIER + snappy.uncompressed_chunk(b"") * 10_000),
    (SnappyCodec(), snappy.IDENTIFIER + snappy.uncompressed_chunk(b"x") * 10_000),
    (DeflateCodec(LEVEL), b"\x00\x00\x00\xff\xff" * 40_000),
]


@pytest.mark.parametrize(("codec", "stream"), NEXT_TO_NOTHING)
def test_a_reader_may_stop_where_there_is_next_to_nothing(codec: Codec, stream: bytes) -> None:
    stops = 0
    for piece in codec.decompress(stream):
        assert len(piece) <= MAX_STEP_CHUNKS
        stops += 1
    assert stops >= min(10_000 // MAX_STEP_CHUNKS, (200_000 - STEP_BYTES) // WARY_STEP_BYTES)


def test_a_reader_that_stops_among_padding_goes_on_there() -> None:
    codec = SnappyCodec()
    padding = snappy.chunk(snappy.PADDING, b"") * (10 * MAX_STEP_CHUNKS)
    assert next(codec.decompress(snappy.IDENTIFIER + padding + snappy.uncompressed_chunk(b"found"))) == b""
    assert read_all(codec, b"") == b"found"


@both
def test_a_bomb_takes_no_more_memory_than_a_few_pieces(make: Callable[[], Codec]) -> None:
    bomb = make().compress(bytes(64 * 1024 * 1024))
    reader = make()
    total_bytes = 0
    tracemalloc.start()
    try:
        pieces = reader.decompress(bomb)
        start_bytes, _ = tracemalloc.get_traced_memory()
        for piece in pieces:
            total_bytes += len(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total_bytes == 64 * 1024 * 1024
    assert peak_bytes - start_bytes < 4 * PIECE_BYTES + 2 * len(bomb)


# Garbage.


@both
@examples(300)
@given(data=st.data())
def test_random_bytes_are_read_or_refused(make: Callable[[], Codec], data: st.DataObject) -> None:
    read_or_refuse(make(), data.draw(st.binary(max_size=200).flatmap(cut)))


@examples(300)
@given(data=st.data())
def test_random_chunks_are_read_or_refused(data: st.DataObject) -> None:
    chunks = st.builds(snappy.chunk, st.sampled_from([0x00, 0x01, 0x02, 0x80, 0xFE, 0xFF]), st.binary(max_size=40))
    stream = snappy.IDENTIFIER + b"".join(data.draw(st.lists(chunks, max_size=5)))
    read_or_refuse(SnappyCodec(), data.draw(cut(stream)))


@both
@examples(300)
@given(position=st.integers(0, 10_000), flip=st.integers(1, 255), data=st.data())
def test_a_damaged_stream_is_read_or_refused(
    make: Callable[[], Codec], position: int, flip: int, data: st.DataObject
) -> None:
    stream = bytearray(make().compress(b"PUB topic\n" * 20 + bytes(range(200))))
    stream[position % len(stream)] ^= flip
    read_or_refuse(make(), data.draw(cut(bytes(stream))))


# Deflate.


@pytest.mark.parametrize("level", range(1, 10))
def test_deflate_is_what_zlib_reads_and_writes(level: int) -> None:
    plain = b"some words that repeat, some words that do not " * 50
    codec = DeflateCodec(level)
    assert zlib.decompressobj(-15).decompress(codec.compress(plain)) == plain
    assert read_all(codec, raw_deflate(plain, level)) == plain


def test_deflate_ends_each_write_with_a_sync_flush() -> None:
    codec = DeflateCodec(LEVEL)
    assert codec.compress(b"OK").endswith(b"\x00\x00\xff\xff")
    assert codec.compress(b"OK").endswith(b"\x00\x00\xff\xff")


def test_later_writes_profit_from_earlier_ones() -> None:
    codec = DeflateCodec(LEVEL)
    message = NOISE[:500]
    assert len(codec.compress(message)) > 10 * len(codec.compress(message))


def test_a_zlib_header_is_refused() -> None:
    with pytest.raises(CompressionError, match="deflate"):
        read_all(DeflateCodec(LEVEL), zlib.compress(b"with a header"))


def test_a_deflate_stream_may_end_but_nothing_may_follow_its_end() -> None:
    whole = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    stream = whole.compress(b"NOP\n") + whole.flush()
    codec = DeflateCodec(LEVEL)
    assert read_all(codec, stream) == b"NOP\n"
    with pytest.raises(CompressionError, match="behind the end"):
        read_all(codec, b"NOP\n")


def test_what_stands_before_the_end_of_a_deflate_stream_is_still_read() -> None:
    whole = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
    pieces = DeflateCodec(LEVEL).decompress(whole.compress(b"NOP\n") + whole.flush() + b"more")
    assert next(pieces) == b"NOP\n"
    with pytest.raises(CompressionError, match="behind the end"):
        next(pieces)


# Snappy: what we write.


@examples(100)
@given(writes=st.lists(st.binary(min_size=1, max_size=300) | st.binary(min_size=1, max_size=3).map(lambda p: p * 200)))
def test_an_independent_snappy_reads_what_we_write(writes: list[bytes]) -> None:
    codec, judge = SnappyCodec(), snappy.Reader()
    for data in writes:
        assert judge.feed(codec.compress(data)) == data


@pytest.mark.parametrize("size", [65535, 65536, 65537, 128_000])
@pytest.mark.parametrize("compressible", [True, False])
def test_large_writes_become_several_chunks(size: int, compressible: bool) -> None:
    plain = b"0123456789" * (size // 10) + b"x" * (size % 10) if compressible else NOISE[:size]
    assert snappy.Reader().feed(SnappyCodec().compress(plain)) == plain


# Snappy: what we read.


@st.composite
def elements(draw: st.DrawFn) -> list[Element]:
    """A block of any make, also such as no compressor would produce."""
    made: list[Element] = [Literal(draw(st.binary(min_size=1, max_size=100)))]
    size = len(made[0].data) if isinstance(made[0], Literal) else 0
    for _ in range(draw(st.integers(0, 8))):
        offset_bytes = draw(st.sampled_from([0, 1, 2, 4]))
        if offset_bytes == 0:
            literal = Literal(draw(st.binary(min_size=1, max_size=300)))
            made.append(literal)
            size += len(literal.data)
        else:
            low, high = (4, 11) if offset_bytes == 1 else (1, 64)
            copy = Copy(draw(st.integers(1, min(size, 2047))), draw(st.integers(low, high)), offset_bytes)
            made.append(copy)
            size += copy.length
    return made


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A stream of chunks of all legal kinds, and its plain bytes."""
    stream, plain = [snappy.IDENTIFIER], b""
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["compressed", "uncompressed", "identifier", "skippable"]))
        if kind == "compressed":
            block = draw(elements())
            stream.append(snappy.compressed_chunk(block))
            plain += snappy.plain_bytes_of(block)
        elif kind == "uncompressed":
            data = draw(st.binary(max_size=100))
            stream.append(snappy.uncompressed_chunk(data))
            plain += data
        elif kind == "identifier":
            stream.append(snappy.IDENTIFIER)
        else:
            stream.append(snappy.chunk(draw(st.integers(0x80, 0xFE)), draw(st.binary(max_size=300))))
    return b"".join(stream), plain


@examples(200)
@given(made=streams(), data=st.data())
def test_we_read_what_an_independent_snappy_writes(made: tuple[bytes, bytes], data: st.DataObject) -> None:
    stream, plain = made
    codec = SnappyCodec()
    pieces = data.draw(cut(stream))
    assert b"".join(read_all(codec, piece) for piece in pieces) == plain


@examples(100)
@given(made=st.lists(elements(), min_size=1, max_size=20))
def test_many_small_chunks_in_one_packet_come_as_one_piece(made: list[list[Element]]) -> None:
    stream = snappy.IDENTIFIER + b"".join(map(snappy.compressed_chunk, made))
    assert list(SnappyCodec().decompress(stream)) == [b"".join(map(snappy.plain_bytes_of, made))]


def test_a_long_chunk_that_is_passed_over_is_not_kept() -> None:
    codec = SnappyCodec()
    assert read_all(codec, snappy.IDENTIFIER + b"\xfe\xff\xff\xff") == b""
    tracemalloc.start()
    try:
        for _ in range(0xFFFFFF // 65535):
            assert read_all(codec, bytes(65535)) == b""
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2 * 65535
    rest = bytes(0xFFFFFF % 65535)
    assert read_all(codec, rest + snappy.uncompressed_chunk(b"after it")) == b"after it"


def first_error(stream: bytes) -> str:
    with pytest.raises(CompressionError) as raised:
        read_all(SnappyCodec(), stream)
    return str(raised.value)


def test_a_stream_must_begin_with_its_identifier() -> None:
    assert first_error(snappy.uncompressed_chunk(b"too early")) == "snappy: no stream identifier"
    assert first_error(b"\xff\x06\x00\x00SnApPy") == "snappy: no stream identifier"
    assert first_error(b"\xff\x07\x00\x00") == "snappy: no stream identifier"
    assert first_error(snappy.chunk(snappy.PADDING, b"") + snappy.IDENTIFIER) == "snappy: no stream identifier"


def test_an_identifier_in_the_middle_must_be_one_too() -> None:
    for wrong in (b"\xff\x06\0\0SnApPy", b"\xff\x05\0\0sNaPp"):
        assert first_error(snappy.IDENTIFIER + wrong) == "snappy: no stream identifier"


@pytest.mark.parametrize("kind", [0x02, 0x40, 0x7F])
def test_reserved_chunks_are_refused(kind: int) -> None:
    assert first_error(snappy.IDENTIFIER + snappy.chunk(kind, b"")) == f"snappy: unknown kind of chunk {kind:#04x}"


TOO_LARGE_HEADERS = [
    b"\x00" + (4 + MAX_CHUNK_BLOCK_BYTES + 1).to_bytes(3, "little"),
    b"\x01" + (4 + MAX_CHUNK_PLAIN_BYTES + 1).to_bytes(3, "little"),
    b"\x00\xff\xff\xff",
]


@pytest.mark.parametrize("header", TOO_LARGE_HEADERS)
def test_a_chunk_that_is_too_large_is_refused_before_it_arrives(header: bytes) -> None:
    assert "out of range" in first_error(snappy.IDENTIFIER + header)


@pytest.mark.parametrize("kind", [snappy.COMPRESSED, snappy.UNCOMPRESSED])
def test_a_chunk_without_room_for_its_checksum_is_refused(kind: int) -> None:
    assert "out of range" in first_error(snappy.IDENTIFIER + snappy.chunk(kind, b"abc"))


def test_a_chunk_that_claims_to_hold_too_much_is_refused() -> None:
    claim = snappy.varint(MAX_CHUNK_PLAIN_BYTES + 1)
    stream = snappy.IDENTIFIER + snappy.chunk(snappy.COMPRESSED, b"\x00" * 4 + claim + b"\x00x")
    assert "65537" in first_error(stream)
    endless = snappy.IDENTIFIER + snappy.chunk(snappy.COMPRESSED, b"\x00" * 4 + b"\xff" * 10)
    assert "snappy" in first_error(endless)


def test_a_wrong_checksum_is_refused() -> None:
    good = snappy.uncompressed_chunk(b"the plain bytes")
    assert "snappy" in first_error(snappy.IDENTIFIER + good[:-1] + b"S")
    block = bytearray(snappy.compressed_chunk([Literal(b"the plain bytes")]))
    block[4] ^= 1
    assert "snappy" in first_error(snappy.IDENTIFIER + bytes(block))


def test_a_copy_from_before_the_beginning_is_refused() -> None:
    broken = snappy.varint(5) + snappy.element(Literal(b"a")) + snappy.element(Copy(2, 4, 1))
    stream = snappy.IDENTIFIER + snappy.chunk(snappy.COMPRESSED, b"\x00" * 4 + broken)
    assert "snappy" in first_error(stream)


def test_the_checksum_is_castagnolis() -> None:
    assert snappy.crc32c(b"123456789") == 0xE3069283  # the value every catalogue of checksums gives for it


# Small chunks that come alone, as those of clients do that flush after each command.


def reader_of_snappy() -> SnappyCodec:
    codec = SnappyCodec()
    assert read_all(codec, snappy.IDENTIFIER) == b""
    return codec


@examples(150)
@given(st.one_of(st.binary(max_size=60), st.integers(0, 3000).map(lambda size: NOISE[:size])), st.booleans())
def test_a_chunk_that_comes_alone_is_read(plain: bytes, is_compressed: bool) -> None:
    chunk = snappy.compressed_chunk([Literal(plain)] if plain else []) if is_compressed else None
    codec = reader_of_snappy()
    for _ in range(2):
        assert read_all(codec, chunk or snappy.uncompressed_chunk(plain)) == plain


@examples(200)
@given(st.binary(min_size=1, max_size=60), st.booleans(), st.integers(0, 1000), st.integers(1, 255))
def test_a_damaged_chunk_that_comes_alone_is_refused_or_waited_for(
    plain: bytes, is_compressed: bool, place: int, change: int
) -> None:
    chunk = bytearray(snappy.compressed_chunk([Literal(plain)]) if is_compressed else snappy.uncompressed_chunk(plain))
    chunk[place % len(chunk)] ^= change
    with contextlib.suppress(CompressionError):
        assert read_all(reader_of_snappy(), bytes(chunk)) == b""


def test_a_small_chunk_that_holds_much_is_read_in_whole() -> None:
    elements: list[Element] = [Literal(b"abcdefgh"), *[Copy(8, 64, 2)] * 1000]
    for some in (elements, elements[:100]):
        assert read_all(reader_of_snappy(), snappy.compressed_chunk(some)) == snappy.plain_bytes_of(some)


def test_a_small_chunk_that_is_not_taken_comes_with_the_next() -> None:
    codec = reader_of_snappy()
    codec.decompress(snappy.uncompressed_chunk(b"one "))
    assert read_all(codec, snappy.uncompressed_chunk(b"two")) == b"one two"


def test_a_chunk_that_comes_in_many_parts_is_read_behind_one_whose_reader_stopped() -> None:
    codec = reader_of_snappy()
    whole, late = snappy.uncompressed_chunk(b"taken "), snappy.uncompressed_chunk(NOISE[:3000])
    assert next(codec.decompress(whole + late[:50])) == b"taken "
    for part in (late[50:51], late[51:52], late[52:2000]):
        assert read_all(codec, part) == b""
    assert read_all(codec, late[2000:] + whole) == NOISE[:3000] + b"taken "
