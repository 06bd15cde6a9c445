"""Finding and ending the processes below this one, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from emberq.base import child_process
from emberq.base.child_process import await_end, descendants, end_processes, processes_gone

PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
signal.pause()
"""
CHILD = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + CHILD
TIMEOUT_S = 30.0


@contextmanager
def family(child: str = CHILD, *, start_new_session: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child of its own."""
    command = [sys.executable, "-c", PARENT, child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=start_new_session) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        below = descendants(parent.pid)
        try:
            yield parent
        finally:
            parent.kill()
            end_processes(below, patience_s=0.1)


@pytest.fixture(params=["proc", "ps"])
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    """Both ways to learn of processes."""
    if request.param == "ps":
        monkeypatch.setattr(child_process, "_PROC", tmp_path)


@pytest.mark.usefixtures("_source")
def test_a_script_is_told_before_the_program_that_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    kill = os.kill

    def tell(pid: int, number: int) -> None:
        told.append(pid)
        kill(pid, number)

    with family() as parent:
        children = descendants(parent.pid)
        below = [process for process in descendants() if process.pid == parent.pid or process in children]
        monkeypatch.setattr(os, "kill", tell)
        end_processes(below, patience_s=TIMEOUT_S)
    assert told == [parent.pid, *(process.pid for process in children)]


@pytest.mark.usefixtures("_source")
def test_children_of_children_are_found_and_ended() -> None:
    with family() as parent:
        children = descendants(parent.pid)
        below = children + [process for process in descendants() if process.pid == parent.pid]
        assert (len(children), len(below)) == (1, 2)
        assert not processes_gone(below)
        end_processes(below, patience_s=TIMEOUT_S)
        assert processes_gone(below)
        assert parent.wait(TIMEOUT_S) == -signal.SIGTERM


def test_what_does_not_end_by_itself_is_killed() -> None:
    with family(STUBBORN) as parent:
        below = descendants(parent.pid)
        end_processes(below, patience_s=0.1)
        assert await_end(below, timeout_s=TIMEOUT_S)


def test_without_patience_processes_are_not_even_asked() -> None:
    with family() as parent:
        below = {process for process in descendants() if process.pid == parent.pid}
        end_processes(below, patience_s=0)
        assert parent.wait(TIMEOUT_S) == -signal.SIGKILL


def test_processes_in_a_session_of_their_own_can_be_left_out() -> None:
    with family() as here, family(start_new_session=True) as apart:
        pids = {process.pid for process in descendants(same_session=True)}
        assert here.pid in pids
        assert apart.pid not in pids
        assert not pids & {process.pid for process in descendants(apart.pid)}


def test_waiting_for_processes_that_stay_is_given_up() -> None:
    with family() as parent:
        assert not await_end(descendants(parent.pid), timeout_s=0.0)
