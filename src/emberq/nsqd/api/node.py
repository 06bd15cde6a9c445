"""What the API needs of the daemon, and nothing more."""

from __future__ import annotations

from typing import Protocol

from emberq.base.clock import Clock
from emberq.broker.broker import Broker
from emberq.broker.stats import ClientStats
from emberq.nsqd.memory import Memory
from emberq.nsqd.options import Options


class Node(Protocol):
    """A running nsqd, as seen by those who answer for it."""

    @property
    def options(self) -> Options: ...

    @property
    def broker(self) -> Broker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def start_time_s(self) -> int:
        """When it started, seconds since the Unix epoch."""
        ...

    @property
    def tcp_port(self) -> int:
        """The port listened on; -1 for a Unix socket."""
        ...

    @property
    def http_port(self) -> int:
        """The port listened on; -1 for a Unix socket."""
        ...

    @property
    def lookupd_tcp_addresses(self) -> tuple[str, ...]:
        """The nsqlookupds it registers with now."""
        ...

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these from here on."""
        ...

    def persist_metadata(self) -> None:
        """Write nsqd.dat and return when it is on disk; StorageError if it cannot be."""
        ...

    def producers(self) -> tuple[ClientStats, ...]:
        """The connections that have published."""
        ...

    def health(self) -> str:
        """`OK`, or `NOK - ` and what is wrong."""
        ...
