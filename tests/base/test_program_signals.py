"""A daemon's process: signals end it in good order, limits are raised."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from emberq.base.daemon import NEVER_BY_ITSELF
from emberq.base.program import SWITCH_INTERVAL_S

DAEMON = """
import asyncio, atexit, sys
from emberq.base import program as process

def say(text):
    print(text, flush=True)

async def heard(word):
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    assert line.strip() == word, line

class Daemon:
    def __init__(self):
        self.failed = asyncio.Event()

    async def start(self):
        if "refuse" in sys.argv:
            raise RuntimeError("refused")
        if "fail" in sys.argv:
            self.failed.set()
        say("started")

    def reload(self):
        say("reloaded")

    async def stop(self):
        say("stopping")
        if "slow" in sys.argv:
            await heard("go on")
        say("stopped")

@atexit.register
def last_moment():
    if "linger" in sys.argv:
        say("leaving")
        sys.stdin.readline()

try:
    sys.exit(0 if process.serve(Daemon) else 1)
except RuntimeError as error:
    sys.exit(f"could not start: {error}")
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the daemon above; none outlives its test."""
    running: list[subprocess.Popen[str]] = []

    def start_daemon(*habits: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", DAEMON, *habits]
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return running[-1]

    yield start_daemon
    for daemon in running:
        daemon.kill()
        daemon.communicate()


def says(daemon: subprocess.Popen[str]) -> str:
    assert daemon.stdout is not None
    return daemon.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_daemon_in_good_order(start: Start, number: signal.Signals) -> None:
    daemon = start()
    assert says(daemon) == "started"
    daemon.send_signal(number)
    assert daemon.communicate() == ("stopping\nstopped\n", "")
    assert daemon.returncode == 0


def test_more_signals_do_not_disturb_a_stop_under_way(start: Start) -> None:
    daemon = start("slow")
    assert says(daemon) == "started"
    daemon.send_signal(signal.SIGTERM)
    assert says(daemon) == "stopping"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        daemon.send_signal(number)
    assert daemon.communicate("go on\n") == ("stopped\n", "")
    assert daemon.returncode == 0


def test_a_signal_at_the_last_moment_does_not_spoil_the_exit_status(start: Start) -> None:
    daemon = start("linger")
    assert says(daemon) == "started"
    daemon.send_signal(signal.SIGTERM)
    assert [says(daemon) for _ in range(3)] == ["stopping", "stopped", "leaving"]
    daemon.send_signal(signal.SIGTERM)
    daemon.send_signal(signal.SIGINT)
    assert daemon.communicate("\n") == ("", "")
    assert daemon.returncode == 0


def test_a_daemon_that_fails_is_stopped_in_good_order_and_exits_1(start: Start) -> None:
    daemon = start("fail")
    assert daemon.communicate() == ("started\nstopping\nstopped\n", "")
    assert daemon.returncode == 1


def test_what_start_raises_comes_through(start: Start) -> None:
    daemon = start("refuse")
    assert daemon.communicate() == ("", "could not start: refused\n")
    assert daemon.returncode == 1


def test_a_hangup_signal_has_the_daemon_reload_and_go_on(start: Start) -> None:
    daemon = start()
    assert says(daemon) == "started"
    daemon.send_signal(signal.SIGHUP)
    assert says(daemon) == "reloaded"
    daemon.send_signal(signal.SIGTERM)
    assert daemon.communicate() == ("stopping\nstopped\n", "")
    assert daemon.returncode == 0


def test_preparing_raises_the_limit_of_open_files_and_tames_collector_and_threads() -> None:
    script = (
        "import gc, resource, sys\n"
        "from emberq.base import program as process\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "process.prepare()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), gc.get_freeze_count() > 1000, gc.get_threshold()[2],"
        " sys.getswitchinterval())\n"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert printed.split() == [str(hard), str(hard), "True", str(NEVER_BY_ITSELF), str(SWITCH_INTERVAL_S)]
