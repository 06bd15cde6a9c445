"""A whole NSQ inside a program or a test: real nsqds and a real nsqlookupd on free ports of this machine.

    from emberq import Embedded

    async with Embedded() as nsq:
        print(nsq.nsqd_tcp_addresses)         # ["127.0.0.1:40123"]
        print(nsq.lookupd_http_addresses)     # ["127.0.0.1:40126"]

Data lies in a temporary folder that is deleted at the end, unless `data_path` names one that is to stay. Options of
nsqd are given by name, with underscores: `Embedded(mem_queue_size=0)` is `--mem-queue-size=0`.

Code that blocks uses `EmbeddedThread`, which runs the same in a thread of its own. Tests use the pytest fixture `nsq`,
which is there as soon as emberq is installed: see `emberq.pytest_plugin`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from emberq.base.task import LoopThread
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions

try:
    from emberq.nsqd.daemon import Nsqd
    from emberq.nsqd.options import NsqdOptions
except ModuleNotFoundError as missing:  # one of those that only POSIX systems have
    raise ImportError(f"emberq.embedded runs nsqd, which needs Linux or macOS: {missing}") from missing

__all__ = ["Embedded", "EmbeddedThread"]

LOOPBACK = "127.0.0.1"
ANY_PORT = f"{LOOPBACK}:0"

_T = TypeVar("_T")


class Embedded:
    """nsqds and an nsqlookupd in the running event loop, from `async with` to its end."""

    def __init__(
        self,
        *,
        nsqd_count: int = 1,
        with_lookupd: bool = True,
        data_path: str | Path | None = None,
        **nsqd_options: Any,
    ) -> None:
        self._nsqd_count = nsqd_count
        self._with_lookupd = with_lookupd
        self._data_path = Path(data_path) if data_path is not None else None
        self._nsqd_options = nsqd_options
        self._running = AsyncExitStack()
        self.nsqds: list[Nsqd] = []
        self.lookupds: list[Nsqlookupd] = []

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """Where producers and consumers connect."""
        return [_text(nsqd.tcp_address) for nsqd in self.nsqds]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """Where the nsqds serve HTTP."""
        return [_text(nsqd.http_address) for nsqd in self.nsqds]

    @property
    def lookupd_tcp_addresses(self) -> list[str]:
        """Where nsqds register."""
        return [_text(lookupd.tcp_address) for lookupd in self.lookupds]

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """Where consumers look for topics."""
        return [_text(lookupd.http_address) for lookupd in self.lookupds]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as starting:  # if a daemon fails to start, those before it are stopped
            folder = self._data_path
            if folder is None:
                folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="emberq-")))
            if self._with_lookupd:
                await self._start_lookupd(starting)
            for number in range(self._nsqd_count):
                await self._start_nsqd(starting, folder / f"nsqd-{number}")
            self._running = starting.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()
        self.nsqds.clear()
        self.lookupds.clear()

    async def _start_lookupd(self, starting: AsyncExitStack) -> None:
        lookupd = Nsqlookupd(LookupdOptions(tcp_address=ANY_PORT, http_address=ANY_PORT, broadcast_address=LOOPBACK))
        await lookupd.start()
        starting.push_async_callback(lookupd.stop)
        self.lookupds.append(lookupd)

    async def _start_nsqd(self, starting: AsyncExitStack, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        defaults: dict[str, Any] = {
            "data_path": str(folder),
            "tcp_address": ANY_PORT,
            "http_address": ANY_PORT,
            "https_address": ANY_PORT,
            "broadcast_address": LOOPBACK,
            "lookupd_tcp_address": tuple(self.lookupd_tcp_addresses),
        }
        nsqd = Nsqd(NsqdOptions(**(defaults | self._nsqd_options)))
        await nsqd.start()
        starting.push_async_callback(nsqd.stop)
        self.nsqds.append(nsqd)


class EmbeddedThread:
    """`Embedded` in a thread of its own, for code that blocks, from `with` to its end. The options are the same.

    The addresses may be read from any thread. The daemons themselves belong to their thread: `call` runs a function
    there.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._loop = LoopThread("emberq")
        self.nsq: Embedded

    def __enter__(self) -> Self:
        try:
            self.nsq = self._loop.run(lambda: Embedded(**self._options).__aenter__())
        except BaseException:
            self._loop.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.end(lambda: self.nsq.__aexit__())

    def call(self, function: Callable[[], _T]) -> _T:
        """What `function` returns, run in the daemons' thread."""

        async def run() -> _T:
            return function()

        return self._loop.run(run)

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        """Where producers and consumers connect."""
        return self.nsq.nsqd_tcp_addresses

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """Where the nsqds serve HTTP."""
        return self.nsq.nsqd_http_addresses

    @property
    def lookupd_tcp_addresses(self) -> list[str]:
        """Where nsqds register."""
        return self.nsq.lookupd_tcp_addresses

    @property
    def lookupd_http_addresses(self) -> list[str]:
        """Where consumers look for topics."""
        return self.nsq.lookupd_http_addresses


def _text(address: tuple[str, int] | str | None) -> str:
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return address or ""
