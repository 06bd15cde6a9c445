"""Folders that are made, and files that are moved between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.base.file import make_folder, move_without_replacing


def test_missing_folders_are_made_all_the_way_up(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert (tmp_path / "a").stat().st_mode & 0o007 == 0  # nobody else looks in


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_moved_file_is_in_one_place_only(tmp_path: Path) -> None:
    source, target = tmp_path / "work" / "x", tmp_path / "out" / "deep" / "x"
    source.parent.mkdir()
    source.write_bytes(b"content")
    move_without_replacing(source, target=target)
    assert target.read_bytes() == b"content"
    assert not source.exists()


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    source, target = tmp_path / "x", tmp_path / "y"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        move_without_replacing(source, target=target)
    assert (source.read_bytes(), target.read_bytes()) == (b"new", b"old")
