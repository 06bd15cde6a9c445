"""Targets in the workers of Spark, which read what an nsqd answers by native code.

A hostile nsqd knows which journal it pretends to be, so each input gets the crc that it needs: without it, no damage
would get past the first check.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from uuid import UUID
from zlib import crc32

from emberq.spark.channel_frames import finish_commands, keys, rows
from emberq.spark.journal_columns import decode, record_batches
from emberq.spark.journal_offset import Place
from emberq.spark.schema import byte_strings
from emberq.wire.frame import FrameDecoder, FrameError, WireMessage
from emberq.wire.journal_batch import HEADER_BYTES, MAGIC, Bodies, encode, header_at, seed_of
from tests.fuzz.engine import Target
from tests.fuzz.targets_wire import MESSAGE_ID, cut
from tests.support.scripted_peer import message_frame

SEED = seed_of(UUID(int=7))
MAX_ROWS = 100_000


class JournalAnswerTarget(Target):
    """The answer to /journal/read: batches become rows, up to the first that is wrong."""

    name = "journal-answer"
    modules = ("spark/journal_columns.py", "wire/journal_batch.py")
    tokens = (MAGIC, bytes(4), b"\xff\xff\xff\x7f", struct.pack("<I", 64), struct.pack("<q", 1 << 62))
    slice_count = 200

    def seeds(self) -> Iterable[bytes]:
        for bodies, times in (([b"a"], None), ([b"one", b"two", b""], [1, 2, 3]), ([b"same"] * 9, None)):
            parts = encode(Bodies.of(bodies), base_offset=5, timestamp_ns=1, seed=SEED, times_ns=times).parts
            yield b"".join(parts)
            yield b"".join(parts) * 2

    def play(self, data: bytes) -> None:
        found = decode(self._sealed(data), seed=SEED)
        assert found.fault is None or found.fault.isprintable()
        batches = found.batches
        if batches and sum(batch.row_count for batch in batches) < MAX_ROWS:
            for table in record_batches(batches, nsqd="n:1", topic="t"):
                table.validate(full=True)
            for batch in batches:
                assert batch.between(start=batch.base_offset + 1, end=batch.next_offset).row_count >= 0

    def _sealed(self, data: bytes) -> bytes:
        """The input, with the right crc in each batch of it."""
        sealed, at = bytearray(data), 0
        while len(sealed) - at >= HEADER_BYTES:
            length = header_at(memoryview(sealed)[at:]).length
            if not HEADER_BYTES <= length <= len(sealed) - at:
                break
            struct.pack_into("<I", sealed, at + 4, crc32(sealed[at + 8 : at + length], SEED))
            at += length
        return bytes(sealed)


class SparkFrameTarget(Target):
    """Frames of a hostile nsqd, as the receiver of a channel keeps them and makes rows of them."""

    name = "spark-frame"
    modules = ("spark/channel_frames.py", "wire/frame.py")
    tokens = (message_frame(WireMessage(1, 1, MESSAGE_ID, b"x")), b"\0\0\0\x1e\0\0\0\x02", b"\xff" * 8)
    slice_count = 200

    def seeds(self) -> Iterable[bytes]:
        yield message_frame(WireMessage(1, 1, MESSAGE_ID, b"hello")) * 5
        yield message_frame(WireMessage(-1, 65535, b"\xff" * 16, b""))

    def play(self, data: bytes) -> None:
        decoder = FrameDecoder(max_frame_bytes=1000)
        try:
            for piece in cut(data):
                found = decoder.feed_whole(piece)
                if found.lengths:
                    frames = byte_strings(found.pieces, found.lengths)
                    frames.validate(full=True)
                    count = len(found.lengths)
                    assert len(keys(frames)) == count
                    assert len(finish_commands(frames)) == count * len(b"FIN \n" + MESSAGE_ID)
                    assert rows(frames, Place("n:1", "t")).num_rows == count
        except FrameError:
            pass


TARGETS: tuple[type[Target], ...] = (JournalAnswerTarget, SparkFrameTarget)
