"""Finding and ending the processes that this one has started, and those that they have started.

Linux lists processes in /proc; elsewhere `ps` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOOK_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 1.0
"""How long the system may take to end processes that were killed."""
_PROC = Path("/proc")
_STARTED_FIELD = 19
"""Of those behind the name in /proc/PID/stat."""
_ZOMBIE = "Z"


class Process(NamedTuple):
    """One process. Its pid may be given to another process later, but not with the same time of start."""

    pid: int
    started: str


def descendants(pid: int | None = None, *, same_session: bool = False) -> list[Process]:
    """The processes below `pid` (this one by default) that run now, each behind its parent.

    `same_session`: only those that were not given a session of their own, nor one of their parents.
    """
    root = os.getpid() if pid is None else pid
    children: dict[int, list[Process]] = {}
    for process, parent_pid in _all_processes():
        children.setdefault(parent_pid, []).append(process)
    session = os.getsid(root) if same_session else None
    found: list[Process] = []
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        if session is None or _session_of(process.pid) == session:
            found.append(process)
            waiting += children.get(process.pid, ())
    return found


def end_processes(processes: Collection[Process], *, patience_s: float) -> None:
    """Ask processes to end, and kill those that have not ended after `patience_s`. Returns when all are gone.

    Without patience they are killed at once. They are told in the order given: a script that is told before the program
    that it waits for has nothing to say about its end.
    """
    if patience_s:
        _signal(processes, signal.SIGTERM)
    if not await_end(processes, timeout_s=patience_s):
        _signal(processes, signal.SIGKILL)
        await_end(processes, timeout_s=KILL_TIMEOUT_S)


def await_end(processes: Collection[Process], *, timeout_s: float) -> bool:
    """Whether all processes are gone within that time."""
    deadline_s = time.monotonic() + timeout_s
    while not processes_gone(processes):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_INTERVAL_S)
    return True


def processes_gone(processes: Collection[Process]) -> bool:
    """Whether none of them runs any more."""
    return not processes or frozenset(processes).isdisjoint(process for process, _parent in _all_processes())


def _signal(processes: Collection[Process], number: signal.Signals) -> None:
    running = frozenset(process for process, _parent in _all_processes())
    for process in processes:
        if process in running:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _all_processes() -> Iterator[tuple[Process, int]]:
    """Every process that runs, with its parent's pid. One that has ended but is not yet waited for does not count."""
    if not _PROC.joinpath("self/stat").exists():
        yield from _processes_by_ps()
        return
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = folder.joinpath("stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != _ZOMBIE:
            yield Process(int(folder.name), fields[_STARTED_FIELD]), int(fields[1])


def _processes_by_ps() -> Iterator[tuple[Process, int]]:
    command = ["ps", "-axo", "pid=,ppid=,stat=,lstart="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - nothing of it is given
    for line in listed.stdout.splitlines():
        pid, parent_pid, state, started = line.split(maxsplit=3)
        if not state.startswith(_ZOMBIE):
            yield Process(int(pid), started), int(parent_pid)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
