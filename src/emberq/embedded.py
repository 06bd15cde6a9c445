"""A whole NSQ inside a program or a test: real nsqds and a real nsqlookupd on free ports of this machine.

    from emberq.embedded import Embedded

    async with Embedded() as nsq:
        print(nsq.nsqd_tcp_addresses)         # ["127.0.0.1:40123"]
        print(nsq.lookupd_http_addresses)     # ["127.0.0.1:40126"]

Data lies in a temporary folder that goes with it, unless `data_path` names one that is to stay. Options of nsqd are
given by name, as in `emberq.nsqd.options.NsqdOptions`: `Embedded(mem_queue_size=0)`.

Code that is not asynchronous uses `EmbeddedThread`, which runs the same in a thread of its own. Tests use the pytest
fixture `nsq`, which is there as soon as emberq is installed: see `emberq.pytest_plugin`.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import LookupdOptions
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import NsqdOptions

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
        async with AsyncExitStack() as starting:  # so that what is up goes down again when something fails
            folder = self._data_path
            if folder is None:
                folder = Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="emberq-")))
            if self._with_lookupd:
                await self._start_lookupd(starting)
            for number in range(self._nsqd_count):
                await self._start_nsqd(starting, folder / f"nsqd-{number}")
            self._running = starting.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    """The same in a thread of its own, for code that is not asynchronous.

    The addresses may be read from any thread. The daemons themselves belong to their thread: `call` runs a function
    there.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="emberq", daemon=True)
        self.nsq: Embedded

    def __enter__(self) -> Self:
        self._thread.start()
        self.nsq = self._run(lambda: Embedded(**self._options).__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(lambda: self.nsq.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, function: Callable[[], _T]) -> _T:
        """What `function` returns, run in the daemons' thread."""

        async def run() -> _T:
            return function()

        return self._run(run)

    def _run(self, make_work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return asyncio.run_coroutine_threadsafe(make_work(), self._loop).result()

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        return self.nsq.nsqd_tcp_addresses

    @property
    def nsqd_http_addresses(self) -> list[str]:
        return self.nsq.nsqd_http_addresses

    @property
    def lookupd_tcp_addresses(self) -> list[str]:
        return self.nsq.lookupd_tcp_addresses

    @property
    def lookupd_http_addresses(self) -> list[str]:
        return self.nsq.lookupd_http_addresses


def _text(address: tuple[str, int] | str | None) -> str:
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return address or ""
