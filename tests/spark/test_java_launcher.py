from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from emberq.spark.java import install_launcher


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_launcher_can_be_run_and_is_written_once(cache: Path) -> None:
    launcher = install_launcher("greet", "#!/bin/sh\necho hello $1\n")
    assert launcher.is_relative_to(cache)
    assert launcher.parts[-2:] == ("bin", "greet")
    written = launcher.stat().st_mtime_ns
    assert install_launcher("greet", "#!/bin/sh\necho hello $1\n") == launcher
    assert launcher.stat().st_mtime_ns == written
    assert subprocess.run([launcher, "you"], capture_output=True, text=True, check=True).stdout == "hello you\n"


def test_another_script_of_the_same_name_leaves_the_first_alone() -> None:
    first = install_launcher("greet", "#!/bin/sh\necho 1\n")
    second = install_launcher("greet", "#!/bin/sh\necho 2\n")
    assert first.read_text() == "#!/bin/sh\necho 1\n"
    assert second != first


def test_without_a_cache_folder_it_lies_with_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # nothing can be made below it
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert install_launcher("greet", "#!/bin/sh\n").is_relative_to(tmp_path)


def test_a_folder_that_cannot_be_had_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(OSError, match="XDG_CACHE_HOME"):
        install_launcher("greet", "#!/bin/sh\n")
