"""GET and PUT /config/<option>: every setting is shown, two can be changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from emberq.base.log import ROOT, LogLevel
from emberq.base.tls import TlsVersion
from emberq.nsqd.api.node import ConfigApi
from emberq.nsqd.options import SETTINGS, TlsRequired
from tests.broker.rig import Rig
from tests.nsqd.api.rig import RigNode, refusal_of, request


@pytest.fixture
def level() -> Iterator[None]:
    """Puts the log level of the process back."""
    logger = logging.getLogger(ROOT)
    before = logger.level
    yield
    logger.setLevel(before)


def shown(api: ConfigApi, option: str) -> str:
    return api.get(request(option=option)).body.decode()


def put(api: ConfigApi, option: str, body: bytes) -> str:
    return api.put(request(option=option, body=body)).body.decode()


@pytest.mark.parametrize("key", sorted(setting.key for setting in SETTINGS.options))
def test_every_key_of_a_config_file_can_be_read(rig: Rig, key: str) -> None:
    api = ConfigApi(RigNode(rig))
    answer = api.get(request(option=key))
    assert answer.status == 200
    if "json" in (answer.content_type or ""):
        json.loads(answer.body)


def test_all_keys_can_be_read_at_once(rig: Rig) -> None:
    api = ConfigApi(RigNode(rig, auth_http_address=("http://user:secret@host/",)))
    every = json.loads(api.get_all(request()).body)
    assert set(every) == {setting.key for setting in SETTINGS.options if setting.key}
    assert every["tcp_address"] == "0.0.0.0:4150"
    assert every["auth_http_addresses"] == ["http://***@host/"]
    assert every["nsqlookupd_tcp_addresses"] == json.loads(shown(api, "nsqlookupd_tcp_addresses"))


@pytest.mark.parametrize(
    ("key", "options", "answer"),
    [
        ("tcp_address", {}, "0.0.0.0:4150"),
        ("log_prefix", {}, "[nsqd] "),
        ("id", {"node_id": 7}, "7"),
        ("mem_queue_size", {}, "10000"),
        ("snappy", {}, "true"),
        ("msg_timeout", {}, "60000000000"),
        ("log_level", {"log_level": LogLevel.WARN}, "3"),
        ("tls_required", {"tls_required": TlsRequired.TCP_HTTPS}, "1"),
        ("tls_min_version", {"tls_min_version": TlsVersion.TLS_1_2}, "771"),
        ("enable_experiment", {"enable_experiment": ("a", "b")}, '["a","b"]'),
        ("e2e_processing_latency_percentiles", {"e2e_processing_latency_percentile": (1.0, 0.99)}, "[1,0.99]"),
        ("statsd_prefix", {}, "nsq.%s"),
    ],
)
def test_values_are_shown_as_nsq_shows_them(rig: Rig, key: str, options: dict[str, Any], answer: str) -> None:
    assert shown(ConfigApi(RigNode(rig, **options)), key) == answer


def test_credentials_of_authorization_servers_are_not_shown(rig: Rig) -> None:
    node = RigNode(rig, auth_http_address=("http://me:secret@auth.example/check?token=abc", "plain.example:4180"))
    assert json.loads(shown(ConfigApi(node), "auth_http_addresses")) == [
        "http://***@auth.example/check?token=***",
        "plain.example:4180",
    ]


@pytest.mark.parametrize("key", ["verbose", "config", "version", "node_id", "lookupd_tcp_address", "_clock", ""])
def test_what_is_no_config_key_is_no_option(rig: Rig, key: str) -> None:
    api = ConfigApi(RigNode(rig))
    assert refusal_of(api.get, request(option=key)) == (400, "INVALID_OPTION")
    assert refusal_of(api.put, request(option=key, body=b"x")) == (400, "INVALID_OPTION")


@pytest.mark.usefixtures("level")
def test_the_log_level_can_be_changed(rig: Rig) -> None:
    node = RigNode(rig)
    api = ConfigApi(node)
    assert put(api, "log_level", b"DeBuG") == shown(api, "log_level") == "1"
    assert logging.getLogger(ROOT).level == logging.DEBUG
    assert node.log_level_changes == 1


def test_nsqlookupds_can_be_changed(rig: Rig) -> None:
    node = RigNode(rig)
    api = ConfigApi(node)
    assert put(api, "nsqlookupd_tcp_addresses", b'["b:1", "a:2"]') == '["b:1","a:2"]'
    assert node.lookupd_tcp_addresses == ("b:1", "a:2")
    assert shown(api, "nsqlookupd_tcp_addresses") == '["b:1","a:2"]'
    assert put(api, "nsqlookupd_tcp_addresses", b"[]") == "[]"


@pytest.mark.parametrize("body", [b"[", b'"a:1"', b"{}", b"null", b"[1]", b'["a:1", null]', b"\xff", b"[" * 100_000])
def test_nsqlookupds_must_be_a_list_of_strings(rig: Rig, body: bytes) -> None:
    node = RigNode(rig)
    refused = refusal_of(ConfigApi(node).put, request(option="nsqlookupd_tcp_addresses", body=body))
    assert refused == (400, "INVALID_VALUE")
    assert node.lookupd_tcp_addresses == ()


@pytest.mark.parametrize("body", [b'"debug"', b"loud", b"debug\n", b"\xff"])
def test_a_log_level_is_a_bare_word(rig: Rig, body: bytes) -> None:
    refused = refusal_of(ConfigApi(RigNode(rig)).put, request(option="log_level", body=body))
    assert refused == (400, "INVALID_VALUE")


def test_an_empty_value_is_seen_before_the_option(rig: Rig) -> None:
    api = ConfigApi(RigNode(rig))
    assert refusal_of(api.put, request(option="nonsense")) == (413, "INVALID_VALUE")
