"""The simulator itself: what a crash may leave, and what it may not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from emberq.base.file import Files, replace_file
from tests.crash.simulated_files import PAGE_BYTES, ROOT, Choice, Fault, SimulatedFiles

FILE = ROOT / "file"
SEEDS = range(200)


def created(fs: Files, content: bytes, path: Path = FILE) -> int:
    """A new file with this content, which is not synced."""
    fd = fs.open(path, os.O_RDWR | os.O_CREAT)
    assert fs.write(fd, content, 0) == len(content)
    return fd


def after_power_cuts(fs: SimulatedFiles, path: Path = FILE) -> set[bytes | None]:
    """All that the file may be after the power is cut now; None: there is none."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        left = fs.power_cut(fs.moment, Choice(seed))
        found.add(left.read_file(path) if left.exists(path) else None)
    return found


def test_what_was_written_can_be_read() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"0123456789")
    fs.write(fd, b"AB", 4)
    fs.truncate(fd, 8)
    assert fs.read(fd, 100, 2) == b"23AB67"
    assert (fs.size(fd), fs.file_size(FILE)) == (8, 8)
    fs.close(fd)
    assert fs.open_count == 0
    assert fs.names(ROOT) == ["file"]


def test_names_are_lost_until_the_folder_is_synced() -> None:
    fs = SimulatedFiles()
    fs.sync(created(fs, b"content"))
    assert after_power_cuts(fs) == {None, b"content"}
    fs.sync_folder(ROOT)
    assert after_power_cuts(fs) == {b"content"}


def test_content_is_lost_until_the_file_is_synced() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"content")
    fs.sync_folder(ROOT)
    assert after_power_cuts(fs) == {b"", bytes(7), b"content"}
    fs.sync(fd)
    assert after_power_cuts(fs) == {b"content"}


def test_pages_arrive_in_any_order() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"")
    fs.sync_folder(ROOT)
    fs.write(fd, b"a" * PAGE_BYTES, 0)
    fs.write(fd, b"b" * PAGE_BYTES, PAGE_BYTES)
    assert bytes(PAGE_BYTES) + b"b" * PAGE_BYTES in after_power_cuts(fs)


def test_the_changes_of_a_folder_may_arrive_in_any_order_and_those_of_a_name_in_theirs() -> None:
    fs = SimulatedFiles()
    for name in ("one", "two"):
        fs.close(created(fs, b"", ROOT / name))
    fs.sync_folder(ROOT)
    fs.unlink(ROOT / "one")
    fs.close(created(fs, b"", ROOT / "three"))
    fs.rename(ROOT / "three", ROOT / "four")
    states = {tuple(fs.power_cut(fs.moment, Choice(seed)).names(ROOT)) for seed in SEEDS}
    unlinked = {("two",), ("two", "three"), ("two", "four")}
    assert states == unlinked | {("one", *names) for names in unlinked}


def test_removals_arrive_in_order() -> None:
    fs = SimulatedFiles()
    for name in ("one", "two", "three"):
        fs.close(created(fs, b"", ROOT / name))
    fs.sync_folder(ROOT)
    for name in ("one", "two", "three"):
        fs.unlink(ROOT / name)
    states = {tuple(fs.power_cut(fs.moment, Choice(seed)).names(ROOT)) for seed in SEEDS}
    assert states == {(), ("three",), ("two", "three"), ("one", "two", "three")}


def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one() -> None:
    fs = SimulatedFiles()
    replace_file(FILE, b"old", fs=fs)
    fs.sync_folder(ROOT)
    replace_file(FILE, b"new", fs=fs)
    assert after_power_cuts(fs) == {b"old", b"new"}


def test_a_crash_at_an_earlier_moment_knows_nothing_of_what_came_later() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"early")
    fs.sync(fd)
    fs.sync_folder(ROOT)
    moment = fs.moment
    fs.write(fd, b"later", 0)
    fs.unlink(FILE)
    for seed in SEEDS:
        assert fs.power_cut(moment, Choice(seed)).read_file(FILE) == b"early"
        assert fs.killed(moment, Choice(seed)).read_file(FILE) == b"early"


def test_a_process_that_dies_loses_nothing_but_what_is_not_synced_still_is_not() -> None:
    fs = SimulatedFiles()
    fs.close(created(fs, b"content"))
    next_run = fs.killed(fs.moment, Choice(0))
    assert next_run.read_file(FILE) == b"content"
    assert None in after_power_cuts(next_run)
    next_run.sync(next_run.open(FILE, os.O_RDONLY))
    next_run.sync_folder(ROOT)
    assert after_power_cuts(next_run) == {b"content"}


def test_after_a_crash_nothing_is_in_memory_until_it_is_read() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"." * 3 * PAGE_BYTES)
    assert fs.is_in_memory(fd, 3 * PAGE_BYTES, 0)
    left = fs.killed(fs.moment, Choice(1))
    again = left.open(FILE, os.O_RDONLY)
    assert not left.is_in_memory(again, 1, 0)
    left.read(again, 1, 0)
    left.read(again, 1, 2 * PAGE_BYTES)
    assert left.is_in_memory(again, PAGE_BYTES, 0)
    assert not left.is_in_memory(again, 3 * PAGE_BYTES, 0)


def test_after_a_failed_sync_another_one_does_not_help() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"")
    fs.sync(fd)
    fs.sync_folder(ROOT)
    fs.write(fd, b"content", 0)
    fs.faults.append(Fault("sync"))
    with pytest.raises(OSError, match="Input/output error"):
        fs.sync(fd)
    fs.sync(fd)
    assert len(after_power_cuts(fs)) > 1
    dropped = {fs.killed(fs.moment, Choice(seed)).read_file(FILE) for seed in SEEDS}
    assert dropped == {bytes(7), b"content"}
    fs.write(fd, b"content", 0)
    fs.sync(fd)
    assert b"content" in after_power_cuts(fs)
    assert all(state is not None and state in (b"", b"content") for state in after_power_cuts(fs))


def test_faults_strike_what_they_name_and_then_end() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"")
    fs.faults += [Fault("write", taken_bytes=3), Fault("write", errno.ENOSPC, suffix=".log", count=9)]
    assert fs.write(fd, b"0123456789", 0) == 3
    assert fs.write(fd, b"3456789", 3) == 7
    log = fs.open(ROOT / "x.log", os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        fs.write(log, b"0123456789", 0)


def test_a_choice_follows_from_its_seed() -> None:
    fs = SimulatedFiles()
    fd = created(fs, b"a" * 3 * PAGE_BYTES)
    fs.write(fd, b"b" * 3 * PAGE_BYTES, PAGE_BYTES)
    fs.sync_folder(ROOT)
    for seed in range(20):
        assert len({fs.power_cut(fs.moment, Choice(seed)).read_file(FILE) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda fs: fs.open(ROOT / "missing", os.O_RDONLY), FileNotFoundError),
        (lambda fs: fs.open(ROOT / "folder", os.O_RDONLY), IsADirectoryError),
        (lambda fs: fs.open(FILE, os.O_CREAT | os.O_EXCL), FileExistsError),
        (lambda fs: fs.read_file(ROOT / "missing"), FileNotFoundError),
        (lambda fs: fs.unlink(ROOT / "missing"), FileNotFoundError),
        (lambda fs: fs.unlink(ROOT / "folder"), IsADirectoryError),
        (lambda fs: fs.rename(ROOT / "missing", FILE), FileNotFoundError),
        (lambda fs: fs.create_folder(ROOT / "folder"), FileExistsError),
        (lambda fs: fs.names(FILE), NotADirectoryError),
        (lambda fs: fs.delete_folder(ROOT / "folder"), OSError),
    ],
)
def test_what_cannot_be_done_raises_what_the_operating_system_raises(operation, error) -> None:  # type: ignore[no-untyped-def]
    fs = SimulatedFiles()
    fs.close(created(fs, b""))
    fs.create_folder(ROOT / "folder")
    fs.close(created(fs, b"", ROOT / "folder" / "file"))
    with pytest.raises(error):
        operation(fs)
