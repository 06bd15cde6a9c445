"""The faults of the operating system themselves: that they come, that they go, and whom they concern."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.shim import OsFaults, Shim, compile_shim

TRY = """
import errno, os, sys, time
path = sys.argv[1]
def attempt(what):
    try:
        what()
        return "fine"
    except OSError as error:
        return errno.errorcode[error.errno]
fd = os.open(path, os.O_RDONLY)
print(attempt(lambda: os.pread(fd, 10, 0)), attempt(lambda: os.pread(fd, 10, 5000)),
      attempt(lambda: os.pwritev(os.open(path, os.O_WRONLY), [b"x"], 0)), attempt(lambda: os.fdatasync(fd)),
      attempt(lambda: os.open(path + ".new", os.O_WRONLY | os.O_CREAT)), int(time.time()))
"""


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    library = compile_shim(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    return Shim(library, tmp_path / "faults")


def tried(shim: Shim, path: Path) -> list[str]:
    command = [sys.executable, "-c", TRY, str(path)]
    done = subprocess.run(command, env=shim.environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(10_000))
    return path


def test_each_error_comes_where_it_is_asked_for(shim: Shim, path: Path) -> None:
    shim.set(
        OsFaults(
            path="/data/",
            read_errno=errno.EIO,
            write_errno=errno.ENOSPC,
            sync_errno=errno.EIO,
            bad_positions=(4096, 8192),
        )
    )
    assert tried(shim, path)[:5] == ["fine", "EIO", "ENOSPC", "EIO", "fine"]
    shim.set(OsFaults(path="/data/", change_errno=errno.EROFS))
    assert tried(shim, path)[:5] == ["fine", "fine", "EROFS", "fine", "EROFS"]


def test_other_files_are_not_concerned_and_faults_go_away(shim: Shim, path: Path) -> None:
    shim.set(OsFaults(path="/elsewhere/", read_errno=errno.EIO, write_errno=errno.EIO, sync_errno=errno.EIO))
    assert tried(shim, path)[:5] == ["fine"] * 5
    shim.set(OsFaults(path="/data/", write_errno=errno.EIO))
    shim.heal()
    assert tried(shim, path)[:5] == ["fine"] * 5


def test_the_wall_clock_is_wrong_by_an_hour(shim: Shim, path: Path) -> None:
    shim.set(OsFaults(path="", clock_offset_ns=-3600 * 1_000_000_000))
    assert abs(int(tried(shim, path)[5]) - (time.time() - 3600)) < 60
