"""Discovery as the daemon has it: the link and the pre-creation of channels, made from nsqd's options."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import emberq
from emberq.base.clock import Clock
from emberq.base.http_query import HttpClient
from emberq.base.timers import Timers
from emberq.broker.broker import Change
from emberq.lookupd.protocol import NsqdIdentity
from emberq.nsqd.lookup.conversation import Snapshot
from emberq.nsqd.lookup.link import MAX_CHANNELS_BYTES, LookupLink
from emberq.nsqd.lookup.precreation import HeldTopic, Precreation
from emberq.nsqd.options import Options


class Discovery:
    """Owned by the daemon, from the moment its ports are known; `changed` is to be a listener of the broker."""

    def __init__(
        self,
        options: Options,
        *,
        tcp_port: int,
        http_port: int,
        snapshot: Snapshot,
        find_topic: Callable[[str], HeldTopic | None],
        clock: Clock,
        timers: Timers,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._link = LookupLink(
            options.lookupd_tcp_address,
            identity=_identity(options, tcp_port=tcp_port, http_port=http_port),
            snapshot=snapshot,
            http_client=HttpClient(
                connect_timeout_ns=options.http_client_connect_timeout_ns,
                request_timeout_ns=options.http_client_request_timeout_ns,
                tls=tls,
                max_body_bytes=MAX_CHANNELS_BYTES,
            ),
            max_answer_bytes=options.max_body_size,
            clock=clock,
            timers=timers,
        )
        self._precreation = Precreation(self._link, find_topic=find_topic, clock=clock, timers=timers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nsqlookupds."""
        return self._link.addresses

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these from here on."""
        self._link.set_addresses(addresses)

    def start(self) -> None:
        self._link.start()

    async def stop(self) -> None:
        """Hang up; topics that are held are released."""
        await self._link.stop()

    def changed(self, change: Change) -> None:
        """A topic or channel came or went."""
        self._link.changed(change)
        self._precreation.changed(change)


def _identity(options: Options, *, tcp_port: int, http_port: int) -> NsqdIdentity:
    """Who nsqd says that it is. A port that it does not have, because of a Unix socket, is 0."""
    return NsqdIdentity(
        broadcast_address=options.broadcast_address,
        hostname=socket.gethostname(),
        tcp_port=options.broadcast_tcp_port or max(0, tcp_port),
        http_port=options.broadcast_http_port or max(0, http_port),
        version=emberq.NSQ_VERSION,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
