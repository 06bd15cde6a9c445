"""The tools as real commands: for what concerns exit codes, signals, standard input and output."""

from __future__ import annotations

import signal
import subprocess
from types import TracebackType
from typing import IO, Self

from tests.support.fork_server import DEVNULL, PIPE, ForkedProcess, run_forked
from tests.support.waiting import PATIENCE_S


def run_tool(tool: str, *flags: str, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a tool to its end; `typed` is its standard input."""
    return run_forked(tool, *flags, typed=typed)


class ToolProcess:
    """A tool that runs until it is told to stop. Its standard input stays open; `errors` gets its log."""

    def __init__(self, tool: str, *flags: str, errors: IO[bytes] | None = None) -> None:
        self.process = ForkedProcess(
            tool, *flags, stdin=PIPE, stdout=PIPE, stderr=DEVNULL if errors is None else errors
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.close()

    def write(self, data: bytes) -> None:
        """To its standard input, at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read_line(self) -> bytes:
        """The next line of its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self, number: signal.Signals) -> int:
        """Send the signal twice, as impatient people do; the exit code."""
        self.process.send_signal(number)
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)
