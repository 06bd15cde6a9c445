"""Builds the wheels for this Python and tries each one as a user would: `make wheel`.

    source archive  ->  compiled wheel  ->  empty environment  ->  release/smoke.py --compiled
                    ->  pure wheel      ->  empty environment  ->  release/smoke.py --pure

- The wheels are built from the source archive. What is missing there would be missing for users who build their own.
- An environment has pip and nothing else. Its PATH leads to no compiler, and pip takes wheels alone, so a dependency
  that would have to be compiled is noticed.
- A compiled wheel that mypyc or the C compiler refuses is an error, not a pure wheel under another name.

cibuildwheel does the same for other platforms and versions of Python, with the settings in pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of wheel."""

    name: str
    setting: str
    """What asks the build for it."""

    @property
    def environment(self) -> dict[str, str]:
        others = {kind.setting for kind in KINDS}
        return {name: value for name, value in os.environ.items() if name not in others} | {self.setting: "1"}


KINDS = (Kind("compiled", "EMBERQ_COMPILED"), Kind("pure", "EMBERQ_PURE"))


def main(words: Sequence[str] | None = None) -> int:
    """Build and try both kinds, or those that are named; the exit status."""
    wanted = sys.argv[1:] if words is None else list(words)
    try:
        source = build_source(DIST)
        for kind in KINDS:
            if not wanted or kind.name in wanted:
                wheel = build_wheel(source, kind, DIST)
                print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {try_wheel(wheel, kind)}", flush=True)
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(map(str, error.cmd))} ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


def build_source(folder: Path) -> Path:
    """The source archive of the tree."""
    with tempfile.TemporaryDirectory(prefix="emberq-source-") as fresh:
        build = (sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", fresh)
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return moved(Path(fresh), folder)


def build_wheel(source: Path, kind: Kind, folder: Path) -> Path:
    """A wheel of the source archive. What builds it comes from the environment of this Python, which is locked."""
    with tempfile.TemporaryDirectory(prefix="emberq-wheel-") as fresh:
        build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", fresh, str(source))
        subprocess.run((*pip(), *build), env=kind.environment, check=True)
        return moved(Path(fresh), folder)


def moved(fresh: Path, folder: Path) -> Path:
    """Where the one file that was built is now."""
    (built,) = fresh.glob("emberq-*")
    folder.mkdir(exist_ok=True)
    return Path(shutil.move(built, folder / built.name))


def try_wheel(wheel: Path, kind: Kind) -> str:
    """Install it into an empty environment without a compiler and run the smoke test there; how long pip took."""
    with tempfile.TemporaryDirectory(prefix="emberq-empty-") as folder:
        venv.create(folder, with_pip=True, symlinks=True)
        scripts = Path(folder, "bin")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = str(scripts)
        python = str(scripts / "python")
        started = time.monotonic()
        install = ("install", "--quiet", "--only-binary=:all:", str(wheel))
        subprocess.run((*pip(python), *install), env=environment, check=True)
        took_s = time.monotonic() - started
        smoke = (python, str(ROOT / "release" / "smoke.py"), f"--{kind.name}")
        subprocess.run(smoke, cwd=folder, env=environment, check=True)
    return f"installed in {took_s:.0f} s"


def pip(python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-m", "pip", "--disable-pip-version-check")


if __name__ == "__main__":
    sys.exit(main())
