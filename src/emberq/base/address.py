"""Addresses: TCP, Unix sockets and CIDR ranges; and listening on one.

A daemon listens on or connects to a TCP address or the path of a Unix socket. Both are written in the same flag: text
of the form `host:port` is TCP, anything else is a path:

    127.0.0.1:4150      TCP
    :4150               TCP, all interfaces (empty host)
    [::1%lo0]:80        TCP; an IPv6 host stands in brackets
    /var/run/nsqd.sock  Unix socket

A port may be the name of a service (`localhost:http`).

A range is written in CIDR notation. As in the reference `127.0.0.1/8` is the range 127.0.0.0/8: the bits behind the
prefix do not matter. An IPv4 address that comes through an IPv6 socket (`::ffff:127.0.0.1`) counts as that IPv4
address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberq.base.text import quoted

MAX_PORT = 65_535
MAX_SHOWN_DIGITS = 15
"""Of a port that is no port; int() would not even take some thousands of them."""

_log = logging.getLogger(__name__)


class AddressError(ValueError):
    """An address that can be neither listened on nor connected to; the text says why."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port. An empty host means every interface; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return self.path


def format_peer(peername: Any) -> str:
    """The other end of a connection, as a transport names it; `@` for a Unix socket, whose peer has no address."""
    return str(TcpAddress(*peername[:2])) if isinstance(peername, tuple) else "@"


def network_text(failure: Exception) -> str:
    """What ended a connection, as other programs word it: `connection reset by peer`."""
    text = failure.strerror if isinstance(failure, OSError) else None
    return (text or str(failure)).lower()


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """The address that `text` spells; AddressError. Nothing is looked up except the name of a service."""
    if not text:
        raise AddressError("the address is empty")
    parts = _split_host_port(text)
    if parts is None:
        return UnixAddress(text)
    host, port = parts
    return TcpAddress(host, _parse_port(port))


def parse_tcp_address(text: str) -> TcpAddress:
    """As `parse_address`, but a Unix socket is an AddressError."""
    address = parse_address(text)
    if isinstance(address, UnixAddress):
        raise AddressError(f"{quoted(text)} is not of the form host:port")
    return address


def _split_host_port(text: str) -> tuple[str, str] | None:
    """Host and port of `text`, or None if it does not have that form."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None  # an IPv6 host without brackets could end anywhere
    if any(bracket in host + port for bracket in "[]"):
        return None
    return host, port


def _parse_port(text: str) -> int:
    if not text:
        return 0
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        if len(digits) > MAX_SHOWN_DIGITS:
            raise AddressError(f"port {digits[:MAX_SHOWN_DIGITS]}… is above {MAX_PORT}")
        if int(digits) > MAX_PORT:
            raise AddressError(f"port {text} is above {MAX_PORT}")
        return int(digits)
    try:
        return socket.getservbyname(text, "tcp")
    except (OSError, ValueError) as error:  # ValueError: characters that no name of a service has
        raise AddressError(f"unknown port {quoted(text)}") from error


# Listening.

BACKLOG = 4096
"""Connections that may wait to be accepted; the system cuts it to its own limit."""
KEEP_ALIVE_SECONDS = 15
"""As in the reference: so a peer that vanished is noticed."""


MAX_HANDSHAKE_SECONDS = 10
"""For connections that begin by TLS. Python's default, a minute, is a long time to hold a descriptor for nothing."""


class ListenError(Exception):
    """The address cannot be listened on."""


class Listener:
    """A socket that accepts connections. Bound first, so that a taken port stops the start early; served later."""

    def __init__(
        self,
        address: str,
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        label: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._text = address
        self._make_protocol = make_protocol
        self._label = label
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._unix_path: str | None = None

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port, or path, once bound."""
        if self._socket is None:
            raise RuntimeError("not listening")
        name = self._socket.getsockname()
        return name if isinstance(name, str) else (name[0], name[1])

    @property
    def port(self) -> int:
        """The port; -1 for a Unix socket."""
        address = self.address
        return -1 if isinstance(address, str) else address[1]

    async def bind(self) -> None:
        """Take the address; connections wait until `serve`."""
        try:
            self._socket = self._bound(parse_address(self._text))
            self._socket.listen(BACKLOG)
        except (OSError, AddressError) as failure:
            raise ListenError(f"listen ({self._text}) failed - {failure}") from failure

    def _bound(self, address: TcpAddress | UnixAddress) -> socket.socket:
        if isinstance(address, UnixAddress):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(address.path)
            self._unix_path = address.path
            return listening
        family, _, _, _, where = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
            if hasattr(socket, option):
                listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEP_ALIVE_SECONDS)
        listening.bind(where)
        return listening

    def _shown_address(self) -> str:
        address = self.address
        return address if isinstance(address, str) else str(TcpAddress(*address))

    async def serve(self) -> None:
        """Accept connections from here on."""
        if self._socket is None:
            raise RuntimeError("not bound")
        loop = asyncio.get_running_loop()
        create = loop.create_server if self._unix_path is None else loop.create_unix_server
        self._server = await create(
            self._make_protocol,
            sock=self._socket,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=MAX_HANDSHAKE_SECONDS if self._tls is not None else None,
        )
        _log.info("%s: listening on %s", self._label, self._shown_address())

    async def close(self) -> None:
        """Accept no more. Connections that are open stay."""
        if self._socket is None:
            return
        _log.info("%s: closing %s", self._label, self._shown_address())
        if self._server is not None:
            self._server.close()
        else:
            self._socket.close()
        if self._unix_path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._unix_path)  # noqa: PTH108 - pathlib would be loaded for every client
        self._socket = None


# Ranges.

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class NetworkError(ValueError):
    """Not a range of addresses, or not an address; the text says why."""


def parse_network(cidr: str) -> Network:
    """The range that `cidr` names; NetworkError. A prefix is required: a bare address may be a slip."""
    if "/" not in cidr:
        raise NetworkError(f"invalid CIDR address: {cidr}")
    try:
        return ipaddress.ip_network(cidr, strict=False)
    except ValueError as error:
        raise NetworkError(f"invalid CIDR address: {cidr}") from error


def parse_remote(remote_address: str) -> Address:
    """The address of a client, which is given with its port; NetworkError for a Unix socket's."""
    host = remote_address.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise NetworkError(f"not an address: {remote_address}") from error
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_within(remote_address: str, networks: Iterable[Network]) -> bool:
    """Whether a client is in one of these ranges; one without an address is in none."""
    try:
        address = parse_remote(remote_address)
    except NetworkError:
        return False
    return any(address in network for network in networks)
