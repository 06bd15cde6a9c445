"""The file of channel policies: it comes back as it was, and is not guessed at."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from emberq.storage import data_folder
from emberq.storage.data_folder import ChannelPolicy, PolicyEntry
from emberq.storage.error import MetadataError

ENTRIES = [
    PolicyEntry("orders", "billing", ChannelPolicy(max_attempts=5, dead_letter_topic="orders.dead")),
    PolicyEntry("clicks", "archive", ChannelPolicy(max_attempts=1, dead_letter_topic="dead")),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / data_folder.POLICY_FILE


def test_policies_come_back(path: Path) -> None:
    data_folder.save_policies(path, ENTRIES)
    assert data_folder.load_policies(path) == ENTRIES
    data_folder.save_policies(path, [])
    assert data_folder.load_policies(path) == []
    assert [file.name for file in path.parent.iterdir()] == ["channel-policies.json"]


def test_no_file_says_nothing(path: Path) -> None:
    assert data_folder.load_policies(path) == []


def test_the_layout_is_the_one_that_is_documented(path: Path) -> None:
    data_folder.save_policies(path, ENTRIES[:1])
    assert path.read_bytes() == (
        b'{"version":1,"policies":[{"topic":"orders","channel":"billing",'
        b'"max_attempts":5,"dead_letter_topic":"orders.dead"}]}'
    )


def test_the_new_file_is_in_the_folder_for_good_when_policies_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def seen_fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").resolve())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    data_folder.save_policies(tmp_path / data_folder.POLICY_FILE, ENTRIES)
    assert synced[-1] == tmp_path


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"topic": "t", "channel": "c", "max_attempts": 5},
        {"topic": "t", "channel": 7, "max_attempts": 5, "dead_letter_topic": "d"},
        {"topic": "t", "channel": "c", "max_attempts": 0, "dead_letter_topic": "d"},
        {"topic": "t", "channel": "c", "max_attempts": True, "dead_letter_topic": "d"},
        "t",
    ],
)
def test_an_entry_that_makes_no_sense_is_told(path: Path, entry: object) -> None:
    path.write_text(json.dumps({"version": 1, "policies": [entry]}))
    with pytest.raises(MetadataError, match="failed to parse policies"):
        data_folder.load_policies(path)


@pytest.mark.parametrize("content", ["", "[]", "7", '{"version":2,"policies":[]}', '{"policies":[]}', '{"version":1}'])
def test_a_file_that_makes_no_sense_is_told(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(MetadataError, match="failed to parse policies"):
        data_folder.load_policies(path)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="no such file or directory"):
        data_folder.save_policies(tmp_path / "missing" / "file", ENTRIES)


def test_a_file_that_cannot_be_read_is_told(path: Path) -> None:
    path.mkdir()
    with pytest.raises(MetadataError, match="is a directory"):
        data_folder.load_policies(path)
