"""Addresses, certificates and secrets on the command line."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

import pytest

from emberq.cli.argument import (
    add_lookupd_flag,
    add_nsqd_http_flag,
    add_nsqd_tcp_flag,
    add_security_flags,
    client_config,
    nsqd_http_addresses,
    nsqd_tcp_addresses,
)
from emberq.cli.terminal import CommandError, UsageError, command_parser


def parsed(*words: str) -> argparse.Namespace:
    parser = command_parser("emberq try", "Try it.")
    add_nsqd_tcp_flag(parser)
    add_nsqd_http_flag(parser)
    add_lookupd_flag(parser)
    add_security_flags(parser)
    return parser.read(words)


def test_without_an_address_it_is_the_nsqd_of_this_machine() -> None:
    assert nsqd_tcp_addresses(parsed()) == ["127.0.0.1:4150"]
    assert nsqd_http_addresses(parsed()) == ["127.0.0.1:4151"]


def test_several_addresses_may_be_given() -> None:
    arguments = parsed("--nsqd-tcp-address", "a:1", "--nsqd-tcp-address=/run/nsqd.sock", "--nsqd-http-address=a:2")
    assert nsqd_tcp_addresses(arguments) == ["a:1", "/run/nsqd.sock"]
    assert nsqd_http_addresses(arguments) == ["a:2"]


def test_whoever_asks_nsqlookupd_does_not_mean_this_machine() -> None:
    assert nsqd_tcp_addresses(parsed("--lookupd-http-address=l:4161")) == []


def test_an_address_that_cannot_be_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="port 99999 is above 65535"):
        parsed("--nsqd-tcp-address=a:99999")


def test_connections_are_plain_unless_asked_for() -> None:
    config = client_config(parsed())
    assert config.tls is None
    assert config.auth_secret == b""


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    assert client_config(parsed(f"--auth-secret-file={path}")).auth_secret == b"s3cret"
    with pytest.raises(CommandError, match="No such file"):
        client_config(parsed(f"--auth-secret-file={path}.no"))


def test_tls_believes_nobody_without_a_reason() -> None:
    context = client_config(parsed("--tls")).tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    context = client_config(parsed("--tls-insecure")).tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE


def test_unusable_certificates_are_told(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("not a certificate")
    with pytest.raises(CommandError, match="TLS: ") as told:
        client_config(parsed(f"--tls-root-ca-file={path}"))
    assert "PEM" in told.value.hint
    with pytest.raises(CommandError, match="belong together"):
        client_config(parsed(f"--tls-cert={path}"))
