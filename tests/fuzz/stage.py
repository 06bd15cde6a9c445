"""A daemon on an event loop of ours, with an attacker and a bystander on real sockets of this machine.

All three run in one thread. So what the bystander waits for is what the daemon computes meanwhile, and the CPU time of
the thread tells how long that is, whatever else the machine does. The daemon's clock stands still: no timeout hides
what an input does, and none makes a difference between two plays.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

from tests.fuzz.engine import Target
from tests.fuzz.oracle import SlowError
from tests.fuzz.targets_wire import cut

PATIENCE_S = 10.0
"""For what must come, on a machine that does other things too."""
LAST_PATIENCE_S = 60.0
"""The same before it is called a finding: a process of low priority may get next to nothing beside others."""
QUIET_S = 0.05
"""A connection that may stay open is left when nothing came for so long."""
MAX_BYSTANDER_CPU_S = 0.5
"""What a daemon may compute between a bystander's question and the answer, while coverage is measured."""
T = TypeVar("T")
Address = tuple[str, int]


class BystanderError(AssertionError):
    """Another client got a wrong answer, or none."""


class DaemonTarget(Target):
    """A daemon that listens. Each input is sent by an attacker, while a bystander asks for something and gets it."""

    ends_with_client = True
    """Whether the daemon must close soon after the client has said that it sends no more."""
    slice_count = 60

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._unhandled: list[dict[str, Any]] = []
        self._has_begun: asyncio.Event
        """Whether the daemon has some of the input to work on."""

    # The daemon

    @abstractmethod
    async def start(self) -> Address:
        """Start the daemon; where the attacker connects."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it."""

    @abstractmethod
    async def bystand(self) -> None:
        """Ask for something, as an honest client; BystanderError if the answer is wrong."""

    async def tidy(self) -> None:
        """Throw away what the input left."""

    def open(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._unhandled.append(context))
        self._address = self._await(self.start())

    def close(self) -> None:
        self._await(self.stop())
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    # The play

    def play(self, data: bytes) -> None:
        self._unhandled.clear()
        try:
            waited_s = self._await(self._play(data, time.monotonic, patience_s=PATIENCE_S))
        except TimeoutError:
            waited_s = PATIENCE_S
        if waited_s > MAX_BYSTANDER_CPU_S:  # that time passed may be the machine's fault
            try:
                waited_s = self._await(self._play(data, time.thread_time, patience_s=LAST_PATIENCE_S))
            except TimeoutError:
                raise AssertionError("neither an answer nor an end") from None
            if waited_s > MAX_BYSTANDER_CPU_S:
                raise SlowError(f"a bystander's answer took {waited_s:.3f} s of CPU time")
        if self._unhandled:
            context = self._unhandled[0]
            raise AssertionError(f"unhandled: {context['message']}") from context.get("exception")

    async def _play(self, data: bytes, clock: Callable[[], float], *, patience_s: float) -> float:
        """For how long the bystander waited, by this clock; TimeoutError if all of it takes too long."""
        self._has_begun = asyncio.Event()
        attack = asyncio.ensure_future(self.attack(data))
        try:
            async with asyncio.timeout(patience_s):
                await self._has_begun.wait()
                began_s = clock()
                await self.bystand()
                waited_s = clock() - began_s
                await attack
        finally:
            attack.cancel()
        await self.tidy()
        return waited_s

    async def attack(self, data: bytes) -> None:
        """Send the input in pieces, say that it was all, and read what comes until the daemon closes."""
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            with suppress(OSError, EOFError, RuntimeError):  # it has hung up; uvloop says so in many ways
                for piece in cut(await self.prepare(reader, writer, data)):
                    writer.write(piece)
                    self._has_begun.set()
                    await asyncio.sleep(0)
                writer.write_eof()
            self._has_begun.set()
            await self._read_to_the_end(reader)
        finally:
            writer.transport.abort()

    async def prepare(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        """Say and hear what comes before the input; what is to be sent then."""
        return data

    async def _read_to_the_end(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):  # it has hung up: reset, or not connected any more
            while True:
                try:
                    async with asyncio.timeout(None if self.ends_with_client else QUIET_S):
                        if not await reader.read(65536):
                            return
                except TimeoutError:
                    return


class LineClient:
    """An honest client of a binary protocol: sends, and expects an answer to the byte. It connects when it must."""

    def __init__(self, address: Address, greeting: bytes) -> None:
        self._address = address
        self._greeting = greeting
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: bytes, answer: bytes) -> None:
        """BystanderError if another answer comes, or none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
            self._streams[1].write(self._greeting)
        reader, writer = self._streams
        try:
            writer.write(question)
            found = await reader.readexactly(len(answer))
        except (OSError, EOFError) as error:
            self.close()
            raise BystanderError("cut off") from error
        if found != answer:
            raise BystanderError(f"{found!r} instead of {answer!r}")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def http_get(address: Address, target: str, *, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of an honest request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*address)
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        answer = await reader.read(-1)
    finally:
        writer.transport.abort()
    first, _, rest = answer.partition(b"\r\n\r\n")
    status = first.split(b" ", 2)[1:2]
    return (int(status[0]) if status else 0), rest
