"""What `emberq up` runs: one nsqlookupd, some nsqds and nsqadmin, started and stopped together.

One nsqd runs in the same process. Several run as processes of their own, so that each has a core; they are started by
the ordinary `nsqd` command, and what they log at or above the level asked for is passed on. They do not see the
terminal's Ctrl-C: they are stopped in good order, each flushing to disk, by the process that started them, or by
themselves if that is killed (`attended`).

Unlike a plain nsqd they journal every new topic, unless told not to: whoever tries emberq should find that what was
confirmed stays, and can be read again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import Options as AdminOptions
from emberq.base.log import LogLevel
from emberq.base.process import StartError
from emberq.cli.banner import Addresses
from emberq.cli.up_options import Options
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import Options as LookupdOptions
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import Options as NsqdOptions

START_SECONDS = 60.0
MAX_LINE_BYTES = 1024 * 1024
"""The longest line that a child may log."""
STOP_SECONDS = 60.0
"""How long an nsqd may take to bring everything to disk before we stop waiting for it."""

_LISTENERS = 2
_LISTENING = re.compile(rb"(TCP|HTTP): listening on (\S+)")
_FATAL = re.compile(rb" FATAL: (.*)")
_LEVEL = re.compile(rb" (DEBUG|INFO|WARNING|ERROR|FATAL): ")
_THRESHOLDS = {
    b"DEBUG": logging.DEBUG,
    b"INFO": logging.INFO,
    b"WARNING": logging.WARNING,
    b"ERROR": logging.ERROR,
    b"FATAL": logging.CRITICAL,
}
_log = logging.getLogger(__name__)


class StackError(Exception):
    """The stack could not be started; the text says why and what to do."""


@dataclass(slots=True)
class _Child:
    """An nsqd in a process of its own."""

    process: asyncio.subprocess.Process
    name: str
    listening: dict[bytes, str] = field(default_factory=dict)
    """Its addresses, by kind, as far as it has told them."""
    complaint: str = "it ended without a word"
    """Why it could not start."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    """It serves, or has given up."""


class Stack:
    """Runs from `start` to `stop`."""

    def __init__(self, options: Options, *, on_start: Callable[[Stack], None]) -> None:
        """`on_start` is called once everything serves."""
        self._options = options
        self._on_start = on_start
        self.failed = asyncio.Event()
        """Set when one of the daemons cannot go on."""
        self.lookupd = Addresses("", "")
        self.nsqds: list[Addresses] = []
        self.admin = ""
        """Where nsqadmin is to be found."""
        self._lookupd: Nsqlookupd | None = None
        self._admin: Nsqadmin | None = None
        self._nsqd: Nsqd | None = None
        self._children: list[_Child] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Return when everything serves; StackError, with nothing left running, if that cannot be."""
        try:
            await self._start_all()
            self._on_start(self)
        except (StartError, StackError, OSError) as failure:
            await self.stop()
            raise StackError(f"{failure}{_advice(failure)}") from failure
        except BaseException:
            await self.stop()
            raise

    async def _start_all(self) -> None:
        await self._start_lookupd()
        if self._options.nsqd == 1:
            await self._start_nsqd_here()
        else:
            for number in range(self._options.nsqd):
                await self._start_nsqd_process(number)
        await self._start_admin()

    async def stop(self) -> None:
        """Stop nsqadmin, the nsqds, then nsqlookupd."""
        self._stopping = True
        if self._admin is not None:
            await self._admin.stop()
        for child in self._children:
            if child.process.returncode is None:
                child.process.send_signal(signal.SIGTERM)
        for child in self._children:
            await self._wait_for(child)
        if self._nsqd is not None:
            await self._nsqd.stop()
        if self._lookupd is not None:
            await self._lookupd.stop()
        for watcher in self._watchers:
            watcher.cancel()  # of a child that does not stop; the others have ended
        if self._watchers:
            await asyncio.wait(self._watchers)

    def reload(self) -> None:
        """Nothing that a stack reads may change."""

    async def _start_lookupd(self) -> None:
        options = self._options
        lookupd = Nsqlookupd(
            LookupdOptions(
                tcp_address=options.address(options.lookupd_tcp_port),
                http_address=options.address(options.lookupd_http_port),
                broadcast_address=options.broadcast_address,
            )
        )
        await lookupd.start()
        self._lookupd = lookupd
        self.lookupd = Addresses(_text(lookupd.tcp_address), _text(lookupd.http_address))

    async def _start_admin(self) -> None:
        options = self._options
        admin = Nsqadmin(
            AdminOptions(
                http_address=options.address(options.admin_http_port),
                lookupd_http_address=(self.lookupd.http,),
            )
        )
        await admin.start()
        self._admin = admin
        self.admin = _text(admin.http_address)

    async def _start_nsqd_here(self) -> None:
        tcp_port, http_port = self._options.nsqd_ports(0)
        nsqd = Nsqd(
            NsqdOptions(
                data_path=str(self._folder(0)),
                tcp_address=self._options.address(tcp_port),
                http_address=self._options.address(http_port),
                broadcast_address=self._options.broadcast_address,
                lookupd_tcp_address=(self.lookupd.tcp,),
                journal=self._options.journal,
            )
        )
        await nsqd.start()
        self._nsqd = nsqd
        self.nsqds.append(Addresses(_text(nsqd.tcp_address), _text(nsqd.http_address)))

    async def _start_nsqd_process(self, number: int) -> None:
        tcp_port, http_port = self._options.nsqd_ports(number)
        name = f"nsqd-{number}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "emberq.cli.attended",
            "nsqd",
            f"--data-path={self._folder(number)}",
            f"--tcp-address={self._options.address(tcp_port)}",
            f"--http-address={self._options.address(http_port)}",
            f"--broadcast-address={self._options.broadcast_address}",
            f"--log-prefix=[{name}] ",
            f"--node-id={number}",
            f"--lookupd-tcp-address={self.lookupd.tcp}",
            f"--journal={str(self._options.journal).lower()}",
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=MAX_LINE_BYTES,
        )
        child = _Child(process, name)
        self._children.append(child)
        watcher = asyncio.create_task(self._watch(child))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        try:
            await asyncio.wait_for(child.has_begun.wait(), START_SECONDS)
        except TimeoutError:
            raise StackError(f"{name} does not start") from None
        if len(child.listening) < _LISTENERS:
            raise StackError(f"{name}: {child.complaint}")
        self.nsqds.append(Addresses(child.listening[b"TCP"], child.listening[b"HTTP"]))

    async def _watch(self, child: _Child) -> None:
        """Pass on what the child logs, learn where it listens, and notice its end."""
        assert child.process.stderr is not None  # noqa: S101 - it was asked for
        async for line in child.process.stderr:
            listening = _LISTENING.search(line)
            if listening is not None:
                child.listening[listening[1]] = listening[2].decode()
                if len(child.listening) == _LISTENERS:
                    child.has_begun.set()
            fatal = _FATAL.search(line)
            if fatal is not None and not child.has_begun.is_set():
                child.complaint = fatal[1].decode("utf-8", "replace")
            elif _is_grave_enough(line, self._options.log_level):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
        status = await child.process.wait()
        if child.has_begun.is_set() and not self._stopping:
            _log.error("%s ended with status %d", child.name, status)
            self.failed.set()
        child.has_begun.set()

    async def _wait_for(self, child: _Child) -> None:
        try:
            await asyncio.wait_for(child.process.wait(), STOP_SECONDS)
        except TimeoutError:
            _log.error("%s does not stop; leaving it to itself, process %d", child.name, child.process.pid)

    def _folder(self, number: int) -> Path:
        folder = Path(self._options.data_path) / f"nsqd-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _is_grave_enough(line: bytes, level: LogLevel) -> bool:
    found = _LEVEL.search(line)
    if found is None:
        return True  # not a log line at all: somebody should see it
    return _THRESHOLDS[found[1]] >= level.threshold


def _advice(failure: Exception) -> str:
    if "address already in use" in str(failure).lower():
        return "\nAnother nsqd or nsqlookupd may be running. Stop it, or choose other ports: emberq up --help"
    return ""


def _text(address: tuple[str, int] | str | None) -> str:
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return address or ""
