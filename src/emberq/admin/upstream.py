"""The cluster that nsqadmin shows: how it is reached, and all that can be asked of it and done to it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from emberq.admin.options import Options
from emberq.base.address import parse_tcp_address
from emberq.base.http_query import HttpClient
from emberq.cluster.action import Actions
from emberq.cluster.background import Background
from emberq.cluster.observer import Observer
from emberq.cluster.topology import Addresses, Topology
from emberq.cluster.upstream import Upstreams

T = TypeVar("T")


class UpstreamOptionsError(Exception):
    """The daemons cannot be reached by what the options say; the text says why."""


class Cluster:
    """Owned by the daemon."""

    def __init__(self, options: Options) -> None:
        """UpstreamOptionsError for a file that cannot be used."""
        self.http = HttpClient(
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
            tls=client_tls(options),
        )
        self.secret = _read_secret(options.nsqd_secret_file)
        self.background = Background()
        addresses = Addresses(lookupds=options.lookupd_http_address, nsqds=options.nsqd_http_address)
        self.upstreams = Upstreams(self.http, secret=self.secret, background=self.background)
        self.topology = Topology(self.upstreams, addresses)
        self.observer = Observer(self.upstreams, self.topology)
        self.actions = Actions(self.upstreams, self.topology)
        # The same once more, to be asked in the background.
        upstreams = Upstreams(self.http, secret=self.secret, background=self.background)
        self._far_topology = Topology(upstreams, addresses)
        self._far_observer = Observer(upstreams, self._far_topology)

    async def ask_in_background(self, ask: Callable[[Topology, Observer], Coroutine[Any, Any, T]]) -> T:
        """For questions with large answers: those who are served meanwhile do not notice."""
        return await self.background.ask(lambda: ask(self._far_topology, self._far_observer))

    @property
    def lookupds(self) -> tuple[str, ...]:
        """The nsqlookupds that are asked now."""
        return self.topology.addresses.lookupds

    def ask_other_lookupds(self, addresses: tuple[str, ...]) -> None:
        """Ask these nsqlookupds from now on."""
        self.topology.addresses = Addresses(lookupds=addresses, nsqds=self.topology.addresses.nsqds)
        self._far_topology.addresses = self.topology.addresses


def client_tls(options: Options) -> ssl.SSLContext:
    """How to speak TLS with daemons; UpstreamOptionsError."""
    context = ssl.create_default_context()
    if options.http_client_tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = options.http_client_tls_cert, options.http_client_tls_key
    if certificate:
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise UpstreamOptionsError(f"failed to LoadX509KeyPair {certificate}, {key} - {error}") from error
    root = options.http_client_tls_root_ca_file
    if root:
        try:
            authorities = Path(root).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise UpstreamOptionsError(f"failed to read TLS root CA file {root} - {error.strerror}") from error
        try:
            context.load_verify_locations(cadata=authorities)
        except (ValueError, ssl.SSLError) as error:
            raise UpstreamOptionsError(f"failed to AppendCertsFromPEM {root}") from error
    return context


def _read_secret(path: str) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise UpstreamOptionsError(f"failed to read --nsqd-secret-file ({path}) - {error.strerror}") from error


async def check_names(options: Options) -> None:
    """UpstreamOptionsError for an address whose name nobody knows: a slip is better told now than at each request."""
    for flag, addresses in (
        ("lookupd-http-address", options.lookupd_http_address),
        ("nsqd-http-address", options.nsqd_http_address),
    ):
        for address in addresses:
            try:
                where = parse_tcp_address(address)
                await asyncio.get_running_loop().getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:
                raise UpstreamOptionsError(f"failed to resolve --{flag} ({address}) - {error}") from error
