"""The nsqadmin that is measured: the real command in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from bench.failure import LoadFailure

_LISTENING = re.compile(r"HTTP: listening on (127\.0\.0\.1):(\d+)")
_START_LIMIT_S = 20.0
_LOOK_EVERY_S = 0.02


class Nsqadmin:
    """Started, and stopped by SIGTERM; a context manager."""

    def __init__(self, *flags: str, lookupd_address: str) -> None:
        self._flags = [f"--lookupd-http-address={lookupd_address}", "--http-address=127.0.0.1:0", *flags]
        self.address = ("", 0)  # known once it listens

    def __enter__(self) -> Self:
        with tempfile.NamedTemporaryFile(prefix="nsqadmin-", suffix=".log", delete=False) as log:
            self._log = Path(log.name)
            command = [sys.executable, "-m", "emberq.cli.main", "nsqadmin", *self._flags]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self.address = self._wait_until_it_listens()
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_until_it_listens(self) -> tuple[str, int]:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if found := _LISTENING.search(self._log.read_text(errors="replace")):
                return found[1], int(found[2])
            time.sleep(_LOOK_EVERY_S)
        raise LoadFailure(f"nsqadmin did not start:\n{self._log.read_text(errors='replace')}")

    def __exit__(self, *_raised: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        self._log.unlink()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"
