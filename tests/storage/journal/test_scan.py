"""Walking through bytes of which none is trusted."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.journal.scan import END_OF_OFFSETS, Damage, Scan, UnfinishedSearch
from emberq.storage.journal.segment import BatchPlace
from emberq.wire.journal_batch import HEADER_BYTES, MAGIC, Bodies, encode, header_at

SEED = 5


def batch(first: int, *bodies: bytes, seed: int = SEED) -> bytes:
    return b"".join(encode(Bodies.of(bodies), base_offset=first, timestamp_ns=first, seed=seed).parts)


@contextmanager
def scan_of(folder: Path, content: bytes, *, block_bytes: int = 64, end_offset: int = END_OF_OFFSETS) -> Iterator[Scan]:
    path = folder / "file"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield Scan(
            fd,
            seed=SEED,
            start=BatchPlace(0, 0),
            end_position=len(content),
            end_offset=end_offset,
            block_bytes=block_bytes,
        )
    finally:
        os.close(fd)


@contextmanager
def scan_at(content: bytes) -> Iterator[Scan]:
    """A scan of no file, for what it does without one."""
    yield Scan(-1, seed=SEED, start=BatchPlace(0, 0), end_position=len(content))


def walked(scan: Scan) -> list[object]:
    """What the scan finds: bodies of batches, and offsets of damage."""
    return [found[2:4] if isinstance(found, Damage) else found.messages() for found in scan]


@pytest.mark.parametrize("block_bytes", [1, 100, 1000, 1 << 20])
def test_batches_are_found_whatever_the_size_of_a_block(tmp_path: Path, block_bytes: int) -> None:
    content = batch(0, b"a", b"b") + batch(2, b"c" * 300) + batch(3, b"d")
    with scan_of(tmp_path, content, block_bytes=block_bytes) as scan:
        assert walked(scan) == [[b"a", b"b"], [b"c" * 300], [b"d"]]
        assert (scan.position, scan.offset) == (len(content), 4)
        assert scan.next() is None


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize(
    "rubbish",
    [
        bytes(8),
        MAGIC * 50,
        (b"????" + MAGIC) * 50,
        b"?" * 1000,
        b"?" * HEADER_BYTES,
        b"?" * (3 * HEADER_BYTES),
        batch(9, b"x", seed=SEED + 1),
    ],
)
def test_rubbish_between_batches_is_passed_over(tmp_path: Path, rubbish: bytes, block_bytes: int) -> None:
    content = batch(0, b"a") + rubbish + batch(5, b"b")
    with scan_of(tmp_path, content, block_bytes=block_bytes) as scan:
        assert walked(scan) == [[b"a"], (1, 5), [b"b"]]


def test_a_hole_in_the_offsets_is_damage_without_bytes(tmp_path: Path) -> None:
    with scan_of(tmp_path, batch(0, b"a") + batch(7, b"b")) as scan:
        assert walked(scan) == [[b"a"], (1, 7), [b"b"]]


def test_offsets_that_go_back_or_too_far_are_damage(tmp_path: Path) -> None:
    with scan_of(tmp_path, batch(0, b"a", b"b") + batch(1, b"again") + batch(2, b"c"), end_offset=3) as scan:
        assert walked(scan) == [[b"a", b"b"], (2, 2), [b"c"]]
    with scan_of(tmp_path, batch(0, b"a") + batch(1, b"b", b"c"), end_offset=2) as scan:
        assert walked(scan) == [[b"a"], (1, 2)]


def test_at_the_end_of_a_file_nothing_tells_how_much_is_lost(tmp_path: Path) -> None:
    with scan_of(tmp_path, batch(0, b"a") + bytes(40)) as scan:
        assert walked(scan) == [[b"a"], (1, 1)]
    with scan_of(tmp_path, batch(0, b"a") + bytes(40), end_offset=9) as scan:
        assert walked(scan) == [[b"a"], (1, 9)]


def test_a_file_that_is_shorter_than_it_should_be_ends_in_damage(tmp_path: Path) -> None:
    content = batch(0, b"a") + batch(1, b"b" * 100)
    with scan_of(tmp_path, content) as scan:
        os.truncate(tmp_path / "file", len(content) - 50)
        assert walked(scan) == [[b"a"], (1, 1)]


def test_headers_alone_lead_to_an_offset(tmp_path: Path) -> None:
    content = batch(0, b"a", b"b") + batch(2, b"c", b"d") + batch(4, b"e")
    for offset, first in ((0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 5)):
        with scan_of(tmp_path, content) as scan:
            scan.pass_before(offset)
            assert scan.offset == first


def test_headers_alone_lead_no_further_than_damage(tmp_path: Path) -> None:
    with scan_of(tmp_path, batch(0, b"a") + bytes(8) + batch(1, b"b")) as scan:
        scan.pass_before(9)
        assert scan.offset == 1
        assert scan.next_header() is None
        assert walked(scan) == [(1, 1), [b"b"]]


def test_only_whole_batches_count_as_loaded(tmp_path: Path) -> None:
    content = batch(0, b"a") + batch(1, b"b") + batch(2, b"c" * 500)
    with scan_of(tmp_path, content, block_bytes=300) as scan:
        assert not scan.next_is_loaded()
        scan.next()
        assert scan.next_is_loaded()
        scan.next()
        assert not scan.next_is_loaded()


def test_a_batch_that_ends_with_the_block_is_loaded(tmp_path: Path) -> None:
    first, second = batch(0, b"a"), batch(1, b"b")
    with scan_of(tmp_path, first + second + batch(2, b"c"), block_bytes=len(first + second)) as scan:
        scan.next()
        assert scan.next_is_loaded()
        scan.next()
        assert not scan.next_is_loaded()


def test_a_block_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, reads = os.pread, list[int]()

    def seen_pread(fd: int, size: int, position: int) -> bytes:
        reads.append(position)
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", seen_pread)
    with scan_of(tmp_path, b"".join(batch(offset, b"x") for offset in range(50)), block_bytes=1 << 20) as scan:
        assert len(walked(scan)) == 50
    assert reads == [0]


def test_damage_says_which_offsets_are_lost_and_where() -> None:
    damage = Damage(position=64, end=128, first_offset=3, next_offset=7, reason="crc")
    assert str(damage) == "offsets 3 to 6 are lost: position 64: crc"


def test_damage_begins_where_a_batch_should_and_ends_where_the_next_one_does(tmp_path: Path) -> None:
    first = batch(0, b"a")
    with scan_of(tmp_path, first + bytes(40) + batch(5, b"b")) as scan:
        damage = [found for found in scan if isinstance(found, Damage)]
    assert [(found.position, found.end) for found in damage] == [(len(first), len(first) + 40)]


@pytest.mark.parametrize("before_it", range(8))
def test_what_looks_like_a_batch_within_a_damaged_one_is_not_taken_for_one(tmp_path: Path, before_it: int) -> None:
    damaged = bytearray(batch(1, b"?" * 4 + bytes(before_it), batch(2, b"not published")))
    damaged[damaged.index(b"????")] ^= 1
    with scan_of(tmp_path, batch(0, b"a") + damaged + batch(3, b"b")) as scan:
        assert walked(scan) == [[b"a"], (1, 3), [b"b"]]


# Very many places where a batch may begin.

FAKE_COUNT = 6000


def fakes(count: int, *, room_bytes: int = 0) -> bytes:
    """Headers that make sense, of batches that reach from each to the end of all, or `room_bytes` farther."""
    pieces = []
    for number in range(count):
        length = HEADER_BYTES * (count - number + 1) + room_bytes
        body_bytes = length - HEADER_BYTES - 8 - 8
        start = struct.pack("<4sIIHHqq", MAGIC, number, length, 2, 0, 2, 7)
        pieces.append(start + struct.pack("<II16sq", 1, body_bytes, bytes(16), 0))
    return b"".join(pieces) + bytes(HEADER_BYTES)


def damaged_batch(first: int, body: bytes) -> bytes:
    """A batch whose header cannot be read."""
    return b"????" + batch(first, body)[4:]


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each system call has read."""
    pread, sizes = os.pread, list[int]()

    def counted(fd: int, size: int, position: int) -> bytes:
        content = pread(fd, size, position)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", counted)
    return sizes


@pytest.mark.parametrize("room_bytes", [0, 4096, 400_000])
def test_a_body_full_of_headers_costs_no_more_than_a_few_readings(
    tmp_path: Path, read_bytes: list[int], room_bytes: int
) -> None:
    others = [batch(offset, b"b" * 4000) for offset in range(5, 105)]
    content = batch(0, b"a") + damaged_batch(1, fakes(FAKE_COUNT, room_bytes=room_bytes)) + b"".join(others)
    with scan_of(tmp_path, content, block_bytes=1 << 16) as scan:
        assert walked(scan) == [[b"a"], (1, 5), *[[b"b" * 4000]] * 100]
    assert sum(read_bytes) <= 6 * len(content)


def test_a_good_batch_among_very_many_headers_is_found(tmp_path: Path) -> None:
    hidden = batch(3, b"hidden")
    content = batch(0, b"a") + damaged_batch(1, fakes(FAKE_COUNT)) + hidden + fakes(FAKE_COUNT) + batch(9, b"b")
    with scan_of(tmp_path, content, block_bytes=1 << 16) as scan:
        assert walked(scan) == [[b"a"], (1, 3), [b"hidden"], (4, 9), [b"b"]]


def test_a_search_is_done_in_portions_if_that_is_asked_for(tmp_path: Path, read_bytes: list[int]) -> None:
    content = batch(0, b"a") + damaged_batch(1, fakes(FAKE_COUNT)) + batch(5, b"b")
    with scan_of(tmp_path, content, block_bytes=1 << 16) as scan:
        scan.max_portions = 1
        assert scan.next() is not None
        place, portions = (scan.position, scan.offset), 0
        while True:
            read_bytes.clear()
            try:
                found = scan.next()
                break
            except UnfinishedSearch:
                portions += 1
                assert (scan.position, scan.offset) == place
                assert sum(read_bytes) <= 2 << 20
        assert portions > FAKE_COUNT // 200
        assert isinstance(found, Damage)
        assert (found.first_offset, found.next_offset) == (1, 5)
        assert walked(scan) == [[b"b"]]


@given(st.integers(0, 2**32), st.integers(0, 400), st.integers(0, 400))
def test_among_headers_the_crc_of_any_batch_is_known(seed: int, before: int, after: int) -> None:
    """Whatever lies before and behind it, as the arithmetic of crcs promises."""
    dice = random.Random(seed)
    good = batch(4, dice.randbytes(dice.randrange(2000)))
    content = dice.randbytes(8 * before) + good + dice.randbytes(8 * after)
    start, end = 8 * before + 8, 8 * before + len(good)
    crc_before = {cut: crc32(content[:cut]) for cut in (start, end)}
    with scan_at(content) as scan:
        header = header_at(memoryview(good))
        assert scan._fits(8 * before, header, crc_before)
        assert not scan._fits(8 * before, header._replace(crc=header.crc ^ 1), crc_before)
