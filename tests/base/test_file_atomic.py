"""Replacing a file as a whole, and writes that stop half-way."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from emberq.base.file import replace_file, sync_file, sync_folder, write_fully


def test_the_temporary_file_is_named_after_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    rename = Path.rename

    def watched_rename(path: Path, target: Path) -> Path:
        renamed.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched_rename)
    replace_file(tmp_path / "nsqd.dat", b"new")
    assert re.fullmatch(r"nsqd\.dat\.\d+\.tmp", renamed[0])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full_disk(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_syncing_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")


def test_syncing_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    sync_file(path)
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "missing")


def test_a_file_that_need_not_be_durable_is_replaced_without_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    replace_file(tmp_path / "file", b"new", durable=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert not synced


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:3], position))
    path = tmp_path / "file"
    path.write_bytes(b"..")
    fd = os.open(path, os.O_WRONLY)
    assert write_fully(fd, b"0123456789", position=2) == (10, None)
    os.close(fd)
    assert path.read_bytes() == b"..0123456789"


def test_a_write_that_fails_tells_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def fills_up(fd: int, data: bytes, position: int) -> int:
        if position:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data[:4], position)

    monkeypatch.setattr(os, "pwrite", fills_up)
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    written, failure = write_fully(fd, b"0123456789", position=0)
    os.close(fd)
    assert written == 4
    assert failure is not None
    assert failure.errno == errno.ENOSPC
