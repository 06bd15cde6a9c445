"""An nsqd of a chaos run: a real process behind a bad network, which is killed, frozen, stopped and started again.

    clients ──> Proxy ──> nsqd ──> data folder, on a small file system of its own where mounting is allowed
                           └ LD_PRELOAD: errors of its files, a wrong clock

It keeps its ports, its folder and its faults over all its lives. What goes wrong beyond what a history can tell (an
exit status, a traceback in the log, a refusal to start) is an incident.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from tests.chaos.history import History, Kind
from tests.chaos.proxy import Proxy
from tests.chaos.shim import Shim
from tests.support.held_port import hold_port

COMMAND = (sys.executable, "-m", "emberq.cli.main", "nsqd")
POLL_S = 0.02
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
HTTP_TIMEOUT_S = 30.0
SYNC_TIMEOUT_S = 30.0


class StartRefusedError(Exception):
    """nsqd ended instead of starting; the text is the end of its log."""


@dataclass(frozen=True)
class NodeSettings:
    """How one nsqd is set up."""

    name: str
    flags: Sequence[str]
    mount_bytes: int = 0
    """The size of a file system of its own for the data folder; 0: none."""


async def until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Return when a condition holds; AssertionError if it does not in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(POLL_S)


class NsqdLife:
    """One process of nsqd, from its start to its end."""

    def __init__(
        self,
        data_path: Path,
        log_path: Path,
        *,
        tcp_port: int,
        http_port: int,
        flags: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.http = f"127.0.0.1:{http_port}"
        self._tcp_port = tcp_port
        self._http_port = http_port
        self._log_path = log_path
        listen = [f"--tcp-address=127.0.0.1:{tcp_port}", f"--http-address={self.http}"]
        arguments = [*COMMAND, *listen, "--broadcast-address=127.0.0.1", f"--data-path={data_path}", *flags]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env={**os.environ, **(environment or {})}
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def rss_bytes(self) -> int:
        """Its memory; 0 if it is not there."""
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0]) * 1024
        return 0

    async def wait_until_listening(self) -> None:
        """Return when it takes connections on both ports; StartRefusedError if it ends instead."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + START_TIMEOUT_S
        while not await self._listens():
            if not self.is_running:
                raise StartRefusedError(self.log[-2000:])
            assert loop.time() < deadline_s, f"nsqd does not listen:\n{self.log[-2000:]}"
            await asyncio.sleep(POLL_S)

    async def _listens(self) -> bool:
        for port in (self._tcp_port, self._http_port):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
        return True

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status, when it has ended; it is killed if it does not."""
        try:
            await until(lambda: not self.is_running, timeout_s=STOP_TIMEOUT_S, what="the end of nsqd")
        finally:
            if self.is_running:
                self._process.kill()
                self._process.wait()
        return self._process.returncode

    async def kill(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def terminate(self) -> int:
        """Ask it to stop; its exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def get(self, path: str, **query: str | int) -> bytes:
        """The answer to a GET."""
        return await asyncio.to_thread(_ask, f"http://{self.http}{path}?{urlencode(query)}")

    async def post(self, path: str, body: bytes = b"", **query: str | int) -> bytes:
        """The answer to a POST."""
        return await asyncio.to_thread(_ask, f"http://{self.http}{path}?{urlencode(query)}", body)

    async def channels(self) -> dict[tuple[str, str], int]:
        """How many messages each channel still has: waiting, in flight or deferred."""
        stats = json.loads(await self.get("/stats", format="json"))
        return {
            (topic["topic_name"], channel["channel_name"]): topic["depth"]
            + channel["depth"]
            + channel["in_flight_count"]
            + channel["deferred_count"]
            for topic in stats["topics"]
            for channel in topic["channels"]
        }


def _ask(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, data=body, timeout=HTTP_TIMEOUT_S) as answer:
        content: bytes = answer.read()
        return content


class ChaosNode:
    """One nsqd and all that surrounds it; an asynchronous context manager. Owns the process of the moment."""

    def __init__(
        self, settings: NodeSettings, folder: Path, *, history: History, library: Path | None, dice: random.Random
    ) -> None:
        self.name = settings.name
        self.flags = list(settings.flags)
        self.folder = folder
        self.data_path = folder / "data"
        self.incidents: list[str] = []
        self.shim: Shim | None = None
        self.is_mounted = False
        """Whether the data folder is a file system of its own, which can be full or read-only."""
        self._mount_bytes = settings.mount_bytes
        self._history = history
        self._dice = dice
        self._lives = 0
        self._life: NsqdLife | None = None
        self._owned = ExitStack()
        folder.mkdir(parents=True)
        self.data_path.mkdir()
        if library is not None:
            self.shim = Shim(library, folder / "faults")
        self.tcp_port, self.http_port = (self._owned.enter_context(hold_port()) for _ in range(2))
        self.proxy = Proxy(self.tcp_port, dice=dice)

    async def __aenter__(self) -> Self:
        if self._mount_bytes:
            self.is_mounted = mount(self.data_path, self._mount_bytes)
            if self.is_mounted:
                self._owned.callback(unmount, self.data_path)
        await self.proxy.start()
        self.flags.append(f"--broadcast-tcp-port={self.proxy.port}")
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_raised: object) -> None:
        if self._life is not None and self._life.is_running:
            self._life.signal(signal.SIGCONT)
            await self._life.kill()
        await self.proxy.close()
        self._owned.close()

    @property
    def life(self) -> NsqdLife:
        """The process of the moment."""
        assert self._life is not None
        return self._life

    async def start(self) -> None:
        """Start it and wait until it takes connections."""
        self._lives += 1
        self._life = NsqdLife(
            self.data_path,
            self.folder / f"nsqd-{self._lives}.log",
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            flags=self.flags,
            environment=self.shim.environment if self.shim else None,
        )
        await self._life.wait_until_listening()
        self._history.note(Kind.START, self.name)

    async def kill(self) -> None:
        """End it as a crash would."""
        self.life.signal(signal.SIGKILL)
        self._history.note(Kind.KILL, self.name)
        await self.life.ended()
        self._look_at_log()

    async def stop(self) -> None:
        """End it as an operator would."""
        self._history.note(Kind.STOP, self.name)
        try:
            status = await self.life.terminate()
        except AssertionError as error:
            self._history.note(Kind.KILL, self.name)
            self.incidents.append(f"{self.name}: {error}; it was killed")
        else:
            if status != 0:
                self.incidents.append(f"{self.name}: exit status {status} after SIGTERM:\n{self.life.log[-1500:]}")
        self._look_at_log()

    def _look_at_log(self) -> None:
        log = self.life.log
        if "Traceback" in log:
            at = log.index("Traceback")
            self.incidents.append(f"{self.name}: a traceback in its log:\n{log[max(0, at - 300) : at + 2500]}")

    def note_memory(self) -> None:
        if self._life is not None and (rss_bytes := self._life.rss_bytes):
            self._history.note(Kind.MEMORY, self.name, detail=str(rss_bytes))

    async def stats(self) -> dict[tuple[str, str], int]:
        """What its channels have left; nothing if it does not answer."""
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            return await self.life.channels()
        return {}

    async def journal(self, topic: str) -> list[tuple[int, bytes]]:
        """All messages of a journal with their offsets, read as docs/JOURNAL.md teaches it, when all are synced."""
        async with asyncio.timeout(SYNC_TIMEOUT_S):
            while not await self._is_synced(topic):
                await asyncio.sleep(POLL_S)
        found: list[tuple[int, bytes]] = []
        while batches := await self.life.get("/journal/read", topic=topic, offset=found[-1][0] + 1 if found else 0):
            found += messages_in(batches)
        return found

    async def _is_synced(self, topic: str) -> bool:
        journal = json.loads(await self.life.get("/journal", topic=topic))
        return bool(journal["synced_offset"] >= journal["next_offset"])


BATCH_HEADER = struct.Struct("<4sIIHHqqII16sq")


def messages_in(batches: bytes) -> Iterator[tuple[int, bytes]]:
    """The offset and the body of each message in batches of a journal, read without emberq's code."""
    at = 0
    while at < len(batches):
        _, _, length, _, flags, base, _, count, _, _, _ = BATCH_HEADER.unpack_from(batches, at)
        positions = struct.unpack_from(f"<{count + 1}i", batches, at + BATCH_HEADER.size)
        times_and_due = 8 * count * (flags & 3).bit_count()
        bodies = at + BATCH_HEADER.size + (4 * (count + 1) + 7) // 8 * 8 + times_and_due
        for number, (start, end) in enumerate(pairwise(positions)):
            yield base + number, batches[bodies + start : bodies + end]
        at += length


# File systems of our own.


def mount(path: Path, size_bytes: int) -> bool:
    """Put a small file system in memory there; False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "emberq-chaos", str(path)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)


def remount(path: Path, *, is_writable: bool) -> bool:
    """Let a file system of our own be read-only, or writable again; False where that is not possible."""
    command = ["mount", "-o", f"remount,{'rw' if is_writable else 'ro'}", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
