"""Servers of other queues, started for one run as an nsqd is: on fresh ports, with an empty folder, and then killed.

How durable a confirmed message is depends on how a server is set up, so there is a way to start each for each
`Durability` that it can give. A server is found by its path, or by its name on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.clients.job import Durability
from bench.connection import Address, reason
from bench.failure import LoadFailure
from bench.server import Server, end_of, held_address, wait_until_it_accepts

_ANSWER_LIMIT_S = 15.0
_START_LIMIT_S = 60.0  # RabbitMQ takes ten seconds on a machine that does nothing else
_APPEND_FSYNC = {Durability.SYNCED: "always", Durability.SECOND: "everysec", Durability.WRITTEN: "no"}
_DEBIAN_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The one on PATH is a wrapper, which changes to the user rabbitmq and to that user's folders."""


class Unavailable(LoadFailure):
    """What is to be measured is not on this machine; the text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a server is started."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QueueProgram:
    """A server that can be started. Without a path it is looked for on PATH."""

    name: str
    path: Path | None = None

    def found(self) -> Path:
        if self.path is not None:
            return self.path
        if self.name == "rabbitmq-server" and _DEBIAN_RABBITMQ.is_file():
            return _DEBIAN_RABBITMQ
        if found := shutil.which(self.name):
            return Path(found)
        raise Unavailable(f"there is no {self.name} on PATH")

    def version(self) -> str:
        """Its first line about itself. RabbitMQ would start Erlang for that; the folder beside it has the version."""
        found = self.found()
        if self.name == "rabbitmq-server":
            return next((path.name for path in found.parent.parent.glob("lib/rabbitmq_server-*")), "rabbitmq_server")
        words = [str(found), "--version"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=False)
        return next(iter(done.stdout.splitlines()), "unknown")

    @contextmanager
    def serve(self, durability: Durability, *, data_parent: Path | None = None) -> Iterator[Server]:
        path = self.found()
        folder = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-", dir=data_parent))
        try:
            with held_address() as address:
                if self.name == "rabbitmq-server":
                    with _rabbitmq(path, folder, address) as launch:
                        yield from _run(self.name, launch, folder, address)
                else:
                    launch = (_redis if self.name == "redis-server" else _nats)(path, folder, address, durability)
                    yield from _run(self.name, launch, folder, address)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _redis(path: Path, folder: Path, address: Address, durability: Durability) -> Launch:
    host, port = address
    settings = {"bind": host, "port": str(port), "dir": str(folder), "save": "", "daemonize": "no"}
    if durability in _APPEND_FSYNC:
        settings |= {"appendonly": "yes", "appendfsync": _APPEND_FSYNC[durability]}
    return Launch(words=(str(path), *(word for name, value in settings.items() for word in (f"--{name}", value))))


def _nats(path: Path, folder: Path, address: Address, durability: Durability) -> Launch:
    """Where a stream is kept is a property of the stream: see `nats_driver`."""
    del durability
    host, port = address
    return Launch(words=(str(path), "--jetstream", "--store_dir", str(folder), "--addr", host, "--port", str(port)))


@contextmanager
def _rabbitmq(path: Path, folder: Path, address: Address) -> Iterator[Launch]:
    """Of what kind a queue is, is said where it is declared: see `rabbitmq_driver`.

    Erlang nodes find each other through epmd, which the first of them would leave running. So it gets one of our own.
    """
    host, port = address
    (folder / "plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {host}:{port}\n")
    with held_address() as (_, names_port), held_address() as (_, peers_port):
        environment = {
            "HOME": str(folder),  # for the cookie
            "ERL_EPMD_ADDRESS": host,
            "ERL_EPMD_PORT": str(names_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_DIST_PORT": str(peers_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        words = ("epmd", "-address", host, "-port", str(names_port))
        names = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            yield Launch(words=(str(path),), environment=environment)
        finally:
            names.kill()
            names.wait()


def _run(name: str, launch: Launch, folder: Path, address: Address) -> Iterator[Server]:
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=os.environ | launch.environment,
            start_new_session=True,
        )
    try:
        wait_until_it_accepts(process, address, name=name, limit_s=_START_LIMIT_S)
        yield Server(address, process.pid, data_path=folder)
    except (LoadFailure, OSError) as failure:
        raise LoadFailure(f"{reason(failure)}{end_of(log)}") from failure
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: the command of RabbitMQ is a script."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
