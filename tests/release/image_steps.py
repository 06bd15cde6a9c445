"""Builds the image without a container engine: the steps of deploy/Dockerfile, run in a chroot.

    # debootstrap --variant=minbase --include=python-is-python3,python3-pip,python3-venv,libpython3-dev bookworm base
    # python -m tests.release.image_steps base

It needs root, and takes some minutes, most of which compile. `base` stands for the image that the Dockerfile begins
with; each stage gets a copy of it, with this machine's settings of pip and of the network. What was built is started
as the image's user, asked for its health as the image does it, and told to stop.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
OF_THIS_MACHINE = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


class Stage:
    """One stage of the image: a folder, and what instructions have set so far."""

    def __init__(self, folder: Path, stages: dict[str, Path]) -> None:
        self.folder = folder
        self._stages = stages
        self._environment = {name: os.environ[name] for name in os.environ if name.startswith("PIP_CERT")}
        self._environment |= {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self._work_folder = "/"
        self.user = "0:0"
        self.health_check: list[str] = []
        self.command: list[str] = []

    def do(self, instruction: str, rest: str) -> None:
        match instruction:
            case "RUN":
                subprocess.run(self.words(("/bin/sh", "-c", rest)), env=self._environment, check=True)
            case "COPY":
                self._copy(rest.split())
            case "ENV":
                for name, value in (word.split("=", 1) for word in shlex.split(rest)):
                    self._environment[name] = value.replace("$PATH", self._environment["PATH"])
            case "WORKDIR":
                self._work_folder = rest
                self.inside(rest).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = rest
            case "HEALTHCHECK":
                self.health_check = json.loads(rest[rest.index("CMD ") + 4 :])
            case "CMD":
                self.command = json.loads(rest)
            case "VOLUME" | "EXPOSE" | "STOPSIGNAL":
                pass  # for an engine
            case unknown:
                raise ValueError(f"{unknown} is an instruction that this program does not know")

    def inside(self, path: str) -> Path:
        return self.folder / Path(self._work_folder, path).relative_to("/")

    def words(self, command: Sequence[str]) -> list[str]:
        """A command line that runs the command in this stage."""
        go_there = f'cd {shlex.quote(self._work_folder)} && exec "$@"'
        return ["chroot", f"--userspec={self.user}", str(self.folder), "/bin/sh", "-c", go_there, "sh", *command]

    def start(self, command: Sequence[str], **settings: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.words(command), env=self._environment | settings)

    def _copy(self, words: list[str]) -> None:
        base = ROOT
        if words[0].startswith("--from="):
            base = self._stages[words.pop(0).partition("=")[2]]
        *sources, target = words
        for source in (base / word.lstrip("/") for word in sources):
            into = self.inside(target)
            if source.is_dir():
                shutil.copytree(
                    source, into, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
                )
            else:
                shutil.copy(source, into)


def instructions() -> Iterator[tuple[str, str]]:
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            instruction, rest = line.split(maxsplit=1)
            yield instruction, rest


def build(base: Path, folder: Path) -> Stage:
    """The last stage, built."""
    stages: dict[str, Path] = {}
    stage: Stage | None = None
    for instruction, rest in instructions():
        print(f"{instruction} {rest}", flush=True)
        if instruction == "FROM":
            name = match[1] if (match := re.search(r" AS (\w+)$", rest)) else "image"
            stages[name] = folder / name
            shutil.copytree(base, stages[name], symlinks=True, ignore=lambda at, _: ["dev"] if at == str(base) else [])
            make_like_this_machine(stages[name])
            stage = Stage(stages[name], stages)
        elif instruction != "ARG":
            assert stage is not None
            stage.do(instruction, rest)
    assert stage is not None
    return stage


def make_like_this_machine(folder: Path) -> None:
    """What an engine would bring: devices and the network. And where pip finds packages here."""
    for path in OF_THIS_MACHINE:
        if Path(path).exists():
            shutil.copy(path, folder / path.lstrip("/"))
    (folder / "dev").mkdir()
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(folder / "dev" / name, 0o020666, os.makedev(1, minor))
        (folder / "dev" / name).chmod(0o666)


def try_image(stage: Stage) -> None:
    """Start its command, ask for its health, and stop it."""
    free = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:14151")
    process = stage.start([*stage.command, *free])
    try:
        url = "http://127.0.0.1:14151/ping"
        wait_until(lambda: stage.start(stage.health_check, EMBERQ_PING=url).wait(PATIENCE_S) == 0, interval_s=1)
        assert stage.start(["/nsqd", "--version"]).wait(PATIENCE_S) == 0
        assert stage.inside("/data/nsqd.dat").stat().st_uid == int(stage.user.split(":")[0])
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()


def main() -> int:
    base = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="emberq-image-", dir=base.parent) as folder:
        stage = build(base, Path(folder))
        try_image(stage)
        installed = sum(path.lstat().st_size for path in stage.inside("/opt/emberq").rglob("*"))
        print(f"The image works. It adds {installed / 1e6:.0f} MB to its base.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
