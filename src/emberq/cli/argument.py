"""The flags that several `emberq` subcommands share, and what is made of them.

    topic_name, positive_count ...   kinds of values for argparse; a mistake says what was expected
    add_nsqd_tcp_flag(parser)        --nsqd-tcp-address     repeatable; 127.0.0.1:4150 if no address at all is given
    add_nsqd_http_flag(parser)       --nsqd-http-address    repeatable; 127.0.0.1:4151, likewise
    add_lookupd_flag(parser)         --lookupd-http-address repeatable; none
    add_security_flags(parser)       --tls and its like, --auth-secret-file, --lookupd-secret-file
    add_cluster_flags(parser)        for subcommands that look at a cluster
    add_consumer_flags(parser)       for subcommands that consume a channel

A secret is read from a file or from the environment, because every user of the machine can read a command line. What
the flags leave open comes from the environment, or from a named context: see `context`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.base.address import AddressError, parse_address
from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import SettingError
from emberq.base.settings import LOOKUPD_SECRET_VARIABLE, SECRET_VARIABLE, read_secret
from emberq.base.text import parse_duration, quoted
from emberq.cli.context import COMMAND_LINE, add_context_flag, secret_variable
from emberq.cli.terminal import CommandError, CommandParser, Terminal
from emberq.wire.parameter import is_valid_name

if TYPE_CHECKING:
    import ssl

    from emberq.client import Consumer
    from emberq.client.config import ClientConfig
    from emberq.cluster.topology import ClusterAddresses
    from emberq.cluster.upstream import Upstreams


# Values.


def topic_name(text: str) -> str:
    """The name of a topic."""
    return _name(text, "topic")


def channel_name(text: str) -> str:
    """The name of a channel."""
    return _name(text, "channel")


def _name(text: str, kind: str) -> str:
    if not is_valid_name(text):
        rule = "1 to 64 of . _ - a-z A-Z 0-9, perhaps with #ephemeral behind"
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not the name of a {kind}: {rule}")
    return text


def positive_count(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number above 0")
    return int(text)


def duration_s(text: str) -> float:
    """A duration such as 1m30s, in seconds. A number without a unit is seconds."""
    try:
        seconds = parse_duration(f"{text}s" if text.replace(".", "", 1).isdigit() else text) / NS_PER_SECOND
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a duration; write 500ms, 90s or 1h30m") from wrong
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{quoted(text)} lies in the past")
    return seconds


# Addresses and security.

DEFAULT_NSQD_TCP_ADDRESS = "127.0.0.1:4150"
DEFAULT_NSQD_HTTP_ADDRESS = "127.0.0.1:4151"


def add_nsqd_tcp_flag(parser: CommandParser) -> None:
    """Read the flag with `nsqd_tcp_addresses`."""
    what = f"an nsqd, host:port or Unix socket; may be given several times (default {DEFAULT_NSQD_TCP_ADDRESS})"
    _add_addresses(parser, "--nsqd-tcp-address", what, kind=_address)


def add_nsqd_http_flag(parser: CommandParser) -> None:
    """Read the flag with `nsqd_http_addresses`."""
    what = f"an nsqd's HTTP address; may be given several times (default {DEFAULT_NSQD_HTTP_ADDRESS})"
    _add_addresses(parser, "--nsqd-http-address", what, kind=_address)


def add_lookupd_flag(parser: CommandParser) -> None:
    """Read the flag as `arguments.lookupd_http_address`, a list."""
    what = "an nsqlookupd to ask for the nsqds that have the topic; may be given several times"
    _add_addresses(parser, "--lookupd-http-address", what, kind=str)


def _add_addresses(parser: CommandParser, flag: str, what: str, *, kind: Callable[[str], str]) -> None:
    parser.add_argument(flag, action="append", default=[], type=kind, metavar="ADDR", help=what)
    add_context_flag(parser)


def add_security_flags(parser: CommandParser, *, asks_lookupd: bool = False) -> None:
    """Read the flags with `client_config`; and with `lookupd_secret`, if the subcommand `asks_lookupd`."""
    group = parser.add_argument_group("security")
    group.add_argument("--tls", action="store_true", help="connect with TLS; implied by the other TLS flags")
    group.add_argument("--tls-root-ca-file", type=Path, metavar="FILE", help="certificates of the authorities to trust")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="client certificate, with --tls-key")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")
    group.add_argument("--tls-insecure", action="store_true", help="do not verify the server's certificate")
    group.add_argument(
        "--auth-secret-file",
        type=Path,
        metavar="FILE",
        help=f"file with the secret for nsqds; else it is in EMBERQ_AUTH_SECRET or {SECRET_VARIABLE}",
    )
    if asks_lookupd:
        group.add_argument(
            "--lookupd-secret-file",
            type=Path,
            metavar="FILE",
            help="file with the secret for nsqlookupds; else it is in EMBERQ_LOOKUPD_SECRET or "
            f"{LOOKUPD_SECRET_VARIABLE}, or is that for nsqds",
        )


def nsqd_tcp_addresses(arguments: argparse.Namespace) -> list[str]:
    """The TCP addresses of nsqds; empty if nsqlookupd is to be asked instead."""
    is_found = not arguments.nsqd_tcp_address and bool(getattr(arguments, "lookupd_http_address", []))
    return [] if is_found else publishing_addresses(arguments)


def nsqd_http_addresses(arguments: argparse.Namespace) -> list[str]:
    """The HTTP addresses of nsqds; empty if nsqlookupd is to be asked instead."""
    is_found = not arguments.nsqd_http_address and bool(getattr(arguments, "lookupd_http_address", []))
    return [] if is_found else _or_default(arguments, "nsqd_http_address", DEFAULT_NSQD_HTTP_ADDRESS)


def publishing_addresses(arguments: argparse.Namespace) -> list[str]:
    """The TCP addresses of nsqds, for those who publish: nsqlookupd is not asked where to. CommandError."""
    return _or_default(arguments, "nsqd_tcp_address", DEFAULT_NSQD_TCP_ADDRESS)


def _or_default(arguments: argparse.Namespace, key: str, default: str) -> list[str]:
    """The addresses, or this machine's; but never this machine's for a cluster that is known by other addresses."""
    given: list[str] = getattr(arguments, key)
    if not given and arguments.address_place not in ("", COMMAND_LINE):
        flag = f"--{key.replace('_', '-')}"
        raise CommandError(f"{arguments.address_place} has no {key}, which is needed here", hint=f"Or add {flag}.")
    return given or [default]


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """How to connect. CommandError if a file cannot be used."""
    from emberq.client.config import ClientConfig

    return ClientConfig(tls=_tls_context(arguments), auth_secret=auth_secret(arguments))


def auth_secret(arguments: argparse.Namespace) -> bytes:
    """The secret for nsqds; empty if there is none. CommandError if the file cannot be used."""
    return _secret(arguments, "auth_secret_file")


def lookupd_secret(arguments: argparse.Namespace) -> bytes:
    """The secret for nsqlookupds; empty if there is none. CommandError if the file cannot be used."""
    return _secret(arguments, "lookupd_secret_file")


def _secret(arguments: argparse.Namespace, key: str) -> bytes:
    path: Path | None = getattr(arguments, key)
    flag, variable = key.replace("_", "-"), secret_variable(key, os.environ)
    try:
        return read_secret("" if path is None else str(path), flag=flag, variable=variable)
    except SettingError as failure:
        raise CommandError(str(failure)) from failure


def _tls_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    files = arguments.tls_root_ca_file, arguments.tls_cert, arguments.tls_key
    if not (arguments.tls or arguments.tls_insecure or any(files)):
        return None
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise CommandError("--tls-cert and --tls-key belong together; one of them is missing")
    from emberq.base.tls import TlsFileError, client_context

    try:
        return client_context(
            ca_file=arguments.tls_root_ca_file,
            cert_file=arguments.tls_cert,
            key_file=arguments.tls_key,
            verify=not arguments.tls_insecure,
        )
    except TlsFileError as failure:
        raise CommandError(f"TLS: {failure}", hint="The files must be PEM, the key without a passphrase.") from failure


def _address(text: str) -> str:
    try:
        parse_address(text)
    except AddressError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from wrong
    return text


# Subcommands that look at a cluster.

CONNECT_TIMEOUT_NS = 2 * NS_PER_SECOND
REQUEST_TIMEOUT_NS = 5 * NS_PER_SECOND


def add_cluster_flags(parser: CommandParser) -> None:
    """Read the flags with `addresses` and `upstreams`."""
    add_nsqd_http_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser, asks_lookupd=True)


def addresses(arguments: argparse.Namespace) -> ClusterAddresses:
    """The addresses to ask. CommandError if both kinds are given."""
    from emberq.cluster.topology import ClusterAddresses

    nsqds = nsqd_http_addresses(arguments)
    if arguments.lookupd_http_address and nsqds:
        if arguments.address_place == COMMAND_LINE:
            raise CommandError("use --nsqd-http-address or --lookupd-http-address not both")
        nsqds = []  # a context may name both, and nsqlookupd knows all of them
    return ClusterAddresses(lookupds=tuple(arguments.lookupd_http_address), nsqds=tuple(nsqds))


def upstreams(arguments: argparse.Namespace) -> Upstreams:
    """The client that asks them. CommandError if a file cannot be used."""
    from emberq.cluster.upstream import Credentials, Upstreams
    from emberq.http.client import HttpClient

    security = client_config(arguments)
    http = HttpClient(connect_timeout_ns=CONNECT_TIMEOUT_NS, request_timeout_ns=REQUEST_TIMEOUT_NS, tls=security.tls)
    credentials = Credentials(
        nsqd=security.auth_secret,
        lookupd=lookupd_secret(arguments) or security.auth_secret,
        lookupds=arguments.lookupd_http_address,
    )
    return Upstreams(http, credentials=credentials)


async def topic_nsqds(arguments: argparse.Namespace, ask: Upstreams, terminal: Terminal) -> list[str]:
    """The HTTP addresses of the nsqds that the flags name, or that have `arguments.topic`; ClusterError, CommandError.

    nsqlookupds that do not answer are noted.
    """
    from emberq.cluster.topology import Topology

    asked = addresses(arguments)
    if not asked.lookupds:
        return list(asked.nsqds)
    producers = await Topology(ask, asked).topic_producers(arguments.topic)
    for warning in producers.warnings:
        terminal.note(warning)
    if not producers.value:
        raise CommandError(f"no nsqd has a topic {arguments.topic} at present")
    return [producer.http_address for producer in producers.value]


# Subcommands that consume a channel.

MAX_IN_FLIGHT = 200
"""As many messages as a command handles in a moment."""

CONSUMER_HINT = "--nsqd-tcp-address or --lookupd-http-address says where to look."
"""The hint when a channel cannot be reached."""


def add_consumer_flags(parser: CommandParser) -> None:
    """Read the flags with `client_config` and `make_consumer`."""
    add_nsqd_tcp_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser, asks_lookupd=True)


def make_consumer(
    arguments: argparse.Namespace,
    config: ClientConfig,
    *,
    topic: str,
    channel: str,
    max_in_flight: int,
    auto_touch: bool = False,
) -> Consumer:
    """A consumer that gives up no message, however often it was tried: a command should not decide that."""
    from emberq.client import Consumer, ConsumerConfig

    # A context may name nsqds as well, and nsqlookupd knows all of them.
    is_found = arguments.lookupd_http_address and arguments.address_place != COMMAND_LINE
    return Consumer(
        topic,
        channel,
        nsqd_addresses=[] if is_found else nsqd_tcp_addresses(arguments),
        lookupd_addresses=arguments.lookupd_http_address,
        config=ConsumerConfig(
            max_in_flight=max_in_flight,
            max_attempts=0,
            auto_touch=auto_touch,
            lookupd_secret=lookupd_secret(arguments),
        ),
        client_config=config,
    )
