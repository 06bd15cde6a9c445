"""Addresses: TCP, Unix sockets and CIDR ranges.

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

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberq.base.text import quoted

MAX_PORT = 65_535
MAX_SHOWN_DIGITS = 15
"""Of a port that is no port; int() would not even take some thousands of them."""


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


def split_scheme(text: str) -> tuple[str, str]:
    """`http` or `https`, and the address behind it: `https://lookup:4161` is `lookup:4161`, to be asked by HTTPS.

    An address without a scheme is asked by plain HTTP.
    """
    scheme, mark, rest = text.partition("://")
    if mark and scheme.lower() in ("http", "https"):
        return scheme.lower(), rest.removesuffix("/")
    return "http", text


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
