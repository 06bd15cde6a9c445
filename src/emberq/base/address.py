"""Where a daemon listens or connects: a TCP address or the path of a Unix socket.

Both are written in the same flag. Whatever has the form `host:port` is TCP, anything else is a path:

    127.0.0.1:4150      TCP
    :4150               TCP, all interfaces (empty host)
    [::1%lo0]:80        TCP; an IPv6 host stands in brackets
    /var/run/nsqd.sock  Unix socket

A port may be the name of a service (`localhost:http`).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from emberq.base.printable import quoted

MAX_PORT = 65_535


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


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """What `text` names, by its form alone: nothing is looked up except the name of a service."""
    if not text:
        raise AddressError("the address is empty")
    parts = _split_host_port(text)
    if parts is None:
        return UnixAddress(text)
    host, port = parts
    return TcpAddress(host, _parse_port(port))


def parse_tcp_address(text: str) -> TcpAddress:
    """The same where a Unix socket will not do."""
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
        port = int(text)
        if port > MAX_PORT:
            raise AddressError(f"port {text} is above {MAX_PORT}")
        return port
    try:
        return socket.getservbyname(text, "tcp")
    except OSError as error:
        raise AddressError(f"unknown port {quoted(text)}") from error
