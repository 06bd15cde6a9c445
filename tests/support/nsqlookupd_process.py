"""The real nsqlookupd command as a child process: for tests in which it is killed, or serves other processes.

Slower than `tests.support.lookupd_harness` and on real time, so only for tests that need a process.
"""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.support.fork_server import ForkedProcess
from tests.support.held_port import hold_ports
from tests.support.http_client import HttpClient
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.worked_time import worked_s

LISTENING = re.compile(r"\b(TCP|HTTP)S?: listening on 127\.0\.0\.1:(\d+)")


class NsqlookupdProcess:
    """A running `nsqlookupd`; a context manager that stops it by SIGTERM unless the test already ended it.

    Port 0 is any free one. One that takes another's place is given its ports, where the nsqds look for it.
    """

    def __init__(self, *flags: str, log_path: Path, tcp_port: int = 0, http_port: int = 0) -> None:
        self.tcp_port = tcp_port  # both are known once it listens
        self.http_port = http_port
        self._log_path = log_path
        self._held_ports = ExitStack()  # for a successor
        listen = [f"--tcp-address=127.0.0.1:{tcp_port}", f"--http-address=127.0.0.1:{http_port}"]
        arguments = ["nsqlookupd", *listen, "--broadcast-address=127.0.0.1", *flags]
        with log_path.open("wb") as log:
            self._process = ForkedProcess(*arguments, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        wait_until(lambda: self._is_listening or self._process.poll() is not None)
        assert self._is_listening, f"nsqlookupd did not start:\n{self.log}"
        ports = dict(LISTENING.findall(self.log))
        self.tcp_port, self.http_port = int(ports["TCP"]), int(ports["HTTP"])
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._process.poll() is None:
            assert self.terminate() == 0, self.log
        self._held_ports.close()

    @property
    def _is_listening(self) -> bool:
        return len(LISTENING.findall(self.log)) == 2

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log_path.read_text(errors="replace")

    @property
    def worked_s(self) -> float:
        """The processor time it has used."""
        return worked_s(self._process.pid)

    @property
    def tcp_address(self) -> str:
        """Where nsqds register."""
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Where consumers ask."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def http(self) -> HttpClient:
        return HttpClient(("127.0.0.1", self.http_port))

    def producers(self, topic: str) -> list[dict[str, Any]]:
        """The nsqds that a consumer of the topic would connect to; none if the topic is unknown."""
        answer = self.http.get(f"/lookup?topic={topic}")
        found: list[dict[str, Any]] = answer.json()["producers"] if answer.status == 200 else []
        return found

    def terminate(self) -> int:
        """Ask it to shut down; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """End it as a crash would; what it knew is gone."""
        self._process.kill()
        self._wait()

    def _wait(self) -> int:
        """The exit code, when it has ended."""
        exit_code = self._process.wait(PATIENCE_S)
        self._held_ports = hold_ports(self.log)
        return exit_code
