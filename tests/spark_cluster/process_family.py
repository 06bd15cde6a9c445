"""Commands as real processes, with everything that they start: none of it may outlive a test.

Spark starts a good many processes, some in groups and sessions of their own, whose parents may be gone. What they all
have is the environment of the first, so a mark in it tells whose they are.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

from tests.support.waiting import wait_until

MARK = "EMBERQ_TEST_FAMILY"
STOP_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.2
"""Looking too often would keep Spark from its work."""


wait_for = partial(wait_until, interval_s=LOOK_INTERVAL_S)


class ProcessFamily:
    """Ends with the `with` block; AssertionError if something did not end by itself when it was told to."""

    def __init__(self, folder: Path) -> None:
        """What the processes write goes to files in `folder`."""
        self._folder = folder
        self._mark = uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_raised: object) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.terminate()
                process.wait(STOP_TIMEOUT_S)
        try:
            wait_for(lambda: not self.members(), timeout_s=STOP_TIMEOUT_S)
        finally:
            for pid in self.members():
                os.kill(pid, signal.SIGKILL)

    def start(
        self, *command: str | Path, name: str, environment: Mapping[str, str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command as a terminal would: at the head of a process group. Its environment is just this."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd or self._folder,
                env={**environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(
        self, *command: str | Path, name: str, environment: Mapping[str, str], timeout_s: float, cwd: Path | None = None
    ) -> str:
        """What a command wrote that must succeed."""
        process = self.start(*command, name=name, environment=environment, cwd=cwd)
        status = process.wait(timeout_s)
        written = self.log(name).read_text()
        assert status == 0, written
        return written

    def log(self, name: str) -> Path:
        """What a process wrote, by the name it was started under."""
        return self._folder / f"{name}.log"

    def members(self) -> list[int]:
        """The processes that live."""
        wanted = f"{MARK}={self._mark}".encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if wanted in _environment(path)]


def _environment(process: Path) -> list[bytes]:
    """Empty for one that is over, or somebody else's."""
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
