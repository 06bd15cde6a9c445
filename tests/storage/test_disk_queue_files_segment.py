"""Reading whole records from one data file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberq.storage.backend import DiskLimits
from emberq.storage.disk_queue_files import BLOCK_BYTES, SegmentReader, count_records, open_for_writing
from emberq.storage.error import DamagedSegmentError
from tests.storage.rig import MANY, numbered, on_disk, payloads_of

LIMITS = DiskLimits(min_record_bytes=1, max_record_bytes=1 << 20)


@contextmanager
def reading(folder: Path, content: bytes) -> Iterator[SegmentReader]:
    path = folder / "segment"
    path.write_bytes(content)
    reader = SegmentReader(path, limits=LIMITS)
    yield reader
    reader.close()


def read_all(reader: SegmentReader, *, max_count: int = MANY, max_bytes: int = MANY) -> list[bytes]:
    """Every record, in calls with the given limits."""
    position, end, found = 0, reader.size(), list[bytes]()
    while position < end:
        records = reader.records_at(position, end=end, max_count=max_count, max_bytes=max_bytes)
        assert 1 <= len(records.ends) <= max_count
        assert len(records.blob) <= max_bytes or len(records.ends) == 1
        position += len(records.blob)
        found += payloads_of(records)
    return found


def test_a_closed_reader_has_let_go_of_its_file(tmp_path: Path) -> None:
    with reading(tmp_path, on_disk(b"a")) as reader:
        assert reader.size() == 5
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.size()


def test_records_of_one_size_come_with_a_range(tmp_path: Path) -> None:
    payloads = numbered(50, size=300)
    with reading(tmp_path, on_disk(*payloads)) as reader:
        records = reader.records_at(0, end=MANY, max_count=MANY, max_bytes=MANY)
    assert records.ends == range(304, 50 * 304 + 1, 304)
    assert payloads_of(records) == payloads


def test_records_of_different_sizes_come_in_one_go_too(tmp_path: Path) -> None:
    payloads = [b"x" * (1 + number % 7) for number in range(500)]
    with reading(tmp_path, on_disk(*payloads)) as reader:
        records = reader.records_at(0, end=MANY, max_count=MANY, max_bytes=MANY)
    assert payloads_of(records) == payloads


def test_a_payload_that_looks_like_length_fields_is_not_taken_for_records(tmp_path: Path) -> None:
    payloads = [on_disk(b"abcd") * 3, on_disk(b"abcd"), b"abcd"]
    with reading(tmp_path, on_disk(*payloads)) as reader:
        assert read_all(reader) == payloads


def test_a_record_larger_than_the_block_is_read_whole(tmp_path: Path) -> None:
    payloads = [b"a", b"b" * (2 * BLOCK_BYTES), b"c" * (BLOCK_BYTES + 1), b"d"]
    with reading(tmp_path, on_disk(*payloads)) as reader:
        assert read_all(reader) == payloads


def test_records_that_cross_the_end_of_a_block_are_read_whole(tmp_path: Path) -> None:
    payloads = numbered(1000, size=997)
    with reading(tmp_path, on_disk(*payloads)) as reader:
        assert read_all(reader) == payloads


def test_one_record_is_given_even_if_it_exceeds_the_limit(tmp_path: Path) -> None:
    with reading(tmp_path, on_disk(b"x" * 100, b"y" * 100)) as reader:
        assert payloads_of(reader.records_at(0, end=208, max_count=10, max_bytes=5)) == [b"x" * 100]


def test_nothing_beyond_the_end_is_given(tmp_path: Path) -> None:
    content = on_disk(b"abc", b"def")
    with reading(tmp_path, content) as reader:
        assert payloads_of(reader.records_at(0, end=7, max_count=10, max_bytes=MANY)) == [b"abc"]
        with pytest.raises(DamagedSegmentError, match="unexpected EOF"):
            reader.records_at(7, end=13, max_count=10, max_bytes=MANY)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "^EOF"),
        (b"\0\0", "unexpected EOF"),
        (b"\0\0\0\5abcd", "unexpected EOF"),
        (b"\0\0\0\0", "invalid message read size .0."),
        (b"\xff\xff\xff\xff", "invalid message read size .-1."),
        (b"\x7f\0\0\0", "invalid message read size"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    with reading(tmp_path, content) as reader, pytest.raises(DamagedSegmentError, match=reason):
        reader.records_at(0, end=max(1, len(content)), max_count=10, max_bytes=MANY)


@pytest.mark.parametrize("payloads", [[b"abc"], [b"abcde"], [b"abc", b"abcde", b"abcd"]])
def test_the_shortest_and_the_longest_record_are_no_damage(tmp_path: Path, payloads: list[bytes]) -> None:
    path = tmp_path / "segment"
    path.write_bytes(on_disk(*payloads))
    reader = SegmentReader(path, limits=DiskLimits(min_record_bytes=3, max_record_bytes=5))
    assert read_all(reader) == payloads
    reader.close()


def test_the_records_before_the_damage_are_given_first(tmp_path: Path) -> None:
    content = on_disk(b"abc", b"def") + b"\0\0\0\0" + on_disk(b"ghi")
    with reading(tmp_path, content) as reader:
        assert payloads_of(reader.records_at(0, end=len(content), max_count=10, max_bytes=MANY)) == [b"abc", b"def"]
        with pytest.raises(DamagedSegmentError):
            reader.records_at(14, end=len(content), max_count=10, max_bytes=MANY)


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    with reading(tmp_path, on_disk(b"abc")) as reader:
        assert read_all(reader) == [b"abc"]
        with (tmp_path / "segment").open("ab") as file:
            file.write(on_disk(b"defg"))
        assert payloads_of(reader.records_at(7, end=15, max_count=10, max_bytes=MANY)) == [b"defg"]


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=60)
runs = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=6).map(
    lambda pairs: [size for size, length in pairs for _ in range(length)]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(sizes, runs), st.integers(1, 70), st.integers(1, 2000))
def test_any_mix_of_sizes_is_read_back(tmp_path: Path, sizes: list[int], max_count: int, max_bytes: int) -> None:
    # Bytes below 3 make payloads that look like length fields.
    payloads = [bytes((size * index + position) % 3 for position in range(size)) for index, size in enumerate(sizes)]
    with reading(tmp_path, on_disk(*payloads)) as reader:
        assert read_all(reader, max_count=max_count, max_bytes=max_bytes) == payloads


def test_counting_stops_at_the_first_damage(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(on_disk(b"abc", b"de", b"f") + b"\0\0\0\5gh")
    assert count_records(path, start=0, end=None, limits=LIMITS) == 3
    assert count_records(path, start=7, end=None, limits=LIMITS) == 2
    assert count_records(path, start=0, end=13, limits=LIMITS) == 2
    assert count_records(tmp_path / "missing", start=0, end=None, limits=LIMITS) == 0


def test_counting_goes_through_many_blocks(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(on_disk(*numbered(3000, size=400)))
    assert count_records(path, start=0, end=None, limits=LIMITS) == 3000


def test_a_file_opened_for_writing_ends_at_the_position(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"0123456789")
    fd = open_for_writing(path, position=4)
    with open(fd, "wb", closefd=True) as file:  # noqa: PTH123 - it is a descriptor, not a path
        file.seek(4)
        file.write(b"xy")
    assert path.read_bytes() == b"0123xy"
