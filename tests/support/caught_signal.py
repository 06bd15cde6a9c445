"""What another process does with signals: for tests that send it one, but not before it is prepared for it."""

from __future__ import annotations

import signal
from pathlib import Path


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for a signal.

    Linux tells of each process, as a number in hexadecimal, which signals it catches: bit 0 is for signal 1.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)
