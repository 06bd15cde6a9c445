"""Batches as nsqd writes them, decoded into Arrow columns. The encoder of the wire package is the other end."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.spark.journal_columns import ROWS_PER_RECORD_BATCH, decode, record_batches
from emberq.spark.schema import COLUMNS, arrow_schema_of
from emberq.wire.journal_batch import Bodies, encode, seed_of
from emberq.wire.parameter import ProducerSequence

JOURNAL = UUID(int=7)
SEED = seed_of(JOURNAL)
T0_NS = 1_700_000_000_000_000_000


def encoded(
    messages: Sequence[bytes], *, base_offset: int, timestamp_ns: int = T0_NS, times_ns: Sequence[int] | None = None
) -> bytes:
    batch = encode(
        Bodies.of(messages),
        base_offset=base_offset,
        timestamp_ns=timestamp_ns,
        seed=SEED,
        times_ns=times_ns,
        due_ns=None if times_ns is None else times_ns,
        producer=ProducerSequence(bytes(range(16)), 3),
    )
    return b"".join(batch.parts)


def rows_of(data: bytes) -> list[dict[str, object]]:
    decoded = decode(data, seed=SEED)
    assert decoded.fault is None
    tables = list(record_batches(decoded.batches, nsqd="n:1", topic="t"))
    for table in tables:
        table.validate(full=True)
        assert table.schema == arrow_schema_of(COLUMNS)
    rows: list[dict[str, object]] = pa.Table.from_batches(tables).to_pylist()
    return rows


@given(
    st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=8), min_size=1, max_size=6),
    st.sampled_from([0, 65_530, (1 << 40) - 3]),
    st.booleans(),
)
def test_every_message_is_a_row_with_its_offset_id_and_time(
    batches: list[list[bytes]], first_offset: int, with_times: bool
) -> None:
    data, expected, offset = b"", [], first_offset
    for number, messages in enumerate(batches):
        times_ns = [T0_NS + number * 1_000_000 + index * 1000 for index in range(len(messages))]
        own_times = times_ns if with_times and number % 2 else None
        data += encoded(messages, base_offset=offset, timestamp_ns=times_ns[0], times_ns=own_times)
        for index, body in enumerate(messages):
            time_ns = times_ns[index if own_times else 0]
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)
            expected.append((offset + index, f"{offset + index:016x}", moment, body))
        offset += len(messages)
    found = [(row["offset"], row["id"], row["timestamp"], row["body"]) for row in rows_of(data)]
    assert found == expected


def test_offsets_that_are_missing_between_batches_are_not_counted() -> None:
    data = encoded([b"a", b"b"], base_offset=5) + encoded([b"c"], base_offset=90_000)
    assert [(row["offset"], row["id"]) for row in rows_of(data)] == [
        (5, "0000000000000005"),
        (6, "0000000000000006"),
        (90_000, "0000000000015f90"),
    ]


def test_many_rows_come_in_portions() -> None:
    count = 2 * ROWS_PER_RECORD_BATCH + 1
    decoded = decode(encoded([b"x"] * count, base_offset=0), seed=SEED)
    portions = record_batches(decoded.batches, nsqd="n:1", topic="t")
    assert [portion.num_rows for portion in portions] == [ROWS_PER_RECORD_BATCH, ROWS_PER_RECORD_BATCH, 1]


def test_a_part_of_a_batch_keeps_its_offsets_bodies_and_times() -> None:
    times_ns = [T0_NS + index for index in range(5)]
    (batch,) = decode(encoded([b"0", b"1", b"2", b"3", b"4"], base_offset=10, times_ns=times_ns), seed=SEED).batches
    part = batch.between(start=11, end=14)
    assert (part.base_offset, part.next_offset) == (11, 14)
    assert part.bodies.to_pylist() == [b"1", b"2", b"3"]
    assert part.times_ns is not None
    assert part.times_ns.to_pylist() == times_ns[1:4]
    assert batch.between(start=0, end=100) is batch


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda data: data[:-1] + b"\xff", "crc"),
        (lambda data: data[:-8], "the batch is not complete"),
        (lambda data: data[:40], "the header of a batch is not complete"),
        (lambda data: b"XXXX" + data[4:], "no batch begins here"),
        (lambda data: data[:32] + b"\x09" + data[33:], "does not fit the contents"),
    ],
)
def test_what_comes_before_damage_is_used_and_the_damage_is_told(damage: object, fault: str) -> None:
    good, bad = encoded([b"good"], base_offset=0), encoded([b"badbadb"], base_offset=1)
    decoded = decode(good + damage(bad), seed=SEED)  # type: ignore[operator]
    assert [batch.bodies.to_pylist() for batch in decoded.batches] == [[b"good"]]
    assert fault in (decoded.fault or "")


def test_a_batch_of_another_journal_is_not_taken() -> None:
    assert decode(encoded([b"a"], base_offset=0), seed=seed_of(UUID(int=8))).batches == []


def sealed(batch: bytes) -> bytes:
    """The batch with the crc that belongs to it, as a hostile nsqd would send it."""
    return batch[:4] + struct.pack("<I", crc32(batch[8:], SEED)) + batch[8:]


@pytest.mark.parametrize("positions", [(0, 5, 5000), (0, 5000, 11), (5, 0, 11), (-9, 5, 11), (0, 11, 5)])
def test_positions_that_lead_out_of_the_batch_are_not_followed(positions: tuple[int, int, int]) -> None:
    good, bad = encoded([b"first"], base_offset=0), bytearray(encoded([b"hello", b"world!"], base_offset=1))
    struct.pack_into("<3i", bad, 64, *positions)
    decoded = decode(good + sealed(bytes(bad)), seed=SEED)
    assert decoded.fault == "the positions of the bodies lead out of the batch"
    assert [batch.bodies.to_pylist() for batch in decoded.batches] == [[b"first"]]
