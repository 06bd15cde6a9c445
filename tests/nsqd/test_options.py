"""nsqd has every flag of NSQ's, with its default and config key, and refuses what cannot work."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from emberq.base.log import LogFormat, LogLevel
from emberq.nsqd.options import SETTINGS, NsqdOptions, OptionsError, TlsRequired, node_id_of

NO_KEY = ""
THE_SAME = None

CONTRACT: dict[str, tuple[str, str | None]] = {
    # flag: (default as a user writes it, config key)
    "version": ("false", NO_KEY),
    "config": ("", NO_KEY),
    "verbose": ("false", NO_KEY),
    "worker-id": ("false", NO_KEY),
    "log-level": ("info", THE_SAME),
    "log-prefix": ('"[nsqd] "', THE_SAME),
    "node-id": ("made from the hostname", "id"),
    "tcp-address": ("0.0.0.0:4150", THE_SAME),
    "http-address": ("0.0.0.0:4151", THE_SAME),
    "https-address": ("0.0.0.0:4152", THE_SAME),
    "broadcast-address": ("the hostname", THE_SAME),
    "broadcast-tcp-port": ("0", THE_SAME),
    "broadcast-http-port": ("0", THE_SAME),
    "lookupd-tcp-address": ("", "nsqlookupd_tcp_addresses"),
    "auth-http-address": ("", "auth_http_addresses"),
    "auth-http-request-method": ("get", THE_SAME),
    "http-client-connect-timeout": ("2s", THE_SAME),
    "http-client-request-timeout": ("5s", THE_SAME),
    "topology-region": ("", THE_SAME),
    "topology-zone": ("", THE_SAME),
    "enable-experiment": ("", THE_SAME),
    "data-path": ("", THE_SAME),
    "mem-queue-size": ("10000", THE_SAME),
    "max-bytes-per-file": ("104857600", THE_SAME),
    "sync-every": ("2500", THE_SAME),
    "sync-timeout": ("2s", THE_SAME),
    "queue-scan-worker-pool-max": ("4", THE_SAME),
    "queue-scan-selection-count": ("20", THE_SAME),
    "msg-timeout": ("1m0s", THE_SAME),
    "max-msg-timeout": ("15m0s", THE_SAME),
    "max-msg-size": ("1048576", THE_SAME),
    "max-body-size": ("5242880", THE_SAME),
    "max-req-timeout": ("1h0m0s", THE_SAME),
    "max-heartbeat-interval": ("1m0s", THE_SAME),
    "max-rdy-count": ("2500", THE_SAME),
    "max-output-buffer-size": ("65536", THE_SAME),
    "max-output-buffer-timeout": ("30s", THE_SAME),
    "min-output-buffer-timeout": ("25ms", THE_SAME),
    "output-buffer-timeout": ("250ms", THE_SAME),
    "max-channel-consumers": ("0", THE_SAME),
    "statsd-address": ("", THE_SAME),
    "statsd-interval": ("1m0s", THE_SAME),
    "statsd-mem-stats": ("true", THE_SAME),
    "statsd-prefix": ("nsq.%s", THE_SAME),
    "statsd-udp-packet-size": ("508", THE_SAME),
    "statsd-exclude-ephemeral": ("false", THE_SAME),
    "e2e-processing-latency-percentile": ("", "e2e_processing_latency_percentiles"),
    "e2e-processing-latency-window-time": ("10m0s", THE_SAME),
    "tls-cert": ("", THE_SAME),
    "tls-key": ("", THE_SAME),
    "tls-client-auth-policy": ("", THE_SAME),
    "tls-root-ca-file": ("", THE_SAME),
    "tls-required": ("false", THE_SAME),
    "tls-min-version": ("tls1.2", THE_SAME),  # in NSQ it is tls1.0
    "deflate": ("true", THE_SAME),
    "max-deflate-level": ("6", THE_SAME),
    "snappy": ("true", THE_SAME),
}


def load(tmp_path: Path, toml: str, *flags: str) -> NsqdOptions:
    config = tmp_path / "nsqd.cfg"
    config.write_text(toml)
    return NsqdOptions(**SETTINGS.load([f"--config={config}", *flags]).options)


BEYOND_NSQ = {
    "auth-http-api",
    "check-config",
    "journal",
    "journal-retention-bytes",
    "journal-max-bytes",
    "journal-retention-time",
    "journal-segment-bytes",
    "journal-sync",
    "journal-topic",
    "http-allowed-host",
    "http-secret-file",
    "log-format",
    "lookupd-tls",
    "lookupd-tls-root-ca-file",
    "lookupd-secret-file",
    "max-connections",
    "max-connections-per-address",
    "requeue-on-disconnect",
    "mem-queue-bytes",
    "min-free-bytes",
    "topic-limit",
}
"""Flags that are ours alone."""


def test_every_flag_of_nsqs_is_there_with_its_default_and_key() -> None:
    ours = {
        setting.flag: (setting.shown_default, setting.key) for setting in SETTINGS if setting.flag not in BEYOND_NSQ
    }
    same = {flag: flag.replace("-", "_") for flag in CONTRACT}
    assert ours == {
        flag: (default, same[flag] if key is THE_SAME else key) for flag, (default, key) in CONTRACT.items()
    }


def test_what_is_beyond_nsq_changes_nothing_for_those_who_do_not_ask_for_it() -> None:
    options = NsqdOptions()
    assert (options.auth_http_api, options.log_format, options.min_free_bytes) == (False, LogFormat.TEXT, 64 * 2**20)


def test_guarding_the_http_api_needs_somebody_to_ask() -> None:
    with pytest.raises(OptionsError, match="--auth-http-api needs an --auth-http-address"):
        NsqdOptions(auth_http_api=True).validated()


def test_every_setting_says_what_it_means() -> None:
    assert all(setting.meaning for setting in SETTINGS)


def test_defaults_are_valid_and_need_no_arguments() -> None:
    options = NsqdOptions()
    assert options.validated() == options
    assert options.broadcast_address == socket.gethostname()
    assert options.node_id == node_id_of(socket.gethostname())
    assert options.msg_timeout_ns == 60_000_000_000
    assert options.client_timeout_ns == 60_000_000_000


def test_the_node_id_of_a_host_is_the_one_nsq_would_choose() -> None:
    assert node_id_of("vm") == 617


@pytest.mark.conformance(253)
def test_the_log_level_can_come_from_the_config_file(tmp_path: Path) -> None:
    assert load(tmp_path, 'log_level = "debug"').log_level is LogLevel.DEBUG


@pytest.mark.conformance(254)
def test_an_empty_tls_min_version_in_the_config_file_means_the_default(tmp_path: Path) -> None:
    assert load(tmp_path, 'tls_min_version = ""').tls_min_version is NsqdOptions().tls_min_version


def test_a_whole_config_file_is_understood(tmp_path: Path) -> None:
    toml = """
        id = 5
        tcp_address = "127.0.0.1:4150"
        nsqlookupd_tcp_addresses = ["127.0.0.1:4160", "127.0.0.1:4162"]
        auth_http_addresses = "127.0.0.1:4181,http://auth.example/x"
        msg_timeout = "30s"
        sync_timeout = 500
        e2e_processing_latency_percentiles = [0.5, 0.99]
        tls_required = "tcp-https"
        deflate = false
    """
    options = load(tmp_path, toml, "--node-id=6")
    assert options == NsqdOptions(
        node_id=6,
        tcp_address="127.0.0.1:4150",
        lookupd_tcp_address=("127.0.0.1:4160", "127.0.0.1:4162"),
        auth_http_address=("127.0.0.1:4181", "http://auth.example/x"),
        msg_timeout_ns=30_000_000_000,
        sync_timeout_ns=500_000_000,
        e2e_processing_latency_percentile=(0.5, 0.99),
        tls_required=TlsRequired.TCP_HTTPS,
        deflate=False,
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"max_deflate_level": 0}, "--max-deflate-level must be [1,9]"),
        ({"max_deflate_level": 10}, "--max-deflate-level must be [1,9]"),
        ({"node_id": -1}, "--node-id must be [0,1024)"),
        ({"node_id": 1024}, "--node-id must be [0,1024)"),
        (
            {"tls_required": TlsRequired.TCP_HTTPS},
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            {"tls_client_auth_policy": "require"},
            "cannot require TLS client connections without TLS key and cert",
        ),
        ({"auth_http_request_method": "put"}, "--auth-http-request-method must be post or get"),
        ({"e2e_processing_latency_percentile": (0.5, 0.0)}, "invalid E2E processing latency percentile: 0"),
        ({"e2e_processing_latency_percentile": (1.5,)}, "invalid E2E processing latency percentile: 1.5"),
        (
            {"e2e_processing_latency_percentile": (float("nan"),)},
            "invalid E2E processing latency percentile: nan",
        ),
        ({"mem_queue_size": -1}, "--mem-queue-size must be at least 0, not -1"),
        ({"max_msg_size": 0}, "--max-msg-size must be at least 1, not 0"),
        ({"msg_timeout_ns": -1_000_000_000}, "--msg-timeout must be at least 1ms, not -1s"),
        ({"max_req_timeout_ns": -1}, "--max-req-timeout must be at least 0s, not -1ns"),
        ({"broadcast_tcp_port": 65_536}, "--broadcast-tcp-port must be at most 65535, not 65536"),
        ({"tcp_address": ""}, "--tcp-address must not be empty"),
        ({"tcp_address": "a:65536"}, "listen (a:65536) failed - port 65536 is above 65535"),
        ({"http_address": "a:b-c"}, 'listen (a:b-c) failed - unknown port "b-c"'),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionsError) as caught:
        NsqdOptions(**changes).validated()
    assert str(caught.value) == complaint


def test_the_checks_come_in_nsqs_order() -> None:
    options = NsqdOptions(max_deflate_level=0, node_id=-1, auth_http_request_method="x", mem_queue_size=-1)
    with pytest.raises(OptionsError, match="max-deflate-level"):
        options.validated()


@pytest.mark.parametrize(
    "changes",
    [
        {"mem_queue_size": 0},
        {"sync_every": -1},
        {"max_channel_consumers": 0},
        {"http_address": ""},
        {"tcp_address": "/tmp/nsqd.sock"},
        {"auth_http_request_method": "post"},
        {"e2e_processing_latency_percentile": (1.0,)},
        {"tls_cert": "c.pem", "tls_required": TlsRequired.YES},
    ],
)
def test_unusual_options_that_work_are_accepted(changes: dict[str, Any]) -> None:
    NsqdOptions(**changes).validated()


def test_asking_clients_for_certificates_makes_tls_required() -> None:
    options = NsqdOptions(tls_cert="cert.pem", tls_key="key.pem", tls_client_auth_policy="require-verify")
    assert options.validated().tls_required is TlsRequired.YES
    chosen = dataclasses.replace(options, tls_required=TlsRequired.TCP_HTTPS)
    assert chosen.validated().tls_required is TlsRequired.TCP_HTTPS


def test_percentiles_are_kept_from_high_to_low() -> None:
    options = NsqdOptions(e2e_processing_latency_percentile=(0.5, 1.0, 0.99)).validated()
    assert options.e2e_processing_latency_percentile == (1.0, 0.99, 0.5)
