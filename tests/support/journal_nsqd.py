"""Real nsqds with journals, and what tests ask them over HTTP.

`JournalNsqdThread` runs in a thread of the tests and starts in milliseconds. `JournalNsqdProcess` is a process, which
can be killed and comes back at the same address with the same data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from emberq.embedded import EmbeddedThread
from tests.support.fork_server import ForkedProcess
from tests.support.held_port import hold_port
from tests.support.waiting import wait_until

TRIMS_OFTEN = """
import sys
from emberq.broker import journaled_topic
from emberq.cli.main import main
journaled_topic.TRIM_INTERVAL_NS //= 100
sys.exit(main(sys.argv[1:]))
"""
"""The same where a test is about retention: it need not wait ten seconds for it."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


class JournalNsqd:
    """Listens on this machine, at these ports."""

    tcp_port: int
    http_port: int
    data_path: Path

    @property
    def http(self) -> str:
        """The address of its HTTP API."""
        return f"127.0.0.1:{self.http_port}"

    def get_text(self, path: str, **query: str | int) -> str:
        with urllib.request.urlopen(self._url(path, query), timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON of an answer."""
        return json.loads(self.get_text(path, **query))

    def post(self, path: str, body: bytes = b"", **query: str | int) -> None:
        request = urllib.request.Request(self._url(path, query), data=body, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def _url(self, path: str, query: dict[str, str | int]) -> str:
        return f"http://{self.http}{path}?{urlencode(query)}"

    def publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish lines, which become one batch of the journal."""
        self.post("/mpub", b"\n".join(bodies), topic=topic)


class JournalNsqdThread(JournalNsqd):
    """Running within `with`."""

    def __init__(self, folder: Path) -> None:
        self._running = EmbeddedThread(with_lookupd=False, data_path=folder, journal=True)
        self.data_path = folder / "nsqd-0"

    def __enter__(self) -> Self:
        self._running.__enter__()
        (tcp,), (http,) = self._running.nsqd_tcp_addresses, self._running.nsqd_http_addresses
        self.tcp_port, self.http_port = (int(address.rpartition(":")[2]) for address in (tcp, http))
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.__exit__()


class JournalNsqdProcess(JournalNsqd):
    """Running from `with` on, until `kill`; `start` brings it back."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags or ("--journal",)
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._ports = ExitStack()  # held while it is down, too
        self.tcp_port, self.http_port = (self._ports.enter_context(hold_port()) for _ in range(2))
        self.data_path = folder / "data"

    def __enter__(self) -> Self:
        self.data_path.mkdir(parents=True)
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._process is not None:
            self.terminate()
        self._ports.close()

    def start(self) -> None:
        """Start it and wait until it answers."""
        listen = [f"--tcp-address=127.0.0.1:{self.tcp_port}", f"--http-address={self.http}"]
        flags = [*listen, "--broadcast-address=127.0.0.1", f"--data-path={self.data_path}", *self._flags]
        with (self._folder / "log").open("ab") as log:
            if any(flag.startswith("--journal-retention") for flag in flags):
                command = [sys.executable, "-c", TRIMS_OFTEN, "nsqd", *flags]
                self._process = subprocess.Popen(command, stdout=log, stderr=log)
            else:
                self._process = ForkedProcess("nsqd", *flags, stdout=log, stderr=log)
        wait_until(self._answers, timeout_s=START_TIMEOUT_S)

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def terminate(self) -> None:
        """End it as an operator would, so that it saves what is in memory alone."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def _answers(self) -> bool:
        try:
            return self.get_text("/ping") == "OK"
        except OSError:
            return False
