"""A Python that lacks what it lacks on another system.

    python -m tests.support.as_on windows emberq.cli.main:main pub t hello
    python -m tests.support.as_on macos tests.support.as_on:round_trip 127.0.0.1:4150

What is taken away is missing for emberq: modules, signals, functions of `os`, abilities of the event loop. The standard
library was imported before, because that of this system does not run as another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import logging.handlers
import multiprocessing.connection
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

_USED_LATER = (concurrent.futures, logging.handlers, multiprocessing.connection, socket, ssl, subprocess, tempfile)
_USED_BY_THEM = (threading, urllib.request)

MISSING_MODULES = {
    "windows": {"uvloop", "fcntl", "grp", "pwd", "resource", "termios", "tty", "syslog", "readline", "curses"},
    "macos": set[str](),
}
MISSING_SIGNALS = {
    "windows": ("SIGHUP", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCHLD", "SIGKILL", "pthread_sigmask"),
    "macos": (),
}
_ON_LINUX_ONLY = (
    "fdatasync",
    "posix_fadvise",
    "posix_fallocate",
    "RWF_NOWAIT",
    "sched_getaffinity",
    "sched_setaffinity",
)
MISSING_IN_OS = {
    "windows": (
        *_ON_LINUX_ONLY,
        *("fork", "pread", "preadv", "pwrite", "pwritev", "fchmod", "chown", "getuid", "geteuid", "getpgid", "killpg"),
        *("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "mkfifo", "uname"),
    ),
    "macos": _ON_LINUX_ONLY,
}


class _Missing(MetaPathFinder):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def become(system: str) -> None:
    """Take away what that system does not have."""
    missing = MISSING_MODULES[system]
    for name in missing:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Missing(missing))
    for module, names in ((signal, MISSING_SIGNALS[system]), (os, MISSING_IN_OS[system])):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on; without sched_getaffinity it is this
        os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined, unused-ignore]
    if system == "windows":
        for method in (
            "add_signal_handler",
            "remove_signal_handler",
            "add_reader",
            "remove_reader",
            "create_unix_connection",
        ):
            setattr(asyncio.SelectorEventLoop, method, _not_there)
    sys.platform = {"windows": "win32", "macos": "darwin"}[system]


def _not_there(*_: object) -> NoReturn:
    raise NotImplementedError


def round_trip(words: Sequence[str]) -> int:
    """A message through the asynchronous client and one through the blocking one."""
    from emberq import client, sync

    (address,) = words

    async def go_round() -> bytes:
        async with client.Producer(address) as producer:
            await producer.publish("async", b"hello")
        async with client.Consumer("async", "c", nsqd_addresses=[address]) as consumer:
            async for message in consumer:
                message.finish()
                return message.body
        raise AssertionError

    with sync.Producer(address) as producer:
        producer.publish("sync", b"world")
    with sync.Consumer("sync", "c", nsqd_addresses=[address]) as consumer:
        message = consumer.get(timeout_s=30)
        assert message is not None
        message.finish()
    print(asyncio.run(go_round()).decode(), message.body.decode())
    return 0


def embedded(words: Sequence[str]) -> int:
    """The same through an nsqd in this process, into a journal that is synced before each confirmation."""
    del words
    from emberq.embedded import EmbeddedThread

    with EmbeddedThread(journal=True) as nsq:
        return round_trip(nsq.nsqd_tcp_addresses)


def imports(words: Sequence[str]) -> int:
    """Import these modules."""
    for module in words:
        importlib.import_module(module)
    return 0


def main(system: str, function: str, *words: str) -> int:
    become(system)
    module, _, name = function.partition(":")
    run: Any = getattr(importlib.import_module(module), name)
    return int(run(words) or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
