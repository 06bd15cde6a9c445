"""The command line."""

from __future__ import annotations

import argparse
import fnmatch
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.clients.queue_server import QueueProgram
from bench.clients.queue_work import NSQ_CLIENTS, QUEUE_WORKS, SERVERS, QueueSource, QueueWork
from bench.clients.work import WORKS, Work
from bench.scenario import SCENARIOS, Scenario
from bench.server import Binary, Running, Server, Source
from bench.stage import Size

_NSQD_BESIDE_PYTHON = Path(sys.executable).parent / "nsqd"

_CLIENT_WORKS: tuple[Work | QueueWork, ...] = (*WORKS, *QUEUE_WORKS)
_ALL: tuple[Scenario | Work | QueueWork, ...] = (*SCENARIOS, *_CLIENT_WORKS)

_QUICK_DIVISOR = 50
_QUICK_SECONDS = 1.0
_QUICK_CONNECTIONS = 200
_QUICK_MANY = 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, how much, and where the numbers go."""

    ours: Source
    peer: Source | None
    scenarios: tuple[Scenario, ...]
    client_works: tuple[Work | QueueWork, ...]
    queue_programs: Mapping[str, QueueProgram]
    data_parent: Path | None
    rounds: int
    consumers: int
    shuffled: bool
    json_file: Path | None
    markdown_file: Path | None
    command: str  # the command line, for the reader of the numbers
    messages: int | None
    seconds: float | None
    connections: int | None
    many: int | None
    is_quick: bool

    def queue_source(self, queue: str) -> QueueSource:
        """The servers for a queue. Clients that others made run on the peer, if there is one: it is their nsqd."""
        nsqd = self.peer if self.peer is not None and queue != NSQ_CLIENTS[0] else self.ours
        return QueueSource(nsqd=nsqd, programs=self.queue_programs, data_parent=self.data_parent)

    def size(self, work: Scenario | Work | QueueWork) -> Size:
        """What was asked for, else the work's own size, else a fraction of it for a quick look."""
        usual = work.size
        if self.is_quick:
            usual = Size(
                messages=usual.messages // _QUICK_DIVISOR,
                seconds=min(usual.seconds, _QUICK_SECONDS),
                connections=min(usual.connections, _QUICK_CONNECTIONS),
                many=min(usual.many, _QUICK_MANY),
            )
        return Size(
            messages=self.messages or usual.messages,
            seconds=self.seconds or usual.seconds,
            connections=self.connections or usual.connections,
            many=self.many or usual.many,
        )


def parse(arguments: Sequence[str]) -> Options:
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.nsqd is None and given.binary is None:
        given.binary = _NSQD_BESIDE_PYTHON
        if not given.binary.is_file():
            parser.error(f"there is no {given.binary}: name an nsqd with --binary or --nsqd")
    chosen = [name for names in given.only for name in names] if given.only else _names(clients=given.clients)
    return Options(
        ours=_ours(given),
        peer=_peer(given),
        scenarios=tuple(scenario for scenario in SCENARIOS if scenario.name in chosen),
        client_works=tuple(work for work in _CLIENT_WORKS if work.name in chosen),
        queue_programs={
            queue: QueueProgram(name=name, path=getattr(given, name.replace("-", "_")))
            for queue, name in SERVERS.items()
        },
        data_parent=given.data_parent,
        rounds=given.rounds or (3 if given.peer and not given.quick else 1),
        consumers=given.consumers,
        shuffled=given.shuffle_fin,
        json_file=given.json,
        markdown_file=given.markdown,
        command=_command(arguments),
        messages=given.messages,
        seconds=given.seconds,
        connections=given.connections,
        many=given.many,
        is_quick=given.quick,
    )


def _command(arguments: Sequence[str]) -> str:
    """As it was typed, but where a file lies on this machine tells a reader nothing: its name is enough."""
    shown = [Path(argument).name if argument.startswith("/") else argument for argument in arguments]
    return shlex.join(["python", "-m", "bench", *shown])


def _ours(given: argparse.Namespace) -> Source:
    if given.nsqd is not None:
        return Running(Server(given.nsqd, given.pid, given.http))
    return Binary(path=given.binary, flags=tuple(given.binary_flag), data_parent=given.data_parent)


def _peer(given: argparse.Namespace) -> Source | None:
    if given.peer is None:
        return None
    return Binary(path=given.peer, flags=tuple(given.peer_flag), data_parent=given.data_parent)


def _parser() -> argparse.ArgumentParser:
    works = "\n".join(f"  {work.name:<28}{work.summary}" for work in _ALL)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure an nsqd, two of them, client libraries, or queues with their clients side by side.",
        epilog=f"works, with bodies of 20 to 2000 B unless they say otherwise:\n{works}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_servers(parser)
    _add_amounts(parser)
    return parser


def _add_servers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--binary", type=_program, metavar="PATH", help=f"nsqd to start (default: {_NSQD_BESIDE_PYTHON})"
    )
    group.add_argument("--nsqd", type=_address, metavar="HOST:PORT", help="load a running nsqd instead")
    group.add_argument("--http", type=_address, metavar="HOST:PORT", help="HTTP address of the running nsqd")
    group.add_argument("--pid", type=int, help="process of the running nsqd, for its CPU and memory")
    group.add_argument("--peer", type=_program, metavar="PATH", help="another nsqd to compare with, by turns")
    group.add_argument("--binary-flag", action="append", default=[], help="further flag for our nsqd")
    group.add_argument("--peer-flag", action="append", default=[], help="further flag for the peer")
    for name in SERVERS.values():
        group.add_argument(
            f"--{name}", type=_program, metavar="PATH", help="the one to start for the works queue-* (default: on PATH)"
        )
    group.add_argument("--data-parent", type=Path, metavar="DIR", help="where the data folders are made")


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("works")
    group.add_argument("--only", nargs="+", type=_works, metavar="NAME", help="these works only; 'stall-*' for several")
    group.add_argument("--clients", action="store_true", help="the works for clients, in place of those for servers")
    group.add_argument("--quick", action="store_true", help="a short run that proves that all works")
    group.add_argument("--rounds", type=_count, help="runs of each work (default: 3 with a peer, else 1)")
    group.add_argument("--messages", type=_count, help="messages to publish, where a work counts messages")
    group.add_argument("--seconds", type=float, help="duration, where a work goes by time")
    group.add_argument("--connections", type=_count, help="connections of the works idle and churn")
    group.add_argument("--many", type=_count, help="topics, channels or consumers, where a work has many of them")
    group.add_argument("--consumers", type=_count, default=2, help="connections to one channel (default: 2)")
    group.add_argument("--shuffle-fin", action="store_true", help="FIN messages out of order")
    group.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    group.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, with its circumstances")


def _names(*, clients: bool) -> list[str]:
    return [work.name for work in (_CLIENT_WORKS if clients else SCENARIOS)]


def _works(pattern: str) -> list[str]:
    """The names that a shell pattern matches: a name matches itself."""
    found = fnmatch.filter([work.name for work in _ALL], pattern)
    if not found:
        raise argparse.ArgumentTypeError(f"there is no work {pattern!r}; --help lists them all")
    return found


def _program(text: str) -> Path:
    path = Path(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise argparse.ArgumentTypeError(f"no program at {text}")
    return path


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not (separator and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
