"""The real nsqd command as a child process: for what concerns signals, exit codes, crashes and memory.

Slower than `tests.harness` and on real time, so only for tests that need a process.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.raw_client import Client
from tests.waiting import wait_until

COMMAND = (sys.executable, "-m", "emberq.cli.nsqd")
LISTENING = re.compile(r"TCP: listening on 127\.0\.0\.1:(\d+)")
START_TIMEOUT_S = 20.0
"""Generous, for a machine that is busy with other tests."""

STOP_TIMEOUT_S = 20.0


def _arguments(data_path: Path, flags: Sequence[str]) -> list[str]:
    listen = ["--tcp-address=127.0.0.1:0", "--http-address="]
    return [*COMMAND, *listen, f"--data-path={data_path}", *flags]


def run_nsqd_to_its_end(*flags: str, data_path: Path) -> subprocess.CompletedProcess[str]:
    """Run an nsqd that is expected to refuse to start."""
    arguments = _arguments(data_path, flags)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)


class NsqdProcess:
    """A running `nsqd`; a context manager that stops it by SIGTERM unless the test already ended it."""

    def __init__(self, *flags: str, data_path: Path, log_path: Path) -> None:
        self.data_path = data_path
        self._log_path = log_path
        self._clients: list[Client] = []
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(_arguments(data_path, flags), stdout=log, stderr=log)
        self.tcp_port = 0  # known once it listens

    def __enter__(self) -> Self:
        wait_until(self._is_listening_or_gone, timeout_s=START_TIMEOUT_S)
        assert self.tcp_port, f"nsqd did not start:\n{self.log}"
        return self

    def __exit__(self, *_raised: object) -> None:
        for client in self._clients:
            client.close()
        if self._process.poll() is None:
            assert self.terminate() == 0, self.log

    def _is_listening_or_gone(self) -> bool:
        if found := LISTENING.search(self.log):
            self.tcp_port = int(found.group(1))
        return self.tcp_port != 0 or self._process.poll() is not None

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log_path.read_text(errors="replace")

    @property
    def rss_bytes(self) -> int:
        """The memory it occupies."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def connect(self, **options: Any) -> Client:
        """A new connection, closed with the process at the latest."""
        client = Client(("127.0.0.1", self.tcp_port), **options)
        self._clients.append(client)
        return client

    def consumer(self, topic: str, channel: str, *, rdy: int, **identify: Any) -> Client:
        """A new connection that subscribed, ready for `rdy` messages."""
        client = self.connect()
        if identify:
            client.identify(**identify)
        client.sub(topic, channel)
        client.rdy(rdy)
        return client

    def terminate(self) -> int:
        """Ask it to shut down; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End it as a crash would, with nothing flushed."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
