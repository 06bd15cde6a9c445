"""The simulated file system and the one of the operating system do the same, as long as nothing crashes."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.file import OS_FILES, Files, read_fully, remove_folder, replace_file, write_fully
from tests.crash.simulated_files import ROOT, SimulatedFiles

NAMES = ("a", "b", "folder", "folder/a", "folder/b", "folder/deep", "folder/deep/a")
FLAGS = (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_EXCL)

Outcome = bytes | int | bool | list[str] | str | None


class Caller:
    """Makes the same random calls on any file system, and writes down what comes of them."""

    def __init__(self, fs: Files, root: Path, *, seed: int) -> None:
        self._fs = fs
        self._root = root
        self._dice = random.Random(seed)
        self.outcomes: list[tuple[str, Outcome]] = []

    def run(self, steps: int) -> None:
        calls: list[Callable[[], tuple[str, Outcome]]] = [
            self._write,
            self._write,
            self._replace,
            self._rename,
            self._unlink,
            self._folder,
            self._look,
            self._look,
            self._remove,
        ]
        for _ in range(steps):
            call = self._dice.choice(calls)
            try:
                self.outcomes.append(call())
            except OSError as error:
                self.outcomes.append((call.__name__, type(error).__name__))

    def _path(self) -> Path:
        return self._root / self._dice.choice(NAMES)

    def _write(self) -> tuple[str, Outcome]:
        path, flags = self._path(), self._dice.choice(FLAGS)
        position, size = self._dice.randrange(6000), self._dice.randrange(6000)
        fd = self._fs.open(path, flags)
        second = self._fs.duplicate(fd)
        self._fs.close(fd)
        try:
            write_fully(second, b"%06d" % position * (size // 6), position=position, fs=self._fs)
            if self._dice.random() < 0.3:
                self._fs.truncate(second, size)
            self._fs.write_parts(second, [b"one", bytearray(b"two")], 10)
            self._fs.sync(second)
            self._fs.sync_data(second)
            assert self._fs.size(second) == self._fs.file_size(path)
            return "write", read_fully(second, 4000, position=100, fs=self._fs)
        finally:
            self._fs.close(second)

    def _replace(self) -> tuple[str, Outcome]:
        path = self._path()
        replace_file(path, path.name.encode() * 100, fs=self._fs)
        self._fs.sync_folder(path.parent)
        return "replace", None

    def _rename(self) -> tuple[str, Outcome]:
        path = self._path()
        if self._fs.is_folder(path):  # a folder gets a name that is free, and files the names of files
            return "rename", None
        self._fs.rename(path, path.with_name("b"))
        return "rename", None

    def _unlink(self) -> tuple[str, Outcome]:
        self._fs.unlink(self._path(), missing_ok=self._dice.random() < 0.5)
        return "unlink", None

    def _folder(self) -> tuple[str, Outcome]:
        self._fs.create_folder(self._path())
        return "folder", None

    def _look(self) -> tuple[str, Outcome]:
        path = self._path()
        outcome: list[str] = [str(self._fs.exists(path)), str(self._fs.is_folder(path))]
        outcome += sorted(self._fs.names(path)) if self._fs.is_folder(path) else [self._fs.read_file(path).hex()]
        return "look", outcome

    def _remove(self) -> tuple[str, Outcome]:
        path = self._root / "folder"
        if self._dice.random() < 0.5:
            self._fs.delete_folder(path)
        else:
            remove_folder(path, fs=self._fs)
        return "remove", None


@pytest.mark.parametrize("seed", range(30))
def test_both_file_systems_do_the_same(tmp_path: Path, seed: int) -> None:
    real, simulated = Caller(OS_FILES, tmp_path, seed=seed), Caller(SimulatedFiles(), ROOT, seed=seed)
    real.run(80)
    simulated.run(80)
    assert simulated.outcomes == real.outcomes


def test_the_operating_system_names_its_boot() -> None:
    assert OS_FILES.boot_id() == OS_FILES.boot_id()
    assert OS_FILES.boot_id() or not Path("/proc/sys/kernel/random/boot_id").exists()


def test_a_link_in_a_removed_folder_goes_and_what_it_names_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "kept")
    remove_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
