"""A node without sockets, for tests of what the API says about it; and requests as its handlers get them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from emberq.base.clock import Clock
from emberq.broker.broker import Broker
from emberq.broker.stats import ClientStats
from emberq.http.message import HttpError, Request, Response
from emberq.nsqd.drain import Drain
from emberq.nsqd.metrics import Memory
from emberq.nsqd.options import NsqdOptions
from emberq.nsqd.publishing import PublishBatcher
from emberq.storage.error import MetadataError
from tests.broker.rig import Rig

START_TIME_S = 1_700_000_000


class RigNode:
    """What the API needs of a daemon, around the broker of a rig."""

    def __init__(self, rig: Rig, **options: Any) -> None:
        self.options = NsqdOptions(**options)
        self.broker: Broker = rig.broker
        self.batcher = batcher_of(rig)
        self.clock: Clock = rig.clock
        self.memory = Memory()
        self.start_time_s = START_TIME_S
        self.tcp_port = 4150
        self.http_port = 4151
        self.lookupd_tcp_addresses: tuple[str, ...] = ()
        self.connected_producers: list[ClientStats] = []
        self.persisted_count = 0
        self.removed_count = 0
        self.metadata_failure: MetadataError | None = None
        self.log_level_changes = 0
        self.draining = Drain(
            rig.broker,
            clock=rig.clock,
            timers=rig.timers,
            refuse=lambda _reason: None,
            announce=lambda _change: None,
            on_empty=lambda: None,
        )

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        self.lookupd_tcp_addresses = addresses

    def log_level_changed(self) -> None:
        self.log_level_changes += 1

    async def metadata_saved(self) -> None:
        if self.metadata_failure is not None:
            raise self.metadata_failure
        self.persisted_count += 1

    async def files_removed(self) -> None:
        self.removed_count += 1

    def producers(self) -> Iterator[ClientStats]:
        return iter(self.connected_producers)

    def health(self) -> str:
        return "OK"


def batcher_of(rig: Rig) -> PublishBatcher:
    """Gathers what is published in one turn of the loop that runs."""
    return PublishBatcher(
        rig.broker, lambda callback: asyncio.get_running_loop().call_soon(callback), list[int]().append
    )


def request(query: str = "", body: bytes = b"", *, headers: dict[bytes, bytes] | None = None, **params: str) -> Request:
    """A request whose method and path are somebody else's concern; `headers` have names in lower case."""
    return Request("POST", f"/?{query}", body=body, headers=headers or {}, params=params)


def answer_of(handler: Callable[[Request], Response | Awaitable[Response]], asked: Request) -> Response:
    """The answer of a handler that may take its time."""

    async def answer() -> Response:
        given = handler(asked)
        return given if isinstance(given, Response) else await given

    return asyncio.run(answer())


def refusal_of(handler: Callable[[Request], Response | Awaitable[Response]], asked: Request) -> tuple[int, str]:
    """Status and message of the error that the handler answers with."""
    with pytest.raises(HttpError) as refused:
        answer_of(handler, asked)
    return refused.value.status, refused.value.message
