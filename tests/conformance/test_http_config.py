"""GET and PUT /config/<option> over a socket (rows 196-199)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from emberq.base.log import ROOT
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient

LOOKUPD_ADDRESSES = "/config/nsqlookupd_tcp_addresses"


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Puts the log level of the process back."""
    logger = logging.getLogger(ROOT)
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.mark.conformance(196)
def test_a_fresh_nsqd_knows_no_nsqlookupd(http: HttpClient) -> None:
    answer = http.get(LOOKUPD_ADDRESSES)
    assert (answer.status, answer.text) == (200, "[]")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.conformance(197)
def test_nsqlookupds_can_be_changed(nsqd: NsqdHarness, http: HttpClient) -> None:
    addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    answer = http.put(LOOKUPD_ADDRESSES, json.dumps(addresses).encode())
    assert (answer.status, answer.json()) == (200, addresses)
    assert http.get(LOOKUPD_ADDRESSES).json() == addresses
    assert nsqd.call(lambda: nsqd.nsqd.lookupd_tcp_addresses) == tuple(addresses)
    assert http.put(LOOKUPD_ADDRESSES, b'"127.0.0.1:1"').error == (400, "INVALID_VALUE")


@pytest.mark.conformance(198)
def test_the_log_level_can_be_changed(http: HttpClient) -> None:
    answer = http.put("/config/log_level", b"fatal")
    assert (answer.status, answer.text) == (200, "5")
    assert logging.getLogger(ROOT).level == logging.CRITICAL
    assert http.put("/config/log_level", b"bad").error == (400, "INVALID_VALUE")
    assert http.put("/config/log_level", b"").error == (413, "INVALID_VALUE")
    assert http.get("/config/log_level").text == "5"


@pytest.mark.conformance(198)
@pytest.mark.nsqd(max_msg_size=100)
def test_a_value_above_the_limit_is_refused(http: HttpClient) -> None:
    assert http.put("/config/log_level", b"x" * 101).error == (413, "INVALID_VALUE")


@pytest.mark.conformance(199)
def test_other_options_can_only_be_read(nsqd: NsqdHarness, http: HttpClient) -> None:
    assert http.put("/config/tcp_address", b"127.0.0.1:1").error == (400, "INVALID_OPTION")
    assert http.get("/config/tcp_address").text == nsqd.options.tcp_address
    assert http.get("/config/msg_timeout").text == "60000000000"
    assert http.get("/config/none").error == (400, "INVALID_OPTION")
