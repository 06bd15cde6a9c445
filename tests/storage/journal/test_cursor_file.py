"""The bytes of a cursor, and damage to them."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest

from emberq.storage.error import DamagedCursorError, StorageError
from emberq.storage.journal.cursor import Cursor, from_bytes, load_cursor, save_cursor, to_bytes

JOURNAL = UUID(int=7)


def sample() -> Cursor:
    cursor = Cursor(JOURNAL, low_water=10)
    cursor.acknowledge(12, 15)
    cursor.acknowledge(20, 21)
    cursor.note_attempts(10, 3)
    cursor.note_attempts(16, 65535)
    cursor.note_attempts(11, 1)
    cursor.note_due(16, 1_700_000_000_000_000_000)
    return cursor


def drawn() -> bytes:
    content = struct.pack("<I16sqIIII", 1, JOURNAL.bytes, 10, 2, 3, 1, 0)
    content += struct.pack("<qq", 12, 20) + struct.pack("<qq", 15, 21)
    content += struct.pack("<qqq", 10, 16, 11) + struct.pack("<HHH2x", 3, 65535, 1)
    content += struct.pack("<qq", 16, 1_700_000_000_000_000_000)
    return b"EMBERQCU" + struct.pack("<I", crc32(content)) + content


def test_the_bytes_are_those_of_the_drawing() -> None:
    assert to_bytes(sample()) == drawn()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "channel.cursor"
    assert load_cursor(path, journal=JOURNAL) is None
    save_cursor(path, to_bytes(sample()))
    loaded = load_cursor(path, journal=JOURNAL)
    assert loaded is not None
    assert to_bytes(loaded) == drawn()
    loaded.acknowledge(10, 100)
    save_cursor(path, to_bytes(loaded))
    again = load_cursor(path, journal=JOURNAL)
    assert again is not None
    assert again.low_water == 100
    assert [found.name for found in tmp_path.iterdir()] == ["channel.cursor"]


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    content = drawn()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(DamagedCursorError):
            from_bytes(bytes(flipped), journal=JOURNAL)
        with pytest.raises(DamagedCursorError):
            from_bytes(content[:position], journal=JOURNAL)


def test_the_cursor_of_another_journal_is_refused() -> None:
    with pytest.raises(DamagedCursorError, match="another journal"):
        from_bytes(drawn(), journal=UUID(int=8))


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (12, "<I", 2, "version 2"),
        (40, "<I", 1 << 31, "length"),
        (44, "<I", 4, "length"),
        (48, "<I", 0, "length"),
        (32, "<q", -1, "ascend"),
        (32, "<q", 12, "ascend"),
        (64, "<q", 15, "ascend"),
        (72, "<q", 12, "ascend"),
    ],
)
def test_values_that_make_no_sense_are_damage_even_under_a_good_crc(
    position: int, layout: str, value: int, reason: str
) -> None:
    content = bytearray(drawn())
    struct.pack_into(layout, content, position, value)
    struct.pack_into("<I", content, 8, crc32(content[12:]))
    with pytest.raises(DamagedCursorError, match=reason):
        from_bytes(bytes(content), journal=JOURNAL)


def test_a_cursor_that_cannot_be_saved_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "channel.cursor"
    save_cursor(path, drawn())

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StorageError, match="no space left"):
        save_cursor(path, b"new")
    assert path.read_bytes() == drawn()


def test_a_cursor_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory"):
        load_cursor(tmp_path, journal=JOURNAL)
