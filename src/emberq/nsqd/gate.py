"""Which connections are served at all, over TCP, HTTP and HTTPS together.

An operator may set limits, for all connections and for those of one address. Without them, connections still leave a
part of the process's descriptors free, because nsqd itself has to open files: one that cannot open the next file of a
queue cannot take messages from any client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections import Counter
from ipaddress import ip_network

from emberq.base.address import NetworkError, parse_remote
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.log import RefusalLog
from emberq.nsqd.options import NsqdOptions

DESCRIPTOR_SHARE = 4
MAX_RESERVED_COUNT = 4096
"""Connections leave one in so many descriptors free, but no more than these: it is what journals keep open at most."""
REFUSAL_LOG_INTERVAL_NS = 10 * NS_PER_SECOND
NO_DESCRIPTORS = "nsqd needs the file descriptors that are left (ulimit -n)"
NO_LIMIT = 1 << 31
"""More than there can be descriptors."""
IPV6_PREFIX_BITS = 64
"""A host of IPv6 may have as many addresses as it likes within this prefix. So they count as one."""

_log = logging.getLogger(__name__)


class ConnectionGate:
    """Counts the connections of all listeners, and refuses those beyond the limits. Owned by the daemon."""

    def __init__(self, options: NsqdOptions, *, clock: Clock) -> None:
        self._max_count = options.max_connections
        self._max_address_count = options.max_connections_per_address
        self._count = 0
        self._address_counts: Counter[str] = Counter()
        """How many there are of each address; kept only if that has a limit."""
        self._refusals = RefusalLog(_log, clock=clock, interval_ns=REFUSAL_LOG_INTERVAL_NS)

    def enter(self, remote_address: str, transport: asyncio.BaseTransport) -> str | None:
        """Count a new connection, or return why it is refused. One that was counted has to `leave`."""
        address = _counted_address(remote_address) if self._max_address_count else ""
        if self._is_full:
            return self._refuse(remote_address, self._too_many)
        if address and self._address_counts[address] >= self._max_address_count:
            limit = f"{self._max_address_count} connections from {address} (--max-connections-per-address)"
            return self._refuse(remote_address, f"more than {limit}")
        if transport.get_extra_info("socket").fileno() >= _max_descriptor():
            return self._refuse(remote_address, NO_DESCRIPTORS)
        self._count += 1
        if address:
            self._address_counts[address] += 1
        return None

    def leave(self, remote_address: str) -> None:
        """A connection that was counted is gone."""
        self._count -= 1
        if self._max_address_count:
            address = _counted_address(remote_address)
            self._address_counts[address] -= 1
            if not self._address_counts[address]:
                del self._address_counts[address]

    def has_room(self) -> bool:
        """Whether a connection of HTTPS may shake hands. Behind that it has to `enter`."""
        reason = self._too_many if self._is_full else None if _has_descriptors() else NO_DESCRIPTORS
        if reason is not None:
            self._refuse("a client of HTTPS", reason)
        return reason is None

    @property
    def _is_full(self) -> bool:
        return 0 < self._max_count <= self._count

    @property
    def _too_many(self) -> str:
        return f"more than {self._max_count} connections (--max-connections)"

    def _refuse(self, remote_address: str, reason: str) -> str:
        self._refusals.warn(f"refused a connection from {remote_address}: {reason}")
        return reason


def _max_descriptor() -> int:
    """The first descriptor that no connection may have. The system gives the lowest that is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return NO_LIMIT
    return limit - min(limit // DESCRIPTOR_SHARE, MAX_RESERVED_COUNT)


def _has_descriptors() -> bool:
    """Whether the next descriptor may be that of a connection."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return False
    os.close(descriptor)
    return descriptor < _max_descriptor()


def _counted_address(remote_address: str) -> str:
    """The address that a connection counts for, without its port; empty for a Unix socket."""
    try:
        address = parse_remote(remote_address)
    except NetworkError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ip_network((address, IPV6_PREFIX_BITS), strict=False))
