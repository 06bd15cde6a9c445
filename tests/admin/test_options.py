"""nsqadmin's settings."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.admin.options import SETTINGS, AdminOptions
from emberq.base.settings import OptionsError

LOOKUPD: dict[str, Any] = {"lookupd_http_address": ("127.0.0.1:4161",)}

FLAGS = {
    "version": "",
    "config": "",
    "verbose": "",
    "hash-password": "",
    "log-level": "log_level",
    "log-prefix": "log_prefix",
    "http-address": "http_address",
    "base-path": "base_path",
    "dev-static-dir": "dev_static_dir",
    "graphite-url": "graphite_url",
    "proxy-graphite": "proxy_graphite",
    "statsd-counter-format": "statsd_counter_format",
    "statsd-gauge-format": "statsd_gauge_format",
    "statsd-prefix": "statsd_prefix",
    "statsd-interval": "statsd_interval",
    "notification-http-endpoint": "notification_http_endpoint",
    "http-client-connect-timeout": "http_client_connect_timeout",
    "http-client-request-timeout": "http_client_request_timeout",
    "http-client-tls-insecure-skip-verify": "http_client_tls_insecure_skip_verify",
    "http-client-tls-root-ca-file": "http_client_tls_root_ca_file",
    "http-client-tls-cert": "http_client_tls_cert",
    "http-client-tls-key": "http_client_tls_key",
    "allow-config-from-cidr": "allow_config_from_cidr",
    "acl-http-header": "acl_http_header",
    "admin-user": "admin_users",
    "lookupd-http-address": "nsqlookupd_http_addresses",
    "nsqd-http-address": "nsqd_http_addresses",
}
"""The reference's flags and their keys in a config file."""


def test_every_flag_of_the_reference_is_there_with_its_key() -> None:
    keys = {setting.flag: setting.key for setting in SETTINGS}
    assert {flag: keys[flag] for flag in FLAGS} == FLAGS


def test_the_defaults_are_the_references() -> None:
    shown = {setting.flag: setting.shown_default for setting in SETTINGS}
    assert shown["http-address"] == "0.0.0.0:4171"
    assert shown["base-path"] == "/"
    assert shown["statsd-counter-format"] == "stats.counters.%s.count"
    assert shown["statsd-gauge-format"] == "stats.gauges.%s"
    assert shown["statsd-prefix"] == "nsq.%s"
    assert shown["statsd-interval"] == "1m0s"
    assert (shown["http-client-connect-timeout"], shown["http-client-request-timeout"]) == ("2s", "5s")
    assert shown["allow-config-from-cidr"] == "127.0.0.1/8"
    assert shown["acl-http-header"] == "X-Forwarded-User"


@pytest.mark.conformance(230)
def test_somebody_has_to_be_asked() -> None:
    with pytest.raises(OptionsError, match=r"^--nsqd-http-address or --lookupd-http-address required$"):
        AdminOptions().validated()


@pytest.mark.conformance(231)
def test_not_both_kinds_can_be_asked() -> None:
    with pytest.raises(OptionsError, match=r"^use --nsqd-http-address or --lookupd-http-address not both$"):
        AdminOptions(**LOOKUPD, nsqd_http_address=("127.0.0.1:4151",)).validated()


@pytest.mark.parametrize(
    ("given", "used"),
    [("", "/"), ("/", "/"), ("nsq/", "/nsq"), ("/nsq", "/nsq"), ("//a//b/../c/", "/a/c"), ("/..", "/"), (".", "/")],
)
def test_the_base_path_is_made_clean(given: str, used: str) -> None:
    assert AdminOptions(**LOOKUPD, base_path=given).validated().base_path == used


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"http_client_tls_cert": "c"}, "--http-client-tls-key must be specified with --http-client-tls-cert"),
        ({"http_client_tls_key": "k"}, "--http-client-tls-cert must be specified with --http-client-tls-key"),
        ({"allow_config_from_cidr": "x"}, "failed to parse --allow-config-from-cidr (x) - invalid CIDR address: x"),
        ({"trusted_proxy_cidr": ("x",)}, "failed to parse --trusted-proxy-cidr (x) - invalid CIDR address: x"),
        ({"forwarding_proxy_cidr": ("x",)}, "failed to parse --forwarding-proxy-cidr (x) - invalid CIDR address: x"),
        ({"nsqd_secret_host": ("q1", "x/y")}, "failed to parse --nsqd-secret-host (x/y) - invalid CIDR address: x/y"),
        ({"graphite_url": "me:secret@host"}, "failed to parse --graphite-url (***@host)"),
        ({"graphite_url": "http://host:port"}, "failed to parse --graphite-url (http://host:port)"),
        ({"notification_http_endpoint": "/x"}, "failed to parse --notification-http-endpoint (/x)"),
        ({"proxy_graphite": True}, "--graphite-url must be specified with --proxy-graphite"),
        ({"http_address": "/tmp/socket"}, 'listen (/tmp/socket) failed - "/tmp/socket" is not of the form host:port'),
        ({"live_interval_ns": 1}, "--live-interval must be at least 100ms, not 1ns"),
        (
            {"user_file": "f", "admin_user": ("ada",)},
            "use --user-file or --admin-user not both: the file says who is an admin",
        ),
    ],
)
def test_what_cannot_work_is_said(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError) as refusal:
        AdminOptions(**LOOKUPD, **options).validated()
    assert str(refusal.value) == text


def test_a_history_on_disk_needs_one_in_memory() -> None:
    with pytest.raises(OptionsError, match=r"^--history-duration must be above 0 with --history-path$"):
        AdminOptions(**LOOKUPD, history_path="/tmp/x", history_duration_ns=0).validated()
    AdminOptions(**LOOKUPD, history_path="/tmp/x").validated()
