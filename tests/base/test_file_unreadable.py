"""Files on a medium that cannot be read everywhere, or that has no room."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.base.file import UNREADABLE_PIECE_BYTES, lacks_room, read_around

PIECE = UNREADABLE_PIECE_BYTES
CONTENT = b"".join(bytes([65 + number]) * PIECE for number in range(5)) + b"end"


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of pieces that cannot be read."""
    spoiled: set[int] = set()
    pread = os.pread

    def read(fd: int, size: int, position: int) -> bytes:
        if spoiled & set(range(position // PIECE, (position + size - 1) // PIECE + 1)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, position)

    monkeypatch.setattr(os, "pread", read)
    return spoiled


def test_what_can_be_read_is_read_and_the_rest_is_zeros(fd: int, spoiled: set[int]) -> None:
    spoiled |= {1, 3}
    content, unreadable = read_around(fd, len(CONTENT), position=0)
    expected = bytearray(CONTENT)
    expected[PIECE : 2 * PIECE] = expected[3 * PIECE : 4 * PIECE] = bytes(PIECE)
    assert content == expected
    assert unreadable == [PIECE, 3 * PIECE]


@pytest.mark.parametrize("start", [0, 10, PIECE - 1, PIECE, PIECE + 10, 2 * PIECE])
@pytest.mark.parametrize("size", [1, 100, PIECE, 3 * PIECE + 7, 1 << 20])
def test_a_stretch_may_begin_and_end_anywhere(fd: int, spoiled: set[int], start: int, size: int) -> None:
    spoiled.add(1)
    content, unreadable = read_around(fd, size, position=start)
    expected = bytearray(CONTENT)
    expected[PIECE : 2 * PIECE] = bytes(PIECE)
    assert content == expected[start : start + size]
    assert unreadable == ([PIECE] if start < 2 * PIECE and start + size > PIECE else [])


def test_what_is_well_is_read_at_once(fd: int, spoiled: set[int]) -> None:
    assert read_around(fd, 1 << 20, position=5) == (CONTENT[5:], [])
    assert not spoiled


def test_other_errors_are_errors(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_fd: int, _size: int, _position: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(OSError, match=r"[Ss]tale"):
        read_around(fd, 10, position=0)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, True), (errno.EIO, False), (errno.EACCES, False)],
)
def test_a_lack_of_room_is_known_through_other_failures(number: int, expected: bool) -> None:
    failure = RuntimeError("what was to be done")
    failure.__cause__ = ValueError("how it was to be done")
    failure.__cause__.__cause__ = OSError(number, os.strerror(number))
    assert lacks_room(failure) is expected
    assert not lacks_room(ValueError("no room"))
