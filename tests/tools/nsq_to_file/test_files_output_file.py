"""One file: what is in it, and when."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

import pytest

from emberq.tools.nsq_to_file.files import OutputFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def test_lines_are_in_the_file_as_soon_as_they_are_written(path: Path) -> None:
    file = OutputFile.create(path)
    file.write(b"one\n")
    assert path.read_bytes() == b"one\n"
    file.write(b"two\n")
    file.close()
    assert path.read_bytes() == b"one\ntwo\n"
    assert file.size_bytes == 8


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o660), (0o022, 0o640), (0o077, 0o600)])
def test_a_file_is_open_to_the_group_if_the_umask_allows_and_never_to_others(path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        OutputFile.create(path).close()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_a_name_that_is_taken_cannot_be_created(path: Path) -> None:
    OutputFile.create(path).close()
    with pytest.raises(FileExistsError):
        OutputFile.create(path)


def test_a_plain_file_is_continued(path: Path) -> None:
    OutputFile.create_or_continue(path).close()
    path.write_bytes(b"old\n")
    file = OutputFile.create_or_continue(path)
    assert file.size_bytes == 4
    file.write(b"new\n")
    file.close()
    assert path.read_bytes() == b"old\nnew\n"


def test_a_line_that_a_crash_has_torn_does_not_swallow_the_next(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"whole\nto")
    file = OutputFile.create_or_continue(path)
    file.write(b"next\n")
    file.close()
    assert path.read_bytes() == b"whole\nto\nnext\n"


def test_a_gzip_file_is_readable_up_to_the_last_sync_while_it_is_written(path: Path) -> None:
    file = OutputFile.create(path, gzip_level=6)
    file.write(b"one\n")
    file.write(b"two\n")
    file.sync()
    assert gzip.decompress(path.read_bytes()) == b"one\ntwo\n"
    file.write(b"three\n")
    file.sync()
    file.sync()  # nothing to do
    assert gzip.decompress(path.read_bytes()) == b"one\ntwo\nthree\n"
    file.close()


def test_what_was_synced_is_readable_behind_which_a_crash_has_torn_a_member(path: Path) -> None:
    file = OutputFile.create(path, gzip_level=6)
    file.write(b"safe\n")
    file.sync()
    synced = path.stat().st_size
    file.write(os.urandom(200_000))  # too much for zlib to hold back
    torn = path.read_bytes()
    assert len(torn) > synced
    file.close()
    member = zlib.decompressobj(wbits=31)
    assert member.decompress(torn) == b"safe\n"
    assert member.eof


def test_size_counts_what_was_written_before_compression(path: Path) -> None:
    file = OutputFile.create(path, gzip_level=9)
    file.write(b"x" * 100_000)
    file.close()
    assert file.size_bytes == 100_000
    assert path.stat().st_size < 1000


def test_a_gzip_file_without_a_message_is_valid(path: Path) -> None:
    OutputFile.create(path, gzip_level=6).close()
    assert path.stat().st_size > 0
    assert gzip.decompress(path.read_bytes()) == b""


@pytest.mark.parametrize(("level", "marker"), [(1, 4), (6, 0), (9, 2)])
def test_the_level_is_the_one_asked_for(path: Path, level: int, marker: int) -> None:
    file = OutputFile.create(path, gzip_level=level)
    file.write(b"x\n")
    file.close()
    assert path.read_bytes()[8] == marker  # how gzip tells the fastest and the smallest from the rest
