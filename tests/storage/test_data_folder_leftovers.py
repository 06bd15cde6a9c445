"""Files that were to replace others when nsqd died are removed at the next start; nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.storage.data_folder import remove_leftovers
from tests.conftest import StartNsqd

OURS = [
    "nsqd.dat.8212345678901234567.tmp",
    "channel-policies.json.17.tmp",
    "t.diskqueue.meta.dat.5.tmp",
    "t:c.diskqueue.meta.dat.0.tmp",
    "t:c.diskqueue.due.dat.12.tmp",
]
OTHERS = ["nsqd.dat", "nsqd.dat.tmp", "nsqd.dat.old.tmp", "notes.5.tmp", "17.tmp", "nsqd.dat.5.tmp.kept", "x.tmp"]


def test_only_our_own_left_over_files_are_removed(tmp_path: Path) -> None:
    for name in OURS + OTHERS:
        (tmp_path / name).write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(OTHERS)


def test_what_cannot_be_removed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / OURS[0]).mkdir()
    remove_leftovers(tmp_path)
    assert "left-over files were not removed" in caplog.text


def test_nsqd_removes_them_when_it_starts(start_nsqd: StartNsqd, data_path: Path) -> None:
    for name in OURS:
        (data_path / name).write_bytes(b"half")
    start_nsqd()
    assert list(data_path.glob("*.tmp")) == []
