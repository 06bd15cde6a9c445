"""The layout of a batch: drawn by hand, round trips, and every way in which bytes can be wrong."""

from __future__ import annotations

import struct
from array import array
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.wire.journal_batch import (
    HEADER_BYTES,
    Bodies,
    DamagedBatchError,
    JournalBatch,
    decode,
    encode,
    header_at,
    seed_of,
    uniform_positions,
)
from emberq.wire.parameter import ProducerSequence
from tests.storage.journal.rig import START_NS, producer

SEED = 77

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
messages = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    st.integers(0, 20).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)),
)


def encoded(bodies: Bodies, *, seed: int = SEED, base_offset: int = 5, sender: ProducerSequence | None = None) -> bytes:
    return b"".join(encode(bodies, base_offset=base_offset, timestamp_ns=START_NS, seed=seed, producer=sender).parts)


def decoded(content: bytes, *, seed: int = SEED) -> JournalBatch:
    """What a reader makes of these bytes, all of them."""
    if len(content) < HEADER_BYTES:
        raise DamagedBatchError("too short")
    view = memoryview(content)
    header = header_at(view)
    fault = header.fault(room_bytes=len(content))
    if fault is not None:
        raise DamagedBatchError(fault)
    if header.length != len(content):
        raise DamagedBatchError("longer than the batch")
    return decode(view, header, seed=seed)


def test_the_bytes_are_those_of_the_drawing() -> None:
    checked = struct.pack("<IHHqqII16sq", 64 + 16 + 16 + 16 + 8 + 8, 2, 7, 1000, 9, 2, 5, b"p" * 16, 42)
    checked += struct.pack("<iii4x", 0, 2, 5) + struct.pack("<qq", 8, 9) + struct.pack("<qq", 0, 77) + b"abcde\0\0\0"
    checked += struct.pack("<q", 990)
    drawn = b"EqB1" + struct.pack("<I", crc32(checked, SEED)) + checked
    batch = encode(
        Bodies.of([b"ab", b"cde"]),
        base_offset=1000,
        timestamp_ns=1,
        seed=SEED,
        times_ns=[8, 9],
        due_ns=[0, 77],
        producer=ProducerSequence(b"p" * 16, 42),
        synced_offset=990,
    )
    assert b"".join(batch.parts) == drawn
    assert batch.length == len(drawn)
    assert decoded(drawn).synced_offset == 990


def test_a_batch_of_version_1_is_read_and_does_not_say_what_was_synced() -> None:
    checked = struct.pack("<IHHqqII16sq", 64 + 16 + 16 + 8, 1, 1, 1000, 9, 2, 5, bytes(16), 0)
    checked += struct.pack("<iii4x", 0, 2, 5) + struct.pack("<qq", 8, 9) + b"abcde\0\0\0"
    batch = decoded(b"EqB1" + struct.pack("<I", crc32(checked, SEED)) + checked)
    assert batch.messages() == [b"ab", b"cde"]
    assert batch.header.bodies_at == 64 + 16 + 16
    assert batch.synced_offset is None


@given(messages, st.booleans(), st.booleans(), st.booleans(), st.data())
def test_what_is_encoded_is_decoded(
    bodies: list[bytes], with_times: bool, with_due: bool, with_producer: bool, data: st.DataObject
) -> None:
    column = st.lists(int64, min_size=len(bodies), max_size=len(bodies))
    times_ns = data.draw(column) if with_times else None
    due_ns = data.draw(column) if with_due else None
    sender = producer(b"p", data.draw(st.integers(0, (1 << 63) - 1))) if with_producer else None
    parts, length = encode(
        Bodies.of(bodies),
        base_offset=7,
        timestamp_ns=START_NS,
        seed=SEED,
        times_ns=times_ns,
        due_ns=due_ns,
        producer=sender,
    )
    content = b"".join(parts)
    batch = decoded(content)
    assert len(content) == length == batch.length
    assert length % 8 == 0
    assert batch.messages() == bodies == [batch.body(index) for index in range(batch.count)]
    assert (batch.base_offset, batch.count, batch.next_offset) == (7, len(bodies), 7 + len(bodies))
    assert batch.timestamp_ns == (START_NS if times_ns is None else max(times_ns))
    assert (None if batch.times_ns is None else batch.times_ns.tolist()) == times_ns
    assert (None if batch.due_ns is None else batch.due_ns.tolist()) == due_ns
    assert batch.producer == sender
    assert content[batch.header.bodies_at :].startswith(b"".join(bodies))
    if times_ns is not None:
        assert content[batch.header.times_at :].startswith(struct.pack(f"<{len(bodies)}q", *times_ns))
    starts = [0, *batch.ends]
    assert [bytes(batch.bodies[start:end]) for start, end in zip(starts, batch.ends, strict=False)] == bodies


@given(messages)
def test_items_lose_their_prefix_and_nothing_else(bodies: list[bytes]) -> None:
    items = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    ends, end = [], 0
    for body in bodies:
        end += 4 + len(body)
        ends.append(end)
    assert Bodies.of_items(items, ends, prefix_bytes=4) == Bodies.of(bodies)
    assert Bodies.of_items(items, array("I", ends), prefix_bytes=4) == Bodies.of(bodies)
    if len(set(map(len, bodies))) == 1:
        uniform = range(ends[0], len(items) + 1, ends[0])
        assert Bodies.of_items(items, uniform, prefix_bytes=4) == Bodies.of(bodies)


@pytest.mark.parametrize("size", [1, 1024, 1025, 5000])
def test_large_and_small_items_of_one_size_lose_their_prefix_alike(size: int) -> None:
    bodies = [bytes([65 + index]) * size for index in range(5)]
    items = b"".join(b"####" + body for body in bodies)
    made = Bodies.of_items(items, range(size + 4, len(items) + 1, size + 4), prefix_bytes=4)
    assert made == Bodies.of(bodies)


def test_the_positions_of_very_many_bodies_are_not_kept_in_memory() -> None:
    assert uniform_positions(3, 4096) is uniform_positions(3, 4096)
    assert uniform_positions(3, 4097) is not uniform_positions(3, 4097)
    assert uniform_positions(3, 4097) == Bodies.of([b"abc"] * 4097).positions


def test_bodies_of_one_size_end_in_a_range() -> None:
    assert decoded(encoded(Bodies.of([b"ab", b"cd", b"ef"]))).ends == range(2, 7, 2)
    assert decoded(encoded(Bodies.of([b"ab", b"cd", b"e"]))).ends == [2, 4, 5]
    assert decoded(encoded(Bodies.of([b"", b""]))).ends == [0, 0]


@given(messages, st.data())
@settings(max_examples=60)
def test_every_truncation_is_detected(bodies: list[bytes], data: st.DataObject) -> None:
    content = encoded(Bodies.of(bodies))
    kept = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(DamagedBatchError):
        decoded(content[:kept])


def test_the_first_batch_of_a_journal_is_one_like_the_others() -> None:
    assert decoded(encoded(Bodies.of([b"first"]), base_offset=0)).base_offset == 0


def test_a_batch_of_the_largest_size_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(Bodies.of([b"x" * 80]))
    monkeypatch.setattr("emberq.wire.journal_batch.MAX_BATCH_BYTES", len(content))
    assert decoded(encoded(Bodies.of([b"x" * 80]))).messages() == [b"x" * 80]
    monkeypatch.setattr("emberq.wire.journal_batch.MAX_BATCH_BYTES", len(content) - 1)
    with pytest.raises(DamagedBatchError, match="impossible"):
        decoded(content)


def test_every_flipped_bit_is_detected() -> None:
    content = encoded(Bodies.of([b"first", b"", b"third message"]), sender=producer(b"p", 1))
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedBatchError):
                decoded(bytes(flipped))


def test_a_batch_of_another_journal_does_not_pass() -> None:
    with pytest.raises(DamagedBatchError, match="crc"):
        decoded(encoded(Bodies.of([b"body"]), seed=SEED + 1))


def test_the_seed_belongs_to_the_journal() -> None:
    assert seed_of(UUID(int=1)) == crc32(bytes(15) + b"\x01")


def resealed(content: bytearray) -> bytes:
    """The same bytes with a crc that fits them."""
    content[4:8] = struct.pack("<I", crc32(content[8:], SEED))
    return bytes(content)


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (8, "<I", 1 << 31, "impossible"),
        (8, "<I", 64, "length"),
        (12, "<H", 0, "unknown kind"),
        (12, "<H", 1, "length"),
        (12, "<H", 3, "unknown kind"),
        (14, "<H", 8, "unknown kind"),
        (16, "<q", -1, "impossible"),
        (16, "<q", (1 << 63) - 1, "impossible"),
        (32, "<I", 0, "impossible"),
        (32, "<I", 1 << 31, "length"),
        (36, "<I", 1 << 31, "length"),
        (64, "<i", 1, "positions"),
        (68, "<i", -1, "positions"),
        (68, "<i", 6, "positions"),
        (72, "<i", 4, "positions"),
        (72, "<i", 6, "positions"),
    ],
)
def test_values_that_make_no_sense_are_damage_even_under_a_good_crc(
    position: int, layout: str, value: int, reason: str
) -> None:
    content = bytearray(encoded(Bodies.of([b"ab", b"cde"])))
    struct.pack_into(layout, content, position, value)
    with pytest.raises(DamagedBatchError, match=reason):
        decoded(resealed(content))


@pytest.mark.parametrize(
    ("bodies", "options"),
    [
        ([], {}),
        ([b"a"], {"times_ns": [1, 2]}),
        ([b"a"], {"due_ns": []}),
        ([b"a"], {"producer": ProducerSequence(b"short", 1)}),
        ([b"a"], {"producer": ProducerSequence(bytes(16), -1)}),
        ([b"a"], {"producer": ProducerSequence(bytes(16), 1 << 63)}),
    ],
)
def test_what_the_format_cannot_hold_is_refused(bodies: list[bytes], options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(Bodies.of(bodies), base_offset=0, timestamp_ns=0, seed=0, **options)  # type: ignore[arg-type]


def test_items_that_do_not_end_where_they_should_are_refused() -> None:
    with pytest.raises(ValueError, match="last item"):
        Bodies.of_items(b"####body", [7], prefix_bytes=4)


def test_a_batch_larger_than_the_format_allows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.wire.journal_batch.MAX_BATCH_BYTES", 100)
    with pytest.raises(ValueError, match="larger"):
        Bodies.of([b"x" * 101])
    with pytest.raises(ValueError, match="larger"):
        encode(Bodies.of([b"x" * 50]), base_offset=0, timestamp_ns=0, seed=0)
