"""Walking through bytes of which none is trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emberq.storage.journal.scan import END_OF_OFFSETS, Damage, Scan
from emberq.storage.journal.segment import BatchPlace
from emberq.wire.journal_batch import HEADER_BYTES, MAGIC, Bodies, encode

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
