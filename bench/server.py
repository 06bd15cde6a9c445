"""An nsqd to load: started for one run on fresh ports and an empty folder, or found running.

A started server is killed, not stopped: a clean stop would first write all it has queued to a folder that is
deleted next. Its log goes to a file in that folder, of which a failed run shows the end.
"""

from __future__ import annotations

import functools
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.connection import Address, reason
from bench.failure import LoadFailure

_START_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.02
_LOG_LINES_SHOWN = 5


@dataclass(frozen=True)
class Server:
    """One that accepts connections now. Without a pid (it runs elsewhere) CPU and memory are unknown."""

    address: Address
    pid: int | None
    http_address: Address | None = None
    data_path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Binary:
    """An nsqd that can be started; `flags` are given to it in every run."""

    path: Path
    flags: tuple[str, ...] = ()
    data_parent: Path | None = None

    def version(self) -> str:
        done = subprocess.run(
            [str(self.path), "--version"], capture_output=True, text=True, timeout=_START_LIMIT_S, check=False
        )
        return next(iter(done.stdout.splitlines()), "unknown")

    def knows(self, flags: Sequence[str]) -> bool:
        """Whether it has these flags: another emberq is to be measured as ours is, and no other nsqd can be."""
        return {flag.lstrip("-").partition("=")[0] for flag in flags} <= _flags_of(self.path)

    @contextmanager
    def serve(self, flags: Sequence[str]) -> Iterator[Server]:
        folder = Path(tempfile.mkdtemp(prefix="bench-nsqd-", dir=self.data_parent))
        try:
            with _process(self, folder, flags) as server:
                yield server
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Running:
    """A server that was running before: it keeps its own flags, and the topics we leave in it."""

    server: Server

    def version(self) -> str:
        return "running at {}:{}".format(*self.server.address)

    def knows(self, flags: Sequence[str]) -> bool:
        del flags  # it has its own
        return True

    @contextmanager
    def serve(self, flags: Sequence[str]) -> Iterator[Server]:
        del flags  # it has its own
        yield self.server


Source = Binary | Running


@functools.cache
def _flags_of(program: Path) -> frozenset[str]:
    """The names of a program's flags, as its help lists them."""
    done = subprocess.run([str(program), "--help"], capture_output=True, text=True, timeout=_START_LIMIT_S, check=False)
    return frozenset(re.findall(r"^ *--?([\w-]+)", done.stdout + done.stderr, re.MULTILINE))


@contextmanager
def _process(binary: Binary, folder: Path, flags: Sequence[str]) -> Iterator[Server]:
    with held_address() as address, held_address() as http_address:
        yield from _process_at(address, http_address, binary, folder, flags)


def _process_at(
    address: Address, http_address: Address, binary: Binary, folder: Path, flags: Sequence[str]
) -> Iterator[Server]:
    log = folder / "nsqd.log"
    data = folder / "data"
    data.mkdir()
    command = [
        str(binary.path.absolute()),
        "--tcp-address={}:{}".format(*address),
        "--http-address={}:{}".format(*http_address),
        f"--data-path={data}",
        *flags,
        *binary.flags,
    ]
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C is for us, and we end it.
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    try:
        for each in (address, http_address):
            wait_until_it_accepts(process, each)
        yield Server(address, process.pid, http_address, data)
    except (LoadFailure, OSError) as failure:
        raise LoadFailure(f"{reason(failure)}{end_of(log)}") from failure
    finally:
        process.kill()
        process.wait()


@contextmanager
def held_address() -> Iterator[Address]:
    """A free port that the system gives to no other process meanwhile: bound and not listened on.

    SO_REUSEADDR, which every nsqd sets too, lets the server listen there all the same.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        host, port = holder.getsockname()
        yield host, port


def wait_until_it_accepts(
    process: subprocess.Popen[bytes], address: Address, *, name: str = "nsqd", limit_s: float = _START_LIMIT_S
) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LoadFailure(f"{name} ended with exit code {process.returncode} before it accepted a connection")
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            time.sleep(_LOOK_EVERY_S)
        else:
            return
    raise LoadFailure(f"{name} accepted no connection within {limit_s:g} s")


def end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    return "".join(f"\n    log: {line}" for line in lines)
