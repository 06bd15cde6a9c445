"""nsqlookupd has every flag of NSQ's, with its default and config key, and refuses what cannot work."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from emberq.base.log import LogFormat, LogLevel
from emberq.base.settings import OptionsError
from emberq.base.tls import TlsVersion
from emberq.lookupd.options import SETTINGS, LookupdOptions

NO_KEY = ""

CONTRACT: dict[str, tuple[str, str]] = {
    # flag: (default as a user writes it, config key)
    "version": ("false", NO_KEY),
    "config": ("", NO_KEY),
    "verbose": ("false", NO_KEY),
    "log-level": ("info", "log_level"),
    "log-prefix": ('"[nsqlookupd] "', "log_prefix"),
    "tcp-address": ("0.0.0.0:4160", "tcp_address"),
    "http-address": ("0.0.0.0:4161", "http_address"),
    "broadcast-address": ("the hostname", "broadcast_address"),
    "inactive-producer-timeout": ("5m0s", "inactive_producer_timeout"),
    "tombstone-lifetime": ("45s", "tombstone_lifetime"),
}

OUR_OWN = {
    "check-config",
    "http-allowed-host",
    "http-secret-file",
    "log-format",
    "max-registrations",
    "tls-cert",
    "tls-client-auth-policy",
    "tls-key",
    "tls-min-version",
    "tls-root-ca-file",
    "unused-topic-lifetime",
}
"""Flags that NSQ does not have."""


def options_from(*argv: str) -> LookupdOptions:
    return LookupdOptions(**SETTINGS.load(argv).options)


def test_flags_defaults_and_keys_are_those_of_nsq() -> None:
    ours = {setting.flag: (setting.shown_default, setting.key) for setting in SETTINGS if setting.flag not in OUR_OWN}
    assert ours == CONTRACT


def test_every_flag_that_nsq_does_not_have_is_known_to_be_ours() -> None:
    assert {setting.flag for setting in SETTINGS} - CONTRACT.keys() == OUR_OWN


def test_every_field_is_a_setting() -> None:
    assert [field.name for field in dataclasses.fields(LookupdOptions)] == [
        setting.attribute for setting in SETTINGS.options
    ]


def test_the_broadcast_address_is_the_hostname() -> None:
    assert LookupdOptions().broadcast_address == socket.gethostname()


def test_a_file_sets_everything_and_flags_win_over_it(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'log_level = "debug"\n'
        'log_prefix = "[l] "\n'
        'log_format = "json"\n'
        'tcp_address = "127.0.0.1:1"\n'
        'http_address = "127.0.0.1:2"\n'
        'broadcast_address = "from.file"\n'
        'inactive_producer_timeout = "1m"\n'
        "tombstone_lifetime = 1500\n"
        'http_allowed_hosts = ["lookup.example"]\n'
        'http_secret_file = "secrets"\n'
        "max_registrations = 7\n"
        'unused_topic_lifetime = "1h"\n'
        'tls_cert = "cert.pem"\n'
        'tls_key = "key.pem"\n'
        'tls_root_ca_file = "ca.pem"\n'
        'tls_client_auth_policy = "require-verify"\n'
        'tls_min_version = "tls1.3"\n'
    )
    assert options_from(f"--config={config}", "--tombstone-lifetime=2s") == LookupdOptions(
        log_level=LogLevel.DEBUG,
        log_prefix="[l] ",
        log_format=LogFormat.JSON,
        tcp_address="127.0.0.1:1",
        http_address="127.0.0.1:2",
        broadcast_address="from.file",
        inactive_producer_timeout_ns=60_000_000_000,
        tombstone_lifetime_ns=2_000_000_000,
        http_allowed_host=("lookup.example",),
        http_secret_file="secrets",
        max_registrations=7,
        unused_topic_lifetime_ns=3_600_000_000_000,
        tls_cert="cert.pem",
        tls_key="key.pem",
        tls_root_ca_file="ca.pem",
        tls_client_auth_policy="require-verify",
        tls_min_version=TlsVersion.TLS_1_3,
    )


@pytest.mark.conformance(253)
def test_the_log_level_can_be_set_in_the_file(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text('log_level = "debug"\n')
    assert options_from(f"--config={config}").log_level is LogLevel.DEBUG


@pytest.mark.conformance(258)
@pytest.mark.parametrize("address", ["127.0.0.1:80", "test:80", "[::1%lo0]:80"])
def test_both_listeners_take_tcp_addresses(address: str) -> None:
    assert LookupdOptions(tcp_address=address, http_address=address).validated()


@pytest.mark.conformance(258)
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            LookupdOptions(tcp_address="/var/run/nsqlookupd.sock"),
            'listen (/var/run/nsqlookupd.sock) failed - "/var/run/nsqlookupd.sock" is not of the form host:port',
        ),
        (LookupdOptions(http_address="/x"), 'listen (/x) failed - "/x" is not of the form host:port'),
        (LookupdOptions(http_address=""), "listen () failed - the address is empty"),
        (LookupdOptions(tcp_address="127.0.0.1:70000"), "listen (127.0.0.1:70000) failed - port 70000 is above 65535"),
        (LookupdOptions(tombstone_lifetime_ns=-1_000_000_000), "--tombstone-lifetime must be at least 0s, not -1s"),
        (LookupdOptions(tls_cert="c"), "--tls-cert and --tls-key must be given together"),
        (
            LookupdOptions(tls_client_auth_policy="require-verify"),
            "cannot ask clients for certificates without --tls-cert and --tls-key",
        ),
        (
            LookupdOptions(tls_cert="c", tls_key="k", tls_client_auth_policy="verify"),
            '--tls-client-auth-policy must be require or require-verify, not "verify"',
        ),
        (
            LookupdOptions(tls_cert="c", tls_key="k", tls_root_ca_file="ca"),
            "--tls-root-ca-file has no effect without --tls-client-auth-policy=require-verify",
        ),
    ],
)
def test_what_cannot_work_is_refused(options: LookupdOptions, complaint: str) -> None:
    with pytest.raises(OptionsError) as caught:
        options.validated()
    assert str(caught.value) == complaint
