"""The flags that say where nsqd and nsqlookupd are and how to connect to them; the same for every `emberq` subcommand.

    add_nsqd_tcp_flag(parser)       --nsqd-tcp-address     repeatable; 127.0.0.1:4150 if no address at all is given
    add_nsqd_http_flag(parser)      --nsqd-http-address    repeatable; 127.0.0.1:4151, likewise
    add_lookupd_flag(parser)        --lookupd-http-address repeatable; none
    add_security_flags(parser)      --tls and its like, --auth-secret-file

A secret is read from a file, for everybody on the machine can read a command line.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from emberq.base.address import AddressError, parse_address
from emberq.cli.terminal import CommandError

if TYPE_CHECKING:
    import ssl

    from emberq.client.config import ClientConfig

DEFAULT_NSQD_TCP_ADDRESS = "127.0.0.1:4150"
DEFAULT_NSQD_HTTP_ADDRESS = "127.0.0.1:4151"


def add_nsqd_tcp_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag with `nsqd_tcp_addresses`."""
    parser.add_argument(
        "--nsqd-tcp-address",
        action="append",
        default=[],
        type=_address,
        metavar="ADDR",
        help=f"an nsqd, host:port or Unix socket; may be given several times (default {DEFAULT_NSQD_TCP_ADDRESS})",
    )


def add_nsqd_http_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag with `nsqd_http_addresses`."""
    parser.add_argument(
        "--nsqd-http-address",
        action="append",
        default=[],
        type=_address,
        metavar="ADDR",
        help=f"an nsqd's HTTP address; may be given several times (default {DEFAULT_NSQD_HTTP_ADDRESS})",
    )


def add_lookupd_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag as `arguments.lookupd_http_address`, a list."""
    parser.add_argument(
        "--lookupd-http-address",
        action="append",
        default=[],
        metavar="ADDR",
        help="an nsqlookupd to ask for the nsqds that have the topic; may be given several times",
    )


def add_security_flags(parser: argparse.ArgumentParser) -> None:
    """Read the flags with `client_config`."""
    group = parser.add_argument_group("security")
    group.add_argument("--tls", action="store_true", help="encrypt; implied by the other TLS flags")
    group.add_argument("--tls-root-ca-file", type=Path, metavar="FILE", help="whose certificates to believe")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="our own certificate, with --tls-key")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key")
    group.add_argument("--tls-insecure", action="store_true", help="believe any certificate")
    group.add_argument("--auth-secret-file", type=Path, metavar="FILE", help="holds the secret for AUTH")


def nsqd_tcp_addresses(arguments: argparse.Namespace) -> list[str]:
    """Where to connect; empty if nsqlookupd is to be asked instead."""
    return _or_default(arguments, arguments.nsqd_tcp_address, DEFAULT_NSQD_TCP_ADDRESS)


def nsqd_http_addresses(arguments: argparse.Namespace) -> list[str]:
    """The same for HTTP."""
    return _or_default(arguments, arguments.nsqd_http_address, DEFAULT_NSQD_HTTP_ADDRESS)


def _or_default(arguments: argparse.Namespace, given: list[str], default: str) -> list[str]:
    return given or ([] if getattr(arguments, "lookupd_http_address", []) else [default])


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """How to connect; CommandError for a file that cannot be used."""
    from emberq.client.config import ClientConfig

    return ClientConfig(tls=_tls_context(arguments), auth_secret=_secret(arguments.auth_secret_file))


def _secret(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes().strip()
    except OSError as failure:
        raise CommandError(f"--auth-secret-file: {failure}") from failure


def _tls_context(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    files = arguments.tls_root_ca_file, arguments.tls_cert, arguments.tls_key
    if not (arguments.tls or arguments.tls_insecure or any(files)):
        return None
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise CommandError("--tls-cert and --tls-key belong together; one of them is missing")
    import ssl

    try:
        context = ssl.create_default_context(cafile=arguments.tls_root_ca_file)
        if arguments.tls_cert is not None:
            context.load_cert_chain(arguments.tls_cert, arguments.tls_key)
    except OSError as failure:  # ssl.SSLError is one
        raise CommandError(f"TLS: {failure}", hint="The files must be PEM, the key without a passphrase.") from failure
    if arguments.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _address(text: str) -> str:
    try:
        parse_address(text)
    except AddressError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from wrong
    return text
