"""The names of a queue's files."""

from __future__ import annotations

from pathlib import Path

from emberq.storage.disk_queue_files import QueueFiles


def test_the_names_are_those_of_nsq() -> None:
    files = QueueFiles(Path("/data"), "topic:channel")
    assert files.data(7) == Path("/data/topic:channel.diskqueue.000007.dat")
    assert files.data(1234567) == Path("/data/topic:channel.diskqueue.1234567.dat")
    assert files.bad(7) == Path("/data/topic:channel.diskqueue.000007.dat.bad")
    assert files.meta == Path("/data/topic:channel.diskqueue.meta.dat")
    assert files.due == Path("/data/topic:channel.diskqueue.due.dat")


def test_only_the_queues_own_data_files_are_found(tmp_path: Path) -> None:
    for name in (
        "t.diskqueue.000003.dat",
        "t.diskqueue.1000000.dat",
        "t.diskqueue.000001.dat.bad",
        "t.diskqueue.meta.dat",
        "t:c.diskqueue.000002.dat",
        "xt.diskqueue.000004.dat",
    ):
        (tmp_path / name).touch()
    files = QueueFiles(tmp_path, "t")
    assert files.all_existing() == [3, 1_000_000]
    assert files.existing(first=0, last=9) == [3]
    assert files.existing(first=3, last=3) == [3]
    assert files.existing(first=0, last=2) == []
    assert files.existing(first=4, last=10**15) == [1_000_000]
    assert files.existing(first=5, last=4) == []


def test_the_queues_in_a_folder_are_those_with_a_meta_file(tmp_path: Path) -> None:
    for name in ("t.diskqueue.meta.dat", "t:c.diskqueue.meta.dat", "u.diskqueue.000000.dat", "nsqd.dat"):
        (tmp_path / name).touch()
    assert sorted(QueueFiles.names_in(tmp_path)) == ["t", "t:c"]
    assert QueueFiles.names_in(tmp_path / "missing") == []
