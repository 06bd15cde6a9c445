"""The real nsqd command as a child process: for what concerns signals, exit codes, crashes and memory.

Slower than `tests.support.harness` and on real time, so only for tests that need a process.
"""

from __future__ import annotations

import itertools
import json
import re
import resource
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.support.fork_server import ForkedProcess, run_forked_text
from tests.support.held_port import hold_ports
from tests.support.raw_client import Client
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.worked_time import worked_s

LISTENING = re.compile(r"TCP: listening on 127\.0\.0\.1:(\d+)")


def _arguments(data_path: Path, flags: Sequence[str]) -> list[str]:
    listen = ["--tcp-address=127.0.0.1:0", "--http-address="]
    return ["nsqd", *listen, f"--data-path={data_path}", *flags]


def run_nsqd_to_its_end(*flags: str, data_path: Path) -> subprocess.CompletedProcess[str]:
    """Run an nsqd that is expected to refuse to start."""
    return run_forked_text(*_arguments(data_path, flags))


class NsqdProcess:
    """A running `nsqd`; a context manager that stops it by SIGTERM unless the test already ended it."""

    def __init__(self, *flags: str, data_path: Path, log_path: Path) -> None:
        self.data_path = data_path
        self._log_path = log_path
        self._clients: list[Client] = []
        with log_path.open("wb") as log:
            self._process = ForkedProcess(*_arguments(data_path, flags), stdout=log, stderr=log)
        self.tcp_port = 0  # known once it listens
        self._held_ports = ExitStack()  # for a successor

    def __enter__(self) -> Self:
        wait_until(self._is_listening_or_gone)
        assert self.tcp_port, f"nsqd did not start:\n{self.log}"
        return self

    def __exit__(self, *_raised: object) -> None:
        for client in self._clients:
            client.close()
        if self._process.poll() is None:
            assert self.terminate() == 0, self.log
        self._held_ports.close()

    def _is_listening_or_gone(self) -> bool:
        if found := LISTENING.search(self.log):
            self.tcp_port = int(found.group(1))
        return self.tcp_port != 0 or self._process.poll() is not None

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log_path.read_text(errors="replace")

    @property
    def worked_s(self) -> float:
        """The processor time it has used."""
        return worked_s(self._process.pid)

    @property
    def rss_bytes(self) -> int:
        """The memory it occupies."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def limit_open_files(self, count: int) -> None:
        """From here on it may have so many files open, sockets among them."""
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (count, count))

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

    def wait_until_known_on_disk(self, topic: str, channel: str) -> None:
        """Return when a successor would find the topic and its channel.

        nsqd answers before it has written down that they exist. One that is killed meanwhile leaves nothing of them,
        or files of which its successor knows nothing.
        """
        wait_until(lambda: self._is_in_metadata(topic, channel))

    def wait_until_recoverable(self, topic: str, channel: str) -> None:
        """Return when a successor would find the topic, its channel, and what is in the disk queues of both."""
        self.wait_until_known_on_disk(topic, channel)
        wait_until(lambda: all(self._has_positions(queue) for queue in (topic, f"{topic}:{channel}")))

    def _is_in_metadata(self, topic: str, channel: str) -> bool:
        path = self.data_path / "nsqd.dat"
        topics = json.loads(path.read_bytes())["topics"] if path.exists() else []
        channels = [each["channels"] or [] for each in topics or [] if each["name"] == topic]
        return any(each["name"] == channel for each in itertools.chain(*channels))

    def _has_positions(self, queue: str) -> bool:
        """Whether it is written down where to read in the files of a disk queue, if it has any."""
        return (
            not any(self.data_path.glob(f"{queue}.diskqueue.0*.dat"))
            or (self.data_path / f"{queue}.diskqueue.meta.dat").exists()
        )

    def terminate(self) -> int:
        """Ask it to shut down; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """End it as a crash would, with nothing flushed."""
        self._process.kill()
        self._wait()

    def hang(self) -> None:
        """Stop it where it is: its connections stay, and it answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it work again."""
        self._process.send_signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send it this signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code, when it has ended by itself."""
        return self._wait()

    def _wait(self) -> int:
        """The exit code, when it has ended."""
        try:
            exit_code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # one that does not stop must not outlive the test
            raise
        self._held_ports = hold_ports(self.log)
        return exit_code
