"""One process per data folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from emberq.storage.data_folder import DataPathLock
from emberq.storage.error import DataPathError


@pytest.mark.conformance(131)
def test_a_second_lock_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    first, second = DataPathLock(tmp_path), DataPathLock(tmp_path)
    first.acquire()
    with pytest.raises(DataPathError) as refusal:
        second.acquire()
    assert str(refusal.value) == (
        f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable"
        " (possibly in use by another instance of nsqd)"
    )
    first.release()


def test_a_released_folder_can_be_locked_again(tmp_path: Path) -> None:
    first, second = DataPathLock(tmp_path), DataPathLock(tmp_path)
    first.acquire()
    first.release()
    second.acquire()
    second.release()


def test_releasing_twice_does_nothing(tmp_path: Path) -> None:
    lock = DataPathLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()


def test_acquiring_twice_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    lock = DataPathLock(tmp_path)
    lock.acquire()
    with pytest.raises(RuntimeError):
        lock.acquire()
    lock.release()


def test_a_lock_leaves_no_file_behind(tmp_path: Path) -> None:
    lock = DataPathLock(tmp_path)
    lock.acquire()
    assert list(tmp_path.iterdir()) == []
    lock.release()


def test_a_missing_folder_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(DataPathError) as refusal:
        DataPathLock(missing).acquire()
    assert str(refusal.value) == f"failed to lock data-path: open {missing}: no such file or directory"
    assert not missing.exists()


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(DataPathError, match="not a directory"):
        DataPathLock(path).acquire()


def test_the_empty_path_locks_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = DataPathLock(Path())
    lock.acquire()
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    lock.release()
