"""A terminal without a screen: runs a command in it, presses keys and keeps what is drawn."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from typing import Any, Self

from tests.support.fork_server import ForkedProcess
from tests.support.waiting import PATIENCE_S

ENTER_SECOND_SCREEN = b"\x1b[?1049h"
LEAVE_SECOND_SCREEN = b"\x1b[?1049l"


class PseudoTerminal:
    """A command of emberq in a terminal of its own; a context manager that ends it if it still runs."""

    def __init__(self, *words: str, columns: int = 80, lines: int = 24) -> None:
        self._master, self._slave = pty.openpty()
        self._set_size(columns, lines)
        self.modes_before: list[Any] = termios.tcgetattr(self._slave)
        environment = os.environ | {"TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = ForkedProcess(
            *words,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            environment=environment,
            is_alone=True,
        )
        self.drawn = b""
        """All that the command wrote so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self._slave)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, *, columns: int, lines: int) -> None:
        self._set_size(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def await_drawn(self, text: str) -> None:
        """Return when `text` has been drawn after this call."""
        start = len(self.drawn)
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.drawn[start:]:
            assert time.monotonic() < deadline, f"{text!r} was not drawn: {self.drawn[start:]!r}"
            self._read(timeout_s=0.05)

    def await_end(self) -> int:
        """The exit status."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the command did not end"
            self._read(timeout_s=0.01)
        self._read(timeout_s=0.01)
        return self.process.wait()

    def _read(self, *, timeout_s: float) -> None:
        while select.select([self._master], [], [], timeout_s)[0]:
            self.drawn += os.read(self._master, 65536)
            timeout_s = 0.0
