"""emberq's commands as processes that start in milliseconds, for the tests that start hundreds of them.

Most of a command's start is importing: a quarter of a second for nsqd. A fork server imports what commands need once,
and forks for each of them. What is forked is a process like any other: it has its own id, memory, signals, standard
streams, environment and working folder, and it ends as Python ends. Tests of the start itself, or of what is imported,
start a Python of their own.

    tests ──── words, environment, folder; three streams, one socket ────► server, which forks a watcher
      ▲                                                                        │
      └────────── the process's id; its status, when it has ended ─────── watcher, which forks the process

Tests are not the parent of what was forked, so its watcher waits for it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from tests.support.waiting import PATIENCE_S

DEVNULL: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
_NSQD = ("emberq.nsqd.options", "emberq.nsqd.daemon")
_NSQLOOKUPD = ("emberq.lookupd.options", "emberq.lookupd.daemon")
_NSQADMIN = ("emberq.admin.options", "emberq.admin.daemon")
NEEDED = {"nsqd": _NSQD, "nsqlookupd": _NSQLOOKUPD, "nsqadmin": _NSQADMIN, "up": (*_NSQD, *_NSQLOOKUPD, *_NSQADMIN)}
"""What commands import while they start. Others import all that they need together with their function."""
ROOT = Path(__file__).parents[2]
NUMBER = struct.Struct("q")
"""What a watcher tells: the id of a process, and its status."""


# The tests' side.


class ForkedProcess:
    """A running command, with the methods of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        *words: str,
        stdin: int | IO[bytes] = DEVNULL,
        stdout: int | IO[bytes] = DEVNULL,
        stderr: int | IO[bytes] = DEVNULL,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        is_alone: bool = False,
    ) -> None:
        """`folder` and `environment` are the test's own, unless told. A process that is alone leads a session."""
        self.args = words
        self.returncode: int | None = None
        theirs_in, self.stdin = _stream(stdin, "wb")
        theirs_out, self.stdout = _stream(stdout, "rb")
        theirs_err, self.stderr = _stream(stderr, "rb")
        self._watcher, theirs = socket.socketpair()
        streams = (theirs_in, theirs_out, theirs_err, theirs.detach())
        try:
            wish = {
                "words": words,
                "folder": str(folder or Path.cwd()),
                "environment": dict(os.environ if environment is None else environment),
                "is_alone": is_alone,
            }
            self.pid = _Server.of_this_process().fork(wish, streams, self._watcher)
        finally:
            for stream in streams:
                os.close(stream)

    def poll(self) -> int | None:
        """The exit status, as `subprocess` has it, if the process has ended."""
        if self.returncode is None and self._has_ended(within_s=0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when the process has ended."""
        if self.returncode is None:
            if not self._has_ended(within_s=timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, *, within_s: float | None) -> bool:
        ready = select.poll()  # unlike select, for any number of open files
        ready.register(self._watcher, select.POLLIN)
        return bool(ready.poll(None if within_s is None else within_s * 1000))

    def _end(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(_told(self._watcher))
        self._watcher.close()

    def send_signal(self, number: int) -> None:
        """Send the signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close our ends of its pipes."""
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):  # what it had not read
                    stream.close()


def run_forked(*words: str, typed: bytes = b"", folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; `typed` is its standard input."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(typed)
        stdin.seek(0)
        process = ForkedProcess(*words, stdin=stdin, stdout=stdout, stderr=stderr, folder=folder)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(words, process.wait(), stdout.read(), stderr.read())


def run_forked_text(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same for what it prints as text."""
    done = run_forked(*words, folder=folder)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def _stream(wanted: int | IO[bytes], mode: str) -> tuple[int, IO[bytes] | None]:
    """The descriptor that the process gets, and the other end of a pipe."""
    if wanted == PIPE:
        reading, writing = os.pipe()
        theirs, ours = (reading, writing) if mode == "wb" else (writing, reading)
        return theirs, os.fdopen(ours, mode)
    if wanted == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(wanted if isinstance(wanted, int) else wanted.fileno()), None


class _Server:
    """The fork server of this process, started when a process is first wanted. It ends with us."""

    _running: _Server | None = None
    _lock = threading.Lock()

    @classmethod
    def of_this_process(cls) -> _Server:
        with cls._lock:
            if cls._running is None or cls._running._owner != os.getpid():
                cls._running = cls()
            return cls._running

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._requests, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", __name__, str(theirs.fileno()))
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        atexit.register(self._stop)

    def fork(self, wish: dict[str, Any], streams: Sequence[int], watcher: socket.socket) -> int:
        """The id of the new process, about which `watcher` will tell more."""
        with self._lock:  # one after the other: the server reads no further than to the end of a line
            socket.send_fds(self._requests, [b"\n"], streams)
            self._requests.sendall(json.dumps(wish).encode() + b"\n")
            return _told(watcher)

    def _stop(self) -> None:
        if self._owner == os.getpid():
            self._requests.close()
            self._process.wait(PATIENCE_S)


def _told(watcher: socket.socket) -> int:
    told = watcher.recv(NUMBER.size, socket.MSG_WAITALL)
    assert told, "the fork server has ended"
    number: int = NUMBER.unpack(told)[0]
    return number


# The server's side.


def serve(requests: socket.socket) -> int:
    """Fork until the tests have ended. What was forked returns from here as well, with the status of its command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers tell what there is to tell
    lines = requests.makefile("rb")
    while True:
        _, streams, _, _ = socket.recv_fds(requests, 1, 4)
        if not streams:
            return 0
        wish = json.loads(lines.readline())
        _prepare(wish["words"][0])
        if os.fork() == 0:
            lines.close()
            requests.close()
            return _watch(wish, streams)
        for stream in streams:
            os.close(stream)


def _prepare(command: str) -> None:
    """Import what the command needs."""
    from emberq.cli.main import SUBCOMMANDS

    (function,) = (each.function for each in SUBCOMMANDS if each.name == command)
    for module in (function.partition(":")[0], *NEEDED.get(command, ())):
        if module not in sys.modules:
            importlib.import_module(module)
            gc.freeze()  # nothing of it is looked through in each process, and copied by that


def _watch(wish: dict[str, Any], streams: list[int]) -> int:
    """Fork the process, and tell how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, teller = streams
    if (pid := os.fork()) == 0:
        os.close(teller)
        return _become(wish, standard)
    for stream in standard:
        os.close(stream)
    os.write(teller, NUMBER.pack(pid))
    os.write(teller, NUMBER.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(wish: dict[str, Any], standard: list[int]) -> int:
    """Be as a process that was started with these words; its exit status."""
    from emberq.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(standard):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # buffered by what it leads to
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if wish["is_alone"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(wish["environment"])
    os.chdir(wish["folder"])
    sys.argv[1:] = wish["words"]
    return main(wish["words"])


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
