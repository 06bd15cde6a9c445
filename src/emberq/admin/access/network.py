"""Ranges of addresses in CIDR notation, and whether an address lies in one.

As in the reference `127.0.0.1/8` is the range 127.0.0.0/8: what stands behind the prefix does not matter. An IPv4
address that comes through an IPv6 socket (`::ffff:127.0.0.1`) is what it says.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

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
