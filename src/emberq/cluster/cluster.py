"""A cluster: how it is reached, and all that can be asked of it and done to it, behind one door."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.action import Actions
from emberq.cluster.survey import ClusterReader
from emberq.cluster.topology import ClusterAddresses, Topology
from emberq.cluster.upstream import ANY_HOST, MAX_ANSWER_BYTES, Background, Credentials, Upstreams
from emberq.http.client import HttpClient

PATIENCE_FACTOR = 2
"""All daemons together may take twice as long as one of them: of a large cluster some wait until others are asked."""

T = TypeVar("T")


class Cluster:
    """The door to a cluster. Owned by the program that shows it."""

    def __init__(
        self,
        addresses: ClusterAddresses,
        *,
        connect_timeout_ns: int,
        request_timeout_ns: int,
        tls: ssl.SSLContext | None = None,
        secret: bytes = b"",
        lookupd_secret: bytes = b"",
        secret_hosts: Iterable[str] = (ANY_HOST,),
    ) -> None:
        """`secret` is what nsqds with authorization want to see, on `secret_hosts`; see `Credentials`."""
        self.http = HttpClient(
            connect_timeout_ns=connect_timeout_ns,
            request_timeout_ns=request_timeout_ns,
            tls=tls,
            max_body_bytes=MAX_ANSWER_BYTES,
            hides_secrets=addresses.is_encrypted,
        )
        self.consumer_tls = tls if addresses.is_encrypted else None
        """How consumers connect to nsqds; None: in clear."""
        self.credentials = Credentials(
            nsqd=secret,
            lookupd=lookupd_secret,
            nsqds=addresses.nsqds,
            lookupds=addresses.lookupds,
            hosts=secret_hosts,
        )
        self.background = Background()
        has_bounds = connect_timeout_ns > 0 and request_timeout_ns > 0
        patience_s = PATIENCE_FACTOR * (connect_timeout_ns + request_timeout_ns) / NS_PER_SECOND if has_bounds else None
        self.upstreams = Upstreams(
            self.http, credentials=self.credentials, background=self.background, patience_s=patience_s
        )
        self.topology = Topology(self.upstreams, addresses)
        self.observer = ClusterReader(self.upstreams, self.topology)
        self.actions = Actions(self.upstreams, self.topology)
        # The same once more, for the event loop of the background thread.
        upstreams = Upstreams(
            self.http, credentials=self.credentials, background=self.background, patience_s=patience_s
        )
        self._far_topology = Topology(upstreams, addresses)
        self._far_observer = ClusterReader(upstreams, self._far_topology)

    async def ask_in_background(self, ask: Callable[[Topology, ClusterReader], Coroutine[Any, Any, T]]) -> T:
        """For questions with large answers: the event loop that serves requests goes on meanwhile."""
        return await self.background.ask(lambda: ask(self._far_topology, self._far_observer))

    @property
    def secret(self) -> bytes:
        """What nsqds are shown now."""
        return self.credentials.nsqd

    @property
    def lookupds(self) -> tuple[str, ...]:
        """The nsqlookupds that are asked now."""
        return self.topology.addresses.lookupds

    def ask_other_lookupds(self, addresses: tuple[str, ...]) -> None:
        """Ask these nsqlookupds from now on. Those that were not given at the start are shown no secret."""
        self.credentials.strangers = frozenset(addresses)
        self.topology.addresses = ClusterAddresses(lookupds=addresses, nsqds=self.topology.addresses.nsqds)
        self._far_topology.addresses = self.topology.addresses
