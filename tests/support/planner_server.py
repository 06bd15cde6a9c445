"""Spark's planners as processes that start in milliseconds.

Spark starts a Python for every streaming query, and for each kind of plan, which imports PySpark and Arrow: 0.6 s of
processor time. Like `fork_server`, a server imports them once and forks. What Spark starts is a client, which hands its
streams, environment and words to the server and ends as the forked process ends.

    Spark ──── start ────► client ──── words, environment, folder; three streams ────► server ──── forks ────► planner
      ▲                      ▲                                                                                    │
      │                      └──────────────────────────────── its status ────────────────────────────────────────┤
      └─────────────────────────────────────────── plans, by a socket ────────────────────────────────────────────┘

The client is run without the site's packages (-I -S), so it imports nothing but what is here.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PLANNERS: Final = ("pyspark.sql.streaming.python_streaming_source_runner",)
"""The modules that Spark starts again and again. It keeps daemons for the others."""
_IMPORTED: Final = ("pyspark.sql.worker.plan_data_source_read", "emberq.spark.source")
_LAUNCHER = """\
#!/bin/sh
case "$2" in
    {planners}) exec {python} -I -S {client} {address} "$@" ;;
    *) exec {usual} "$@" ;;
esac
"""


def client(address: str, words: list[str]) -> int:
    """Have the server fork a process in our place; its exit status."""
    wish = {"words": words, "environment": dict(os.environ), "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        server.sendall(json.dumps(wish).encode() + b"\n")
        return int(server.makefile().readline() or 1)


@contextmanager
def planner_server(folder: Path, *, usual: str) -> Iterator[str]:
    """A launcher of Python for Spark's workers; what is no planner is started by the `usual` one."""
    import subprocess

    address = folder / "planners"
    command = [sys.executable, "-m", "tests.support.planner_server", "serve"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        with subprocess.Popen([*command, str(listener.fileno())], pass_fds=[listener.fileno()]) as server:
            launcher = folder / "python"
            launcher.write_text(
                _LAUNCHER.format(
                    planners="|".join(PLANNERS),
                    python=shlex.quote(sys.executable),
                    client=shlex.quote(__file__),
                    address=shlex.quote(str(address)),
                    usual=shlex.quote(usual),
                )
            )
            launcher.chmod(0o755)
            yield str(launcher)
            server.terminate()


def serve(listener: socket.socket) -> None:
    """Fork for each client, until we are ended."""
    import gc
    import importlib
    import signal

    for module in _IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers tell what there is to tell
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _watch(connection)


def _watch(connection: socket.socket) -> None:
    """Fork the planner, and tell the client how it ends."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    wish = json.loads(connection.makefile("rb").readline())
    if (pid := os.fork()) == 0:
        connection.close()
        _become(wish, streams)
    for stream in streams:
        os.close(stream)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(b"%d\n" % (status if status >= 0 else 128 - status))
    os._exit(0)


def _become(wish: dict[str, Any], streams: list[int]) -> None:
    """Be as a Python that was started with these words: -m and a module."""
    import runpy
    import signal
    import warnings

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wish["environment"])
    os.chdir(wish["folder"])
    sys.argv[:] = wish["words"][1:]
    warnings.simplefilter("ignore", RuntimeWarning)  # that it runs a module which may be imported already
    runpy.run_module(wish["words"][1], run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", descriptor]:
            serve(socket.socket(fileno=int(descriptor)))
        case [address, *words]:
            sys.exit(client(address, words))
