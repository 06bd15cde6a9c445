"""Waiting for what happens by itself but is not announced: a closed socket being noticed, a file being written."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_INTERVAL_S = 0.002


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
    """Ask again and again, at short intervals, until the condition holds. Never a substitute for moving a clock."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(POLL_INTERVAL_S)
