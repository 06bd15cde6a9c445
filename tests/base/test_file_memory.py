"""What of a file is in memory already, as far as the system tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from emberq.base.file import OS_FILES
from tests.support.waiting import wait_until

SIZE = 1024 * 1024


@pytest.fixture
def fd() -> Iterator[int]:
    """A file on a disk: temporary files of tests may be kept in memory, and /var/tmp must outlive a reboot."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "file"
        path.write_bytes(bytes(SIZE))
        fd = os.open(path, os.O_RDONLY)
        yield fd
        os.close(fd)


def is_let_go(fd: int) -> bool:
    """Ask the system to let go of the file; whether it has. It may not do so at once."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return not OS_FILES.is_in_memory(fd, SIZE, 0)


def test_what_was_just_written_is_in_memory(fd: int) -> None:
    assert OS_FILES.is_in_memory(fd, SIZE, 0)
    assert OS_FILES.is_in_memory(fd, 0, SIZE)


def test_what_the_system_has_let_go_is_not_until_it_was_asked_for(fd: int) -> None:
    os.fsync(fd)
    if not any(is_let_go(fd) for _ in range(100)):
        pytest.skip("this file system keeps its files in memory, or does not tell")
    OS_FILES.will_read(fd, SIZE, 0)
    wait_until(lambda: OS_FILES.is_in_memory(fd, SIZE, 0))
