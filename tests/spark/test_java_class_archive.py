"""The archive of Spark's classes. `make test-cluster` makes a real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from emberq.spark.java import ArchiveError, Java, archive_path, with_archive, write_archive

DUMPING = """\
for argument do case $argument in -XX:SharedArchiveFile=*) echo classes > "${argument#*=}" ;; esac; done
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    return tmp_path / "the cache"


def fake_java(home: Path, script: str = 'printf "<%s>" "$@"\n', *, release: str = "17.0.15") -> Java:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "release").write_text(release)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    return Java(home, "a test")


def output_of(program: Path, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def test_without_an_archive_java_is_as_it_was(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java")
    assert with_archive(java) is java


def test_spark_starts_with_the_archive_and_nothing_else_does(tmp_path: Path, cache: Path) -> None:
    java = fake_java(tmp_path / "java", DUMPING)
    path = write_archive(java, class_list=tmp_path / "list", class_path="a.jar")
    assert path.parent == cache / "emberq"
    started = with_archive(fake_java(tmp_path / "java")).home / "bin" / "java"
    shown = output_of(started, "-cp", "a.jar", "org.apache.spark.deploy.SparkSubmit", "a b")
    assert shown.startswith(f"<-XX:SharedArchiveFile={path}>")
    assert shown.endswith("<-cp><a.jar><org.apache.spark.deploy.SparkSubmit><a b>")
    assert output_of(started, "-cp", "b.jar", "org.apache.spark.launcher.Main") == (
        "<-cp><b.jar><org.apache.spark.launcher.Main>"
    )


def test_each_java_and_each_of_its_versions_has_an_archive_of_its_own(tmp_path: Path) -> None:
    paths = {
        archive_path(fake_java(tmp_path / "one")),
        archive_path(fake_java(tmp_path / "other")),
        archive_path(fake_java(tmp_path / "one", release="17.0.16")),
    }
    assert len(paths) == 3


def test_a_java_that_cannot_is_quoted_and_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    java = fake_java(tmp_path / "java", "echo 'Unrecognized option: -Xshare:dump' >&2; exit 1\n")
    with pytest.raises(
        ArchiveError, match="bin/java cannot archive Spark's classes: Unrecognized option: -Xshare:dump"
    ):
        write_archive(java, class_list=tmp_path / "list", class_path="a.jar")
    assert list((cache / "emberq").iterdir()) == []
    assert with_archive(java) is java
