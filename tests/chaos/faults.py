"""The faults of a chaos run: each is done to one nsqd under load, lasts a few seconds and is undone again.

A fault is a coroutine of a `Site`. What it may do to the messages is not said here but by the promises that `checking`
holds against the history: a fault only writes down when it began and when it was undone, and each kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.history import History, Kind
from tests.chaos.load import Stream
from tests.chaos.node import ChaosNode, StartRefusedError, remount
from tests.chaos.proxy import FAIR, Weather
from tests.chaos.shim import OsFaults
from tests.support.nsqlookupd_process import NsqlookupdProcess

HOUR_NS = 3600 * 1_000_000_000
BALLAST = "ballast.tmp"
STALLED_BUFFER_BYTES = 4096
MAGIC = b"  V2"


class FlappingLookupd:
    """The nsqlookupd of a run, which is killed and comes back at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = 0
        self.process = self._started(tcp_port=0, http_port=0)

    def _started(self, *, tcp_port: int, http_port: int) -> NsqlookupdProcess:
        self._lives += 1
        log_path = self._folder / f"nsqlookupd-{self._lives}.log"
        process = NsqlookupdProcess(log_path=log_path, tcp_port=tcp_port, http_port=http_port)
        return process.__enter__()

    def kill(self) -> None:
        self.process.kill()

    def start_again(self) -> None:
        gone = self.process
        self.process = self._started(tcp_port=gone.tcp_port, http_port=gone.http_port)
        gone.__exit__()

    def close(self) -> None:
        self.process.__exit__()


@dataclass
class Site:
    """What a fault is done to."""

    node: ChaosNode
    streams: list[Stream]
    """Of that nsqd."""
    history: History
    dice: random.Random
    lookupd: FlappingLookupd | None
    longest_s: float
    """Of what a fault lasts."""

    async def last(self, shortest_s: float = 0.3) -> None:
        """Let the fault last for a while."""
        await asyncio.sleep(self.dice.uniform(shortest_s, max(shortest_s, self.longest_s)))

    async def restart(self) -> None:
        """Kill it or stop it, and start it again."""
        await (self.node.kill() if self.dice.random() < 0.5 else self.node.stop())
        await self.node.start()

    @contextlib.contextmanager
    def os_faults(
        self, *, clock_offset_ns: int = 0, read: int = 0, write: int = 0, sync: int = 0, change: int = 0
    ) -> Iterator[None]:
        """Errors of the operating system, for files in the data folder."""
        assert self.node.shim is not None
        path = str(self.node.data_path)
        self.node.shim.set(OsFaults(path, clock_offset_ns, read, write, sync, change))
        try:
            yield
        finally:
            self.node.shim.heal()


# The process.


async def kill(site: Site) -> None:
    await site.node.kill()
    await asyncio.sleep(site.dice.choice((0.0, 0.5)))
    await site.node.start()


async def kill_again_at_once(site: Site) -> None:
    """The second life is too short for anything to be saved."""
    await site.node.kill()
    await site.node.start()
    await asyncio.sleep(site.dice.uniform(0.0, 0.5))
    await kill(site)


async def stop(site: Site) -> None:
    await site.node.stop()
    await site.node.start()


async def freeze(site: Site) -> None:
    site.node.life.signal(signal.SIGSTOP)
    await site.last()
    site.node.life.signal(signal.SIGCONT)


async def freeze_and_kill(site: Site) -> None:
    site.node.life.signal(signal.SIGSTOP)
    await site.last()
    await kill(site)


# The network.


async def cut(site: Site) -> None:
    site.node.proxy.cut(with_reset=False)


async def reset(site: Site) -> None:
    site.node.proxy.cut(with_reset=True)


async def half_open(site: Site) -> None:
    """Both sides take their connections for open, and hear nothing."""
    site.node.proxy.swallow()
    await site.last()
    site.node.proxy.cut(with_reset=True)


async def _in_weather(site: Site, weather: Weather) -> None:
    site.node.proxy.weather = weather
    await site.last(1.0)
    site.node.proxy.weather = FAIR


async def slow_network(site: Site) -> None:
    await _in_weather(site, Weather(delay_s=0.05, jitter_s=0.15))


async def lossy_network(site: Site) -> None:
    await _in_weather(site, Weather(delay_s=0.01, loss=0.1, breaks=0.02))


async def unreachable(site: Site) -> None:
    site.node.proxy.weather = Weather(is_refusing=True)
    site.node.proxy.cut(with_reset=True)
    await site.last()
    site.node.proxy.weather = FAIR


async def stalled_reader(site: Site) -> None:
    """A consumer that asks for much and reads nothing, in each channel; then it is gone."""
    readers: list[socket.socket] = []
    for stream in site.streams:
        for channel in stream.channels:
            if not stream.is_backlog:
                lines = f"SUB {stream.topic} {channel}\nRDY 500\n"
                readers.append(await asyncio.to_thread(_raw, site.node.tcp_port, MAGIC + lines.encode()))
    await site.last(1.0)
    for reader in readers:
        _vanish(reader)


async def torn_publish(site: Site) -> None:
    """Publishers that stop in the middle of a batch, and vanish. Their messages are in no history: none may arrive."""
    publishers: list[socket.socket] = []
    for stream in site.streams:
        body = f"{stream.topic} torn".encode() + b"." * 3000
        mpub = struct.pack(">iii", 2 * len(body) + 12, 2, len(body)) + body + struct.pack(">i", len(body)) + body
        whole = MAGIC + f"MPUB {stream.topic}\n".encode() + mpub
        part = whole[: site.dice.randrange(len(MAGIC), len(whole))]
        publishers.append(await asyncio.to_thread(_raw, site.node.tcp_port, part))
    await site.last()
    for publisher in publishers:
        _vanish(publisher)


def _raw(port: int, data: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_BUFFER_BYTES)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port))
    connection.sendall(data)
    return connection


def _vanish(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# The disk.


async def full_disk(site: Site) -> None:
    """A file of no use takes all the room there is, for a while."""
    ballast = site.node.data_path / BALLAST
    await asyncio.to_thread(_fill, ballast)
    await site.last(1.0)
    ballast.unlink()


async def full_disk_at_start(site: Site) -> None:
    """nsqd is killed while its disk is full. It starts, or refuses and says why; with room again it starts."""
    node = site.node
    ballast = node.data_path / BALLAST
    await asyncio.to_thread(_fill, ballast)
    await node.kill()
    try:
        await node.start()
        await site.last()
        ballast.unlink()
    except StartRefusedError as refusal:
        ballast.unlink()
        if "no space left" not in str(refusal).lower():
            node.incidents.append(f"{node.name}: refused to start on a full disk without saying so:\n{refusal}")
        await node.start()


def _fill(path: Path) -> None:
    block = bytes(1 << 16)
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(block):
            pass


async def read_only_disk(site: Site) -> None:
    """The disk was mounted read-only when nsqd starts: it refuses, and says why; or it starts."""
    node = site.node
    await node.stop()
    if not remount(node.data_path, is_writable=False):
        node.incidents.append(f"{node.name}: the data folder could not be mounted read-only")
    try:
        await node.start()
        await node.kill()
    except StartRefusedError as refusal:
        if "read-only file system" not in str(refusal).lower():
            node.incidents.append(f"{node.name}: refused to start on a read-only disk without saying so:\n{refusal}")
    remount(node.data_path, is_writable=True)
    await node.start()


async def no_space(site: Site) -> None:
    """Each write fails."""
    with site.os_faults(write=errno.ENOSPC):
        await site.last(1.0)


async def write_errors(site: Site) -> None:
    with site.os_faults(write=errno.EIO):
        await site.last(1.0)


async def turned_read_only(site: Site) -> None:
    """What Linux does to a disk with errors: nothing can be written, created, renamed or removed any more."""
    with site.os_faults(write=errno.EROFS, change=errno.EROFS, sync=errno.EROFS):
        await site.last(1.0)
    await site.restart()


async def sync_errors(site: Site) -> None:
    """What was not synced is not known to be on the disk; nsqd takes nothing more until it is started again."""
    with site.os_faults(sync=errno.EIO):
        await site.last(1.0)
        if site.dice.random() < 0.5:
            await site.node.kill()
    if site.node.life.is_running:
        await site.restart()
    else:
        await site.node.start()


async def read_errors(site: Site) -> None:
    """The disk cannot be read for a moment."""
    with site.os_faults(read=errno.EIO):
        await site.last()


# The clock.


async def clock_back(site: Site) -> None:
    await _with_clock(site, -HOUR_NS)


async def clock_forward(site: Site) -> None:
    await _with_clock(site, HOUR_NS)


async def _with_clock(site: Site, offset_ns: int) -> None:
    """Wrong by an hour, and right again; half of the time nsqd is started anew meanwhile."""
    with site.os_faults(clock_offset_ns=offset_ns):
        await site.last(1.0)
        if site.dice.random() < 0.5:
            await site.restart()
            await site.last(0.5)


# nsqlookupd.


async def lookupd_gone(site: Site) -> None:
    assert site.lookupd is not None
    await asyncio.to_thread(site.lookupd.kill)
    await site.last()
    await asyncio.to_thread(site.lookupd.start_again)


async def lookupd_flapping(site: Site) -> None:
    """It comes and goes, and nsqd is killed meanwhile."""
    assert site.lookupd is not None
    for _ in range(2):
        await asyncio.to_thread(site.lookupd.kill)
        await asyncio.to_thread(site.lookupd.start_again)
    await kill(site)


Fault = Callable[[Site], Awaitable[None]]

PROCESS_FAULTS: tuple[Fault, ...] = (kill, kill_again_at_once, stop, freeze, freeze_and_kill)
NETWORK_FAULTS: tuple[Fault, ...] = (
    cut,
    reset,
    half_open,
    slow_network,
    lossy_network,
    unreachable,
    stalled_reader,
    torn_publish,
)
MOUNT_FAULTS: tuple[Fault, ...] = (full_disk, full_disk_at_start, read_only_disk)
SHIM_FAULTS: tuple[Fault, ...] = (
    no_space,
    write_errors,
    turned_read_only,
    sync_errors,
    read_errors,
    clock_back,
    clock_forward,
)
LOOKUPD_FAULTS: tuple[Fault, ...] = (lookupd_gone, lookupd_flapping)


def name_of(fault: Fault) -> str:
    return getattr(fault, "__name__", repr(fault)).replace("_", " ")


async def inflict(fault: Fault, site: Site) -> None:
    """Carry a fault out, from its first trace in the history to its last."""
    name = name_of(fault)
    site.history.note(Kind.FAULT, site.node.name, detail=name)
    try:
        await fault(site)
    finally:
        site.history.note(Kind.HEALED, site.node.name, detail=name)
