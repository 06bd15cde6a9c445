"""What of a file is in memory already, as far as the system tells; and reads and removals that give way to syncs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from emberq.base import file
from emberq.base.file import OS_FILES, PATIENT_BYTES
from tests.support.waiting import PATIENCE_S

SIZE = 8 * 1024 * 1024


@pytest.fixture
def fd() -> Iterator[int]:
    """A file on a disk: temporary files of tests may be kept in memory, and /var/tmp must outlive a reboot."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "file"
        path.write_bytes(bytes(SIZE))
        fd = os.open(path, os.O_RDONLY)
        yield fd
        os.close(fd)


def let_go(fd: int, *, size: int, position: int) -> None:
    """Have the system let go of a part of the file. It may not do so at once."""
    os.fsync(fd)
    for _ in range(100):
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)
        if not OS_FILES.is_in_memory(fd, size, position):
            return
    pytest.skip("this file system keeps its files in memory, or does not tell")


def test_what_was_just_written_is_in_memory(fd: int) -> None:
    assert OS_FILES.is_in_memory(fd, SIZE, 0)
    assert OS_FILES.is_in_memory(fd, 0, SIZE)


def test_what_the_system_has_let_go_is_not_until_it_was_read(fd: int) -> None:
    let_go(fd, size=SIZE, position=0)
    assert not OS_FILES.is_in_memory(fd, 1, 0)  # to ask brings nothing
    assert not OS_FILES.is_in_memory(fd, 1, 0)
    assert OS_FILES.patient.read(fd, SIZE, 0) == bytes(SIZE)
    assert OS_FILES.is_in_memory(fd, SIZE, 0)


def test_a_stretch_is_not_in_memory_if_its_middle_is_not(fd: int) -> None:
    let_go(fd, size=SIZE // 2, position=SIZE // 4)
    assert OS_FILES.is_in_memory(fd, 1, 0)
    assert OS_FILES.is_in_memory(fd, 1, SIZE - 1)
    assert not OS_FILES.is_in_memory(fd, SIZE, 0)
    assert not OS_FILES.is_in_memory(fd, SIZE - 2, 1)


def test_what_the_system_does_not_tell_counts_as_in_memory(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)  # what cannot be read cannot be mapped
    assert OS_FILES.is_in_memory(fd, 10, 0)
    os.close(fd)


def test_patient_files_are_read_as_others_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(3 * PATIENT_BYTES + 5)
    path.write_bytes(content)
    files = OS_FILES.patient
    fd = files.open(path, os.O_RDONLY)
    for position, size in ((0, len(content)), (7, PATIENT_BYTES), (PATIENT_BYTES - 1, 2), (len(content) - 3, 99)):
        assert files.read(fd, size, position) == content[position : position + size]
    assert files.read(fd, 10, len(content)) == b""
    files.close(fd)


def test_a_patient_read_waits_until_a_sync_has_ended(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MAX_PATIENCE_S", PATIENCE_S)
    is_syncing, may_end, order = threading.Event(), threading.Event(), list[str]()

    def slow_fdatasync(_fd: int) -> None:
        is_syncing.set()
        may_end.wait(PATIENCE_S)
        order.append("synced")

    def read() -> None:
        OS_FILES.patient.read(fd, SIZE, 0)
        order.append("read")

    monkeypatch.setattr(os, "fdatasync", slow_fdatasync)
    with ThreadPoolExecutor() as pool:
        pool.submit(OS_FILES.sync_data, fd)
        assert is_syncing.wait(PATIENCE_S)
        reading = pool.submit(read)
        with pytest.raises(TimeoutError):
            reading.result(0.05)
        may_end.set()
        reading.result()
    assert order == ["synced", "read"]


def test_syncs_without_end_do_not_keep_a_patient_read_waiting_for_ever(fd: int) -> None:
    with file.SYNCS.one():
        assert len(OS_FILES.patient.read(fd, SIZE, 0)) == SIZE


# Removals that give way.


def cut_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes to which files are cut from now on, in order. No rest is taken in between."""
    sizes: list[int] = []
    truncate = os.ftruncate

    def seen(fd: int, size: int) -> None:
        sizes.append(size)
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", seen)
    monkeypatch.setattr(file, "REST_S", 0.0)
    monkeypatch.setattr(file, "PIECE_GIVEN_BACK", 1000)
    return sizes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(3500))
    return path


def test_beside_syncs_the_room_of_a_deleted_file_is_given_back_in_pieces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = cut_sizes(monkeypatch)
    with file.SYNCS.one():
        OS_FILES.patient.unlink(path)
    assert not path.exists()
    assert sizes == [2500, 1500, 500]


def test_where_no_sync_is_expected_it_is_given_back_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = cut_sizes(monkeypatch)
    monkeypatch.setattr(file.SYNCS, "_last_s", -file.QUIET_S)
    OS_FILES.patient.unlink(path)
    assert not path.exists()
    assert sizes == []


def test_a_second_name_of_a_deleted_file_keeps_all_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = cut_sizes(monkeypatch)
    copy = path.with_name("copy")
    os.link(path, copy)
    with file.SYNCS.one():
        OS_FILES.patient.unlink(path)
    assert copy.read_bytes() == bytes(3500)
    assert sizes == []


def test_what_is_no_file_or_not_there_is_refused_as_ever(tmp_path: Path) -> None:
    with file.SYNCS.one():
        with pytest.raises(FileNotFoundError):
            OS_FILES.patient.unlink(tmp_path / "missing")
        OS_FILES.patient.unlink(tmp_path / "missing", missing_ok=True)
        with pytest.raises(IsADirectoryError):
            OS_FILES.patient.unlink(tmp_path)
        (tmp_path / "link").symlink_to(tmp_path)
        OS_FILES.patient.unlink(tmp_path / "link")
    assert list(tmp_path.iterdir()) == []
