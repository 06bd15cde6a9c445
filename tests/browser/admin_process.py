"""The real nsqadmin command as a child process."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Self

from tests.support.fork_server import ForkedProcess
from tests.support.waiting import PATIENCE_S, wait_until

LISTENING = re.compile(r"HTTP: listening on (127\.0\.0\.1:\d+)")
AT_SHORT_INTERVALS = ("--live-interval=200ms", "--history-interval=1s")
"""So that tests need not wait for figures."""


class AdminProcess:
    """A running `nsqadmin`; a context manager that stops it by SIGTERM."""

    def __init__(self, *flags: str, log_path: Path) -> None:
        self._log_path = log_path
        self._address = ""  # known once it listens
        arguments = ["nsqadmin", "--http-address=127.0.0.1:0", *AT_SHORT_INTERVALS, *flags]
        with log_path.open("wb") as log:
            self._process = ForkedProcess(*arguments, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        wait_until(self._is_listening_or_gone)
        assert self._address, f"nsqadmin did not start:\n{self.log}"
        return self

    def __exit__(self, *_raised: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self.log

    def _is_listening_or_gone(self) -> bool:
        if found := LISTENING.search(self.log):
            self._address = found.group(1)
        return bool(self._address) or self._process.poll() is not None

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log_path.read_text(errors="replace")

    @property
    def url(self) -> str:
        return f"http://{self._address}"
