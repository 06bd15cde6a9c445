"""How the `emberq` subcommands that look at a cluster reach it: their flags, and what is made of them."""

from __future__ import annotations

import argparse

from emberq.base.clock import NS_PER_SECOND
from emberq.base.http_query import HttpClient
from emberq.cli.connection_flags import (
    add_lookupd_flag,
    add_nsqd_http_flag,
    add_security_flags,
    client_config,
    nsqd_http_addresses,
)
from emberq.cli.terminal import CommandError
from emberq.cluster.topology import Addresses
from emberq.cluster.upstream import Upstreams

CONNECT_TIMEOUT_NS = 2 * NS_PER_SECOND
REQUEST_TIMEOUT_NS = 5 * NS_PER_SECOND

HINT = "Is nsqd running? `emberq up` starts one; --nsqd-http-address and --lookupd-http-address say where to look."
"""For a cluster that does not answer."""


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Read them with `addresses` and `upstreams`."""
    add_nsqd_http_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser)


def addresses(arguments: argparse.Namespace) -> Addresses:
    """Whom to ask; CommandError for both kinds at once."""
    if arguments.lookupd_http_address and arguments.nsqd_http_address:
        raise CommandError("use --nsqd-http-address or --lookupd-http-address not both")
    return Addresses(
        lookupds=tuple(arguments.lookupd_http_address),
        nsqds=tuple(nsqd_http_addresses(arguments)),
    )


def upstreams(arguments: argparse.Namespace) -> Upstreams:
    """How to ask them; CommandError for a file that cannot be used."""
    security = client_config(arguments)
    http = HttpClient(connect_timeout_ns=CONNECT_TIMEOUT_NS, request_timeout_ns=REQUEST_TIMEOUT_NS, tls=security.tls)
    return Upstreams(http, secret=security.auth_secret)
