"""IDENTIFY: every field, its limits, and the answer to the byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from emberq.wire.error import FatalError
from emberq.wire.negotiation import (
    MAX_NAME_CHARACTERS,
    Agreement,
    ConnectionSettings,
    IdentifyRequest,
    ServerLimits,
    negotiate,
    parse_request,
)

SERVER = ServerLimits(version="1.3.0")
FRESH = ConnectionSettings(
    client_id="10.0.0.1",
    hostname="10.0.0.1",
    heartbeat_interval_ms=30_000,
    output_buffer_timeout_ms=250,
    msg_timeout_ms=60_000,
)


def identify(body: bytes, current: ConnectionSettings = FRESH, limits: ServerLimits = SERVER) -> Agreement:
    return negotiate(parse_request(body), current, limits)


def negotiated(asked: Mapping[str, Any], limits: ServerLimits = SERVER) -> dict[str, Any]:
    """The answer to a client that asks for these fields and negotiates."""
    outcome = identify(json.dumps({"feature_negotiation": True, **asked}).encode(), limits=limits)
    answer: dict[str, Any] = json.loads(outcome.answer)
    return answer


def refusal_of(body: bytes, limits: ServerLimits = SERVER) -> bytes:
    with pytest.raises(FatalError) as refusal:
        identify(body, limits=limits)
    return refusal.value.data


# The answer.


@pytest.mark.conformance(18, 20)
@pytest.mark.parametrize("body", [b"{}", b"null", b' \t\r\n{ "x" : 1 } ', b'{"feature_negotiation":false}'])
def test_without_feature_negotiation_the_answer_is_ok(body: bytes) -> None:
    assert identify(body).answer == b"OK"


@pytest.mark.conformance(19)
def test_the_negotiated_answer_is_this_to_the_byte() -> None:
    assert identify(b'{"feature_negotiation":true}').answer == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,'
        b'"auth_required":false,"output_buffer_size":16384,"output_buffer_timeout":250,"topology_region":"",'
        b'"topology_zone":""}'
    )


@pytest.mark.conformance(40)
def test_the_answer_tells_what_the_server_is_set_to() -> None:
    limits = ServerLimits(
        version="9",
        max_rdy_count=50,
        max_msg_timeout_ms=120_000,
        max_deflate_level=4,
        auth_required=True,
        topology_region="eu",
        topology_zone="b",
    )
    told = negotiated({"topology_region": "us", "topology_zone": "a"}, limits)
    assert told["version"] == "9"
    assert told["max_rdy_count"] == 50
    assert told["max_msg_timeout"] == 120_000
    assert (told["deflate_level"], told["max_deflate_level"]) == (4, 4)
    assert told["auth_required"] is True
    assert (told["topology_region"], told["topology_zone"]) == ("eu", "b")


def test_the_limits_of_sizes_are_told_where_they_are_known() -> None:
    told = negotiated({}, ServerLimits(version="9", max_msg_size=1000, max_body_size=2000))
    assert (told["max_msg_size"], told["max_body_size"]) == (1000, 2000)


@pytest.mark.conformance(45)
def test_names_that_are_not_given_become_empty() -> None:
    settings = identify(b'{"user_agent":"me/1"}').settings
    assert (settings.client_id, settings.hostname, settings.user_agent) == ("", "", "me/1")


def test_names_are_kept_as_given() -> None:
    body = '{"client_id":"é\\u00e9","hostname":"h","topology_region":"r","topology_zone":"😀"}'.encode()
    settings = identify(body).settings
    assert (settings.client_id, settings.hostname) == ("éé", "h")
    assert (settings.topology_region, settings.topology_zone) == ("r", "😀")


def test_a_server_name_that_is_not_utf_8_does_not_spoil_the_answer() -> None:
    assert negotiated({}, replace(SERVER, topology_zone="b\udcff"))["version"] == "1.3.0"


# Numbers and their limits.


@pytest.mark.conformance(25, 28, 31, 32, 37, 39)
@pytest.mark.parametrize(
    ("field", "name", "wrong"),
    [
        ("heartbeat_interval", "heartbeat interval", [999, 60_001, -2, 1, 2**63 - 1, -(2**63)]),
        ("Heartbeat_Interval", "heartbeat interval", [999]),
        ("output_buffer_timeout", "output buffer timeout", [24, 30_001, -2, 1]),
        ("output_buffer_size", "output buffer size", [63, 65_537, -2, 1]),
        ("sample_rate", "sample rate", [-1, 100]),
        ("msg_timeout", "msg timeout", [999, 900_001, -1]),
    ],
)
def test_a_number_out_of_range_is_refused(field: str, name: str, wrong: list[int]) -> None:
    for number in wrong:
        for negotiation in (False, True):
            body = json.dumps({field: number, "feature_negotiation": negotiation}).encode()
            assert refusal_of(body) == f"E_BAD_BODY IDENTIFY {name} ({number}) is invalid".encode()


@pytest.mark.conformance(38)
@pytest.mark.parametrize(
    ("field", "setting", "right"),
    [
        ("heartbeat_interval", "heartbeat_interval_ms", [1000, 60_000]),
        ("output_buffer_timeout", "output_buffer_timeout_ms", [25, 30_000]),
        ("output_buffer_size", "output_buffer_size", [64, 65_536]),
        ("sample_rate", "sample_rate", [0, 1, 42, 99]),
        ("msg_timeout", "msg_timeout_ms", [1000, 900_000]),
    ],
)
def test_a_number_in_range_is_taken_and_told(field: str, setting: str, right: list[int]) -> None:
    for number in right:
        assert getattr(identify(json.dumps({field: number}).encode()).settings, setting) == number
        if field != "heartbeat_interval":  # which is the one that the answer does not tell
            assert negotiated({field: number})[field] == number


@pytest.mark.parametrize("absent", [0, None, "absent"])
def test_zero_or_nothing_keeps_what_the_connection_has(absent: int | str | None) -> None:
    current = replace(
        FRESH, heartbeat_interval_ms=5000, output_buffer_size=100, output_buffer_timeout_ms=50, msg_timeout_ms=7000
    )
    names = ["heartbeat_interval", "output_buffer_size", "output_buffer_timeout", "msg_timeout"]
    body = json.dumps({} if absent == "absent" else dict.fromkeys(names, absent)).encode()
    assert identify(body, current).settings == replace(current, client_id="", hostname="")


def test_a_sample_rate_that_is_not_given_means_everything() -> None:
    assert identify(b"{}", replace(FRESH, sample_rate=42)).settings.sample_rate == 0


@pytest.mark.conformance(26, 27)
def test_the_longest_heartbeat_interval_is_the_servers() -> None:
    limits = replace(SERVER, max_heartbeat_interval_ms=300_000)
    assert identify(b'{"heartbeat_interval":300000}', limits=limits).settings.heartbeat_interval_ms == 300_000
    refusal = refusal_of(b'{"heartbeat_interval":300001}', limits)
    assert refusal == b"E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid"


@pytest.mark.conformance(29)
def test_minus_one_switches_heartbeats_off() -> None:
    assert identify(b'{"heartbeat_interval":-1}').settings.heartbeat_interval_ms == 0


@pytest.mark.conformance(36)
def test_an_unbuffered_connection_is_never_flushed() -> None:
    for asked in ({"output_buffer_size": -1}, {"output_buffer_size": -1, "output_buffer_timeout": 1000}):
        told = negotiated(asked)
        assert (told["output_buffer_size"], told["output_buffer_timeout"]) == (1, 0)


def test_a_wrong_flush_timeout_is_refused_even_where_nothing_is_buffered() -> None:
    refusal = refusal_of(b'{"output_buffer_size":-1,"output_buffer_timeout":7}')
    assert refusal == b"E_BAD_BODY IDENTIFY output buffer timeout (7) is invalid"


def test_minus_one_switches_the_periodic_flush_off() -> None:
    told = negotiated({"output_buffer_timeout": -1})
    assert (told["output_buffer_size"], told["output_buffer_timeout"]) == (16_384, 0)


@pytest.mark.conformance(33, 34, 35)
def test_a_connection_may_negotiate_again_and_again() -> None:
    limits = replace(SERVER, max_output_buffer_size=512 * 1024, max_output_buffer_timeout_ms=1000)
    settings, told = FRESH, []
    for size, timeout_ms in [(524_288, 1000), (-1, -1), (0, 0)]:
        request = IdentifyRequest(feature_negotiation=True, output_buffer_size=size, output_buffer_timeout=timeout_ms)
        settings = negotiate(request, settings, limits).settings
        told.append((settings.output_buffer_size, settings.output_buffer_timeout_ms))
    assert told == [(524_288, 1000), (1, 0), (1, 0)]
    assert refusal_of(b'{"output_buffer_size":524289}', limits) == (
        b"E_BAD_BODY IDENTIFY output buffer size (524289) is invalid"
    )
    assert refusal_of(b'{"output_buffer_timeout":1001}', limits) == (
        b"E_BAD_BODY IDENTIFY output buffer timeout (1001) is invalid"
    )


def test_the_first_wrong_field_in_the_order_of_the_protocol_is_reported() -> None:
    wrong = {"msg_timeout": 1, "sample_rate": 100, "output_buffer_size": 1, "output_buffer_timeout": 1}
    wrong["heartbeat_interval"] = 1
    reported = []
    while wrong:
        text = refusal_of(json.dumps(wrong).encode()).decode()
        [field] = [field for field in wrong if f" {field.replace('_', ' ')} (" in text]
        reported.append(field)
        del wrong[field]
    assert reported == [
        "heartbeat_interval",
        "output_buffer_timeout",
        "output_buffer_size",
        "sample_rate",
        "msg_timeout",
    ]


# Upgrades.


@pytest.mark.conformance(43)
@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize("feature", ["tls_v1", "snappy", "deflate"])
def test_an_upgrade_needs_both_sides(feature: str, *, offered: bool) -> None:
    limits = replace(SERVER, tls=offered, snappy=offered, deflate=offered)
    body = json.dumps({"feature_negotiation": True, feature: True}).encode()
    outcome = identify(body, limits=limits)
    assert json.loads(outcome.answer)[feature] is offered
    upgrades = {"tls_v1": outcome.tls, "snappy": outcome.snappy, "deflate": outcome.deflate_level > 0}
    assert upgrades == dict.fromkeys(upgrades, False) | {feature: offered}


@pytest.mark.conformance(44)
def test_tls_is_not_offered_unless_the_server_is_set_up_for_it() -> None:
    assert not negotiated({"tls_v1": True})["tls_v1"]


def test_nothing_is_upgraded_without_feature_negotiation() -> None:
    outcome = identify(b'{"tls_v1":true,"snappy":true,"deflate":true}', limits=replace(SERVER, tls=True))
    assert (outcome.answer, outcome.tls, outcome.snappy, outcome.deflate_level) == (b"OK", False, False, 0)


@pytest.mark.conformance(41)
def test_two_compressions_at_once_are_refused() -> None:
    refusal = refusal_of(b'{"feature_negotiation":true,"deflate":true,"snappy":true}')
    assert refusal == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"


def test_of_two_compressions_the_one_that_is_offered_is_used() -> None:
    body = b'{"feature_negotiation":true,"deflate":true,"snappy":true,"tls_v1":true}'
    outcome = identify(body, limits=replace(SERVER, deflate=False, tls=True))
    assert (outcome.tls, outcome.snappy, outcome.deflate_level) == (True, True, 0)


@pytest.mark.conformance(42)
@pytest.mark.parametrize(
    ("asked", "most", "told"),
    [
        ({"deflate": True}, 6, 6),
        ({"deflate": True, "deflate_level": 9}, 6, 6),
        ({"deflate": True, "deflate_level": 9}, 9, 9),
        ({"deflate": True, "deflate_level": 2}, 6, 2),
        ({"deflate": True, "deflate_level": 1}, 6, 1),
        ({"deflate": True, "deflate_level": 0}, 6, 6),
        ({"deflate": True, "deflate_level": -3}, 6, 6),
        ({"deflate": True}, 3, 3),
        ({"deflate_level": 2}, 6, 6),
        ({}, 3, 3),
    ],
)
def test_the_deflate_level_is_capped_and_always_told(asked: dict[str, Any], most: int, told: int) -> None:
    limits = replace(SERVER, max_deflate_level=most)
    outcome = identify(json.dumps({"feature_negotiation": True, **asked}).encode(), limits=limits)
    answer = json.loads(outcome.answer)
    assert (answer["deflate"], answer["deflate_level"], answer["max_deflate_level"]) == ("deflate" in asked, told, most)
    assert outcome.deflate_level == (told if "deflate" in asked else 0)


# Numbered publishes, which NSQ does not know.

PRODUCER = "5f0c0000000000000000000000000abc"


def test_a_producer_that_asks_to_number_its_publishes_may() -> None:
    outcome = identify(json.dumps({"feature_negotiation": True, "emberq_producer_id": PRODUCER.upper()}).encode())
    assert json.loads(outcome.answer)["emberq_idempotent"] is True
    assert outcome.settings.producer_id == bytes.fromhex(PRODUCER)


def test_a_client_that_does_not_ask_is_not_told() -> None:
    outcome = identify(b'{"feature_negotiation":true}')
    assert b"emberq" not in outcome.answer
    assert outcome.settings.producer_id == b""


def test_without_feature_negotiation_nothing_can_be_agreed_on() -> None:
    outcome = identify(json.dumps({"emberq_producer_id": PRODUCER}).encode())
    assert outcome.answer == b"OK"
    assert outcome.settings.producer_id == b""


def test_a_producer_id_lasts_until_there_is_another() -> None:
    current = replace(FRESH, producer_id=b"x" * 16)
    assert identify(b'{"feature_negotiation":true}', current).settings.producer_id == b"x" * 16


@pytest.mark.parametrize("wrong", ["5f0c", PRODUCER + "0", PRODUCER[:-1] + "g", "0" * 32, " " * 32])
def test_a_wrong_producer_id_is_refused(wrong: str) -> None:
    body = json.dumps({"feature_negotiation": True, "emberq_producer_id": wrong}).encode()
    assert refusal_of(body) == b"E_BAD_BODY IDENTIFY emberq_producer_id is invalid"


def test_a_producer_id_is_text() -> None:
    body = b'{"feature_negotiation":true,"emberq_producer_id":7}'
    assert refusal_of(body) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


# Names.


@pytest.mark.parametrize("name", ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"])
def test_a_long_name_is_cut(name: str) -> None:
    whole, cut = "é" * MAX_NAME_CHARACTERS, "é" * MAX_NAME_CHARACTERS + "x" * 100_000
    for asked in (whole, cut):
        settings = identify(json.dumps({name: asked}).encode()).settings
        assert getattr(settings, name) == whole
