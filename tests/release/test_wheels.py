"""How wheels are built and tried; `make wheel` does it in earnest, with a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from release.wheels import KINDS, build_source, build_wheel
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, *words),
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("platform", "architecture", "libraries"),
    [
        ("linux", "x86_64", ("manylinux_x86_64", "musllinux_x86_64")),
        ("linux", "aarch64", ("manylinux_aarch64", "musllinux_aarch64")),
        ("macos", "x86_64", ("macosx_x86_64",)),
        ("macos", "arm64", ("macosx_arm64",)),
    ],
)
def test_there_is_a_wheel_for_each_python_that_is_claimed(
    platform: str, architecture: str, libraries: tuple[str, ...]
) -> None:
    versions = re.findall(r"Python :: 3\.(\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert versions == ["11", "12", "13", "14"]
    told = run(
        *("-m", "cibuildwheel", f"--platform={platform}", f"--archs={architecture}", "--print-build-identifiers", ".")
    )
    assert told.returncode == 0, told.stderr
    assert set(told.stdout.split()) == {f"cp3{version}-{library}" for version in versions for library in libraries}


def test_the_source_archive_has_what_a_build_needs_and_no_more(tmp_path: Path) -> None:
    archive = build_source(tmp_path)
    with tarfile.open(archive) as names:
        top = {Path(name).parts[1] for name in names.getnames()}
    needed = {"hatch_build.py", "pyproject.toml", "src", "README.md", "CHANGELOG.md", "LICENSE"}
    assert needed <= top <= needed | {"PKG-INFO", ".gitignore"}


def test_a_compiled_wheel_is_refused_where_it_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("EMBERQ_PURE", "1")  # what the shell asks for must not make it a pure wheel
    compiled, _ = KINDS
    with pytest.raises(subprocess.CalledProcessError):
        build_wheel(ROOT, compiled, tmp_path)
    assert "emberq cannot be compiled: there is no C compiler" in capfd.readouterr().err
    assert list(tmp_path.glob("*.whl")) == []


def test_the_smoke_test_does_not_mistake_the_source_tree_for_an_installation() -> None:
    ended = run("release/smoke.py", "--pure", PYTHONPATH=str(ROOT / "src"))
    assert ended.returncode == 1
    assert "this is not the installed emberq" in ended.stderr
