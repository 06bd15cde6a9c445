"""CPU and memory of a process, as /proc tells them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from bench.failure import LoadFailure

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_LOOK_EVERY_S = 0.2
_QUIET_LOOKS = 2  # in a row
_QUIET_CPU_S = 0.011  # one clock tick of housekeeping in a look is still quiet
_CALM_SHARE = 0.4  # of a core; a bystander takes less
_SETTLE_LIMIT_S = 120.0
_STOP_LIMIT_S = 120.0
_STOP_LOOK_EVERY_S = 0.005


def cpu_s(pid: int) -> float:
    """User and system time of all threads, since the process began."""
    # The name in parentheses may hold spaces, so fields are counted after it; utime and stime are 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def session_cpu_s(pid: int) -> float:
    """The same of all processes in the session of one that leads it: a server may consist of several."""
    found = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if int(fields[3]) == pid:
            found += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def rss_bytes(pid: int) -> int:
    """Memory that the process holds in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def stop_s(pid: int) -> float:
    """Send SIGTERM to a child of ours, and return the seconds until it has ended."""
    began_s = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while not _has_ended(pid):
        if time.monotonic() - began_s > _STOP_LIMIT_S:
            raise LoadFailure(f"nsqd did not stop within {_STOP_LIMIT_S:g} s")
        time.sleep(_STOP_LOOK_EVERY_S)
    return time.monotonic() - began_s


def _has_ended(pid: int) -> bool:
    """A child that has ended stays in /proc as a zombie until it is waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def calm_down(pid: int) -> None:
    """Return when the process does little more than it does for a bystander."""
    _wait_for_looks(pid, below_s=_CALM_SHARE * _LOOK_EVERY_S)


def settle(pid: int) -> None:
    """Return when the process has nothing more to do.

    A server may answer before its work is done (messages still move from topic to channel, garbage is still
    collected); that work belongs to what is measured, and must not weigh on what is measured next.
    """
    _wait_for_looks(pid, below_s=_QUIET_CPU_S)


def _wait_for_looks(pid: int, *, below_s: float) -> None:
    """Until it spent less CPU than that between two looks, several times in a row."""
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    quiet_looks, before = 0, cpu_s(pid)
    while quiet_looks < _QUIET_LOOKS:
        if time.monotonic() > deadline:
            raise LoadFailure(f"nsqd is still busy {_SETTLE_LIMIT_S:g} s after its last message")
        time.sleep(_LOOK_EVERY_S)
        now = cpu_s(pid)
        quiet_looks = quiet_looks + 1 if now - before < below_s else 0
        before = now
