"""`emberq up`: a whole NSQ on this machine, with one nsqlookupd, some nsqds and nsqadmin, started and stopped together.

One nsqd runs in the same process. Several run as processes of their own, so that each has a core. The ordinary `nsqd`
command starts them, and their log lines at or above the level asked for are passed on. The terminal's Ctrl-C does not
reach them: the process that started them stops them in good order, each flushing to disk. If that process is killed,
they stop by themselves (`attended`).

Unlike a plain nsqd they journal every new topic, unless told not to: a user who tries emberq should find that confirmed
messages stay, and can be read again.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.base import program
from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.flag import LOG_LEVEL, SettingError
from emberq.base.log import LogFormat, LogLevel
from emberq.base.program import Finished, StartError, read_options
from emberq.base.settings import GENERAL, Group, SettingTable
from emberq.base.text import quoted
from emberq.cli.main import ended_at_once

if TYPE_CHECKING:
    import asyncio

    from emberq.admin.daemon import Nsqadmin
    from emberq.lookupd.daemon import Nsqlookupd
    from emberq.nsqd.daemon import Nsqd

# Settings.

DAEMONS = ("emberq.lookupd.daemon", "emberq.nsqd.daemon", "emberq.admin.daemon")
"""What is started. They are imported late, so that --help is answered quickly."""
MAX_NSQDS = 32
SECOND_NSQD_SHIFT = 100
NEXT_NSQD_SHIFT = 10
"""The first nsqd has 4150 and 4151, the second 4250 and 4251, the third 4260 and 4261: none has nsqlookupd's."""

_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - only if the user asks for it
_GENERAL = Group(GENERAL)
_STACK = Group("What to start")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What to start, and where."""

    log_level: LogLevel = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_LEVEL, LogLevel.WARN, "least grave log lines to show: debug, info, warn, error or fatal"
    )
    log_prefix: str = _GENERAL.text("[emberq] ", "start of every log line")
    nsqd: int = _STACK.integer(
        1, "how many nsqds; several run as processes of their own", at_least=1, at_most=MAX_NSQDS
    )
    host: str = _STACK.text(
        "127.0.0.1", "address to listen on; only a loopback address keeps others out", placeholder="address"
    )
    data_path: str = _STACK.text(
        "emberq-data", "directory for messages; made if it is not there", placeholder="directory"
    )
    no_journal: bool = _STACK.boolean(
        "keep new topics as NSQ does: in memory and, beyond that, in disk queues; without it they are journaled",
        default=False,
    )
    nsqd_tcp_port: int = _STACK.integer(4150, "TCP port of nsqd; 0 means a free one", at_least=0, at_most=MAX_PORT)
    nsqd_http_port: int = _STACK.integer(4151, "HTTP port of nsqd; 0 means a free one", at_least=0, at_most=MAX_PORT)
    lookupd_tcp_port: int = _STACK.integer(
        4160, "TCP port of nsqlookupd; 0 means a free one", at_least=0, at_most=MAX_PORT
    )
    lookupd_http_port: int = _STACK.integer(
        4161, "HTTP port of nsqlookupd; 0 means a free one", at_least=0, at_most=MAX_PORT
    )

    admin_http_port: int = _STACK.integer(
        4171, "HTTP port of nsqadmin; 0 means a free one", at_least=0, at_most=MAX_PORT
    )

    @property
    def log_format(self) -> LogFormat:
        """Log lines are shown on a terminal, so they are text."""
        return LogFormat.TEXT

    @property
    def journal(self) -> bool:
        """Whether new topics are journaled."""
        return not self.no_journal

    def address(self, port: int) -> str:
        """The address to listen on, with this port."""
        return str(TcpAddress(self.host, port))

    @property
    def broadcast_address(self) -> str:
        """The address that clients are told to connect to."""
        return socket.gethostname() if self.host in _EVERY_INTERFACE else self.host

    def nsqd_ports(self, number: int) -> tuple[int, int]:
        """TCP and HTTP port of nsqd `number`, counted from 0."""
        shift = SECOND_NSQD_SHIFT + (number - 1) * NEXT_NSQD_SHIFT if number else 0
        tcp_port, http_port = self.nsqd_tcp_port, self.nsqd_http_port
        return (tcp_port + shift if tcp_port else 0), (http_port + shift if http_port else 0)


SETTINGS = SettingTable("emberq up", options_class=UpOptions, command=())


# The command.


@dataclass(frozen=True, slots=True)
class DaemonAddresses:
    """The addresses of a daemon, each as host:port."""

    tcp: str
    http: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stack until it is told to stop; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    try:
        options = read_options(SETTINGS, UpOptions, words)
        SETTINGS.check_ranges(options)
        surplus = SETTINGS.load(words).arguments
        if surplus:  # flags behind it would be ignored without a word
            print(f"emberq up: it takes flags alone, and not {quoted(surplus[0])}", file=sys.stderr)
            return 2
    except Finished as finished:
        return finished.status
    except SettingError as wrong:
        print(f"emberq up: {wrong}", file=sys.stderr)
        return 1
    with ended_at_once():
        for module in DAEMONS:
            import_module(module)
    program.prepare()
    try:
        stopped_by_signal = program.serve(lambda: Stack(options))
    except StackError as failure:
        print(f"emberq up: {failure}", file=sys.stderr)
        return 1
    print(f"Stopped. Messages are in {options.data_path}." if stopped_by_signal else "Stopped after a failure.")
    return 0 if stopped_by_signal else 1


# The stack.

START_SECONDS = 60.0
MAX_LINE_BYTES = 1024 * 1024
"""The longest line that a child may log."""
STOP_SECONDS = 60.0
"""How long an nsqd may take to write everything to disk before it is left alone."""

_LISTENERS = 2
_LISTENING = re.compile(rb"(TCP|HTTP): listening on (\S+)")
_FATAL = re.compile(rb" FATAL: (.*)")
_LEVEL = re.compile(rb" (DEBUG|INFO|WARNING|ERROR|FATAL): ")
_log = logging.getLogger(__name__)


class StackError(Exception):
    """The stack could not be started; the text says why and what to do."""


@dataclass(slots=True)
class _Child:
    """An nsqd in a process of its own."""

    process: asyncio.subprocess.Process
    name: str
    has_begun: asyncio.Event
    """Set when it serves, or has ended."""
    listening: dict[bytes, str] = field(default_factory=dict)
    """Its addresses, by kind, as it has logged them."""
    complaint: str = "it ended without a word"
    """Why it could not start."""


class Stack:
    """The daemons of `emberq up`, from `start` to `stop`."""

    def __init__(self, options: UpOptions) -> None:
        import asyncio

        self._options = options
        self.failed = asyncio.Event()
        """Set when a daemon cannot go on."""
        self.lookupd = DaemonAddresses("", "")
        self.nsqds: list[DaemonAddresses] = []
        self.admin = ""
        """The address of nsqadmin."""
        self._lookupd: Nsqlookupd | None = None
        self._admin: Nsqadmin | None = None
        self._nsqd: Nsqd | None = None
        self._children: list[_Child] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Return when everything serves. If that fails, StackError, with nothing left running."""
        try:
            await self._start_all()
            print(self._banner(), flush=True)
        except (StartError, StackError, OSError) as failure:
            await self.stop()
            raise StackError(f"{failure}{_advice(failure)}") from failure
        except BaseException:
            await self.stop()
            raise

    def _banner(self) -> str:
        """The addresses of everything, and what to try."""
        rows = [("nsqlookupd", self.lookupd), *(("nsqd", nsqd) for nsqd in self.nsqds)]
        nsqd = self.nsqds[0].http
        return "\n".join(
            [
                f"emberq is up. Ctrl-C stops it; messages are kept in {self._options.data_path}.",
                "",
                *(f"  {name:<11} tcp {where.tcp:<16} http://{where.http}" for name, where in rows),
                f"  {'nsqadmin':<11} {'':<20} http://{self.admin}",
                "",
                "Try, in another terminal:",
                f"  curl -d 'hello' 'http://{nsqd}/pub?topic=greetings'",
                f"  curl 'http://{nsqd}/stats'",
                f"  curl 'http://{self.lookupd.http}/lookup?topic=greetings'",
            ]
        )

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
        with _unheard("emberq.lookupd.session"):  # for nsqlookupd an nsqd that goes is an error
            await self._stop_all()

    async def _stop_all(self) -> None:
        import asyncio

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
            watcher.cancel()  # of children that do not stop; the other watchers have ended
        if self._watchers:
            await asyncio.wait(self._watchers)

    def reload(self) -> None:
        """Nothing to do: a stack has no settings that can be reloaded."""

    async def _start_lookupd(self) -> None:
        from emberq.lookupd.daemon import Nsqlookupd
        from emberq.lookupd.options import LookupdOptions

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
        self.lookupd = DaemonAddresses(_text(lookupd.tcp_address), _text(lookupd.http_address))

    async def _start_admin(self) -> None:
        from emberq.admin.daemon import Nsqadmin
        from emberq.admin.options import AdminOptions

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
        from emberq.nsqd.daemon import Nsqd
        from emberq.nsqd.options import NsqdOptions

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
        self.nsqds.append(DaemonAddresses(_text(nsqd.tcp_address), _text(nsqd.http_address)))

    async def _start_nsqd_process(self, number: int) -> None:
        import asyncio

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
        child = _Child(process, name, asyncio.Event())
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
        self.nsqds.append(DaemonAddresses(child.listening[b"TCP"], child.listening[b"HTTP"]))

    async def _watch(self, child: _Child) -> None:
        """Pass on what the child logs, learn where it listens, and wait for its end."""
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
        import asyncio

        try:
            await asyncio.wait_for(child.process.wait(), STOP_SECONDS)
        except TimeoutError:
            _log.error("%s does not stop; leaving it to itself, process %d", child.name, child.process.pid)

    def _folder(self, number: int) -> Path:
        folder = Path(self._options.data_path) / f"nsqd-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@contextmanager
def _unheard(logger_name: str) -> Iterator[None]:
    """Show nothing of what this logger has to tell."""
    logger = logging.getLogger(logger_name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _is_grave_enough(line: bytes, level: LogLevel) -> bool:
    found = _LEVEL.search(line)
    if found is None:
        return True  # not a log line, so shown in any case
    return logging.getLevelNamesMapping()[found[1].decode()] >= level.threshold


def _advice(failure: Exception) -> str:
    if "address already in use" in str(failure).lower():
        return "\nAnother nsqd or nsqlookupd may be running. Stop it, or choose other ports: emberq up --help"
    return ""


def _text(address: tuple[str, int] | str | None) -> str:
    return str(TcpAddress(*address)) if isinstance(address, tuple) else address or ""
