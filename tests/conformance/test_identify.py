"""IDENTIFY: what a client may ask for and what it gets (rows 18-46)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client

SECOND_NS = 1_000_000_000
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"

NEGOTIATED_BY_DEFAULT = {
    "max_rdy_count": 2500,
    "version": "1.3.0-emberq",
    "max_msg_timeout": 900_000,
    "msg_timeout": 60_000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16_384,
    "output_buffer_timeout": 250,
    "topology_region": "",
    "topology_zone": "",
    "max_msg_size": 1_048_576,
    "max_body_size": 5_242_880,
}


@pytest.mark.conformance(18, 20)
@pytest.mark.parametrize("body", [b"{}", b"null", b'{"client_id":"me"}', b'{"short_id":"a","nobody_knows":[1]}'])
def test_without_feature_negotiation_the_answer_is_ok(client: Client, body: bytes) -> None:
    client.command(b"IDENTIFY", body)
    client.expect_ok()


@pytest.mark.conformance(19)
def test_feature_negotiation_tells_all_values_in_order(client: Client) -> None:
    negotiated = client.identify()
    assert negotiated == NEGOTIATED_BY_DEFAULT
    assert list(negotiated) == list(NEGOTIATED_BY_DEFAULT)


@pytest.mark.nsqd(max_msg_size=1000, max_body_size=2000)
def test_the_limits_of_sizes_are_told_behind_what_nsq_tells(client: Client) -> None:
    told = client.identify()
    assert (told["max_msg_size"], told["max_body_size"]) == (1000, 2000)
    assert list(told)[-2:] == ["max_msg_size", "max_body_size"]


@pytest.mark.conformance(19)
def test_the_negotiated_answer_is_compact(client: Client) -> None:
    client.send_identify(feature_negotiation=True)
    assert client.read_response().startswith(b'{"max_rdy_count":2500,"version":"1.3.0-emberq","max_msg_timeout":')


@pytest.mark.conformance(21)
@pytest.mark.parametrize("size", [0, -1])
def test_a_body_size_below_one_is_refused(client: Client, size: int) -> None:
    client.send(b"IDENTIFY\n" + struct.pack(">i", size))
    client.expect_fatal(f"E_BAD_BODY IDENTIFY invalid body size {size}")


@pytest.mark.conformance(22)
def test_a_body_above_the_limit_is_refused_by_its_size(client: Client) -> None:
    client.send(b"IDENTIFY\n" + struct.pack(">i", 6_000_000))
    client.expect_fatal("E_BAD_BODY IDENTIFY body too big 6000000 > 5242880")


@pytest.mark.conformance(23, 24)
@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'"text"',
        b"{",
        b'{"client_id":1}',
        b'{"feature_negotiation":"yes"}',
        b'{"heartbeat_interval":"1000"}',
        b'{"heartbeat_interval":1000.5}',
        b'{"msg_timeout":true}',
    ],
)
def test_a_body_that_is_not_the_expected_object_is_refused(client: Client, body: bytes) -> None:
    client.command(b"IDENTIFY", body)
    client.expect_fatal(UNDECODABLE)


@pytest.mark.conformance(25)
def test_keys_match_in_any_case(client: Client) -> None:
    client.send_identify(Heartbeat_Interval=999)
    client.expect_fatal("E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid")


@pytest.mark.conformance(26, 27)
@pytest.mark.nsqd(max_heartbeat_interval_ns=300 * SECOND_NS)
def test_the_heartbeat_interval_may_reach_the_servers_maximum_and_no_more(nsqd: NsqdHarness) -> None:
    nsqd.connect().identify(heartbeat_interval=300_000)
    client = nsqd.connect()
    client.send_identify(heartbeat_interval=300_001)
    client.expect_fatal("E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid")


@pytest.mark.conformance(28, 31, 32, 37, 39)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heartbeat_interval", 999),
        ("heartbeat_interval", 60_001),
        ("heartbeat_interval", -2),
        ("output_buffer_size", 63),
        ("output_buffer_size", 65_537),
        ("output_buffer_size", -2),
        ("output_buffer_timeout", 24),
        ("output_buffer_timeout", 30_001),
        ("output_buffer_timeout", -2),
        ("sample_rate", -1),
        ("sample_rate", 100),
        ("msg_timeout", 999),
        ("msg_timeout", 900_001),
        ("msg_timeout", -1),
    ],
)
def test_a_value_out_of_range_is_refused(client: Client, field: str, value: int) -> None:
    client.send_identify(feature_negotiation=True, **{field: value})
    client.expect_fatal(f"E_BAD_BODY IDENTIFY {field.replace('_', ' ')} ({value}) is invalid")


@pytest.mark.conformance(28, 31, 32, 37, 39)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_buffer_size", 64),
        ("output_buffer_size", 65_536),
        ("output_buffer_timeout", 25),
        ("output_buffer_timeout", 30_000),
        ("sample_rate", 99),
        ("msg_timeout", 1_000),
        ("msg_timeout", 900_000),
    ],
)
def test_the_ends_of_a_range_are_granted(client: Client, field: str, value: int) -> None:
    assert client.identify(**{field: value})[field] == value


@pytest.mark.conformance(29)
def test_a_client_without_heartbeats_may_not_subscribe(client: Client) -> None:
    client.identify(heartbeat_interval=-1)
    client.command(b"SUB t c")
    client.expect_fatal("E_INVALID cannot SUB with heartbeats disabled")


@pytest.mark.conformance(30)
def test_a_client_without_heartbeats_has_no_deadline(nsqd: NsqdHarness, client: Client) -> None:
    client.identify(heartbeat_interval=-1)
    nsqd.advance(ms=90_000)
    client.nop()
    assert client.frames_until_now() == []


@pytest.mark.conformance(33, 34, 35)
@pytest.mark.nsqd(max_output_buffer_size=512 * 1024, max_output_buffer_timeout_ns=SECOND_NS)
def test_output_buffering_may_be_negotiated_again_and_again(nsqd: NsqdHarness, client: Client) -> None:
    most = client.identify(output_buffer_size=524_288, output_buffer_timeout=1_000)
    assert (most["output_buffer_size"], most["output_buffer_timeout"]) == (524_288, 1_000)
    none = client.identify(output_buffer_size=-1, output_buffer_timeout=-1)
    assert (none["output_buffer_size"], none["output_buffer_timeout"]) == (1, 0)
    kept = client.identify(output_buffer_size=0, output_buffer_timeout=0)
    assert (kept["output_buffer_size"], kept["output_buffer_timeout"]) == (1, 0)
    client.send_identify(output_buffer_size=524_289)
    client.expect_fatal("E_BAD_BODY IDENTIFY output buffer size (524289) is invalid")
    late = nsqd.connect()
    late.send_identify(output_buffer_timeout=1_001)
    late.expect_fatal("E_BAD_BODY IDENTIFY output buffer timeout (1001) is invalid")


@pytest.mark.conformance(33)
def test_deliveries_follow_the_first_identify(nsqd: NsqdHarness, client: Client) -> None:
    client.identify(msg_timeout=1000)
    assert client.identify(msg_timeout=5000)["msg_timeout"] == 5000
    client.sub("t", "c")
    client.rdy(1)
    nsqd.connect().pub("t", b"hello")
    client.read_message()
    client.rdy(0)
    client.frames_until_now()
    nsqd.advance(ms=1100)
    assert nsqd.channel("t", "c").timeout_count == 1


@pytest.mark.conformance(36)
def test_no_output_buffer_means_no_buffering_time_either(client: Client) -> None:
    negotiated = client.identify(output_buffer_size=-1)
    assert (negotiated["output_buffer_size"], negotiated["output_buffer_timeout"]) == (1, 0)


@pytest.mark.conformance(38)
def test_the_sample_rate_is_granted(client: Client) -> None:
    assert client.identify(sample_rate=42)["sample_rate"] == 42


@pytest.mark.conformance(40)
def test_the_servers_rdy_limit_is_told(start_nsqd: StartNsqd) -> None:
    assert start_nsqd(max_rdy_count=50).connect().identify()["max_rdy_count"] == 50


@pytest.mark.conformance(41)
def test_two_compressions_at_once_are_refused(client: Client) -> None:
    client.send_identify(feature_negotiation=True, deflate=True, snappy=True)
    client.expect_fatal("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


@pytest.mark.conformance(42)
def test_the_deflate_level_is_capped(client: Client) -> None:
    negotiated = client.identify(deflate=True, deflate_level=9)
    assert (negotiated["deflate"], negotiated["deflate_level"]) == (True, 6)


@pytest.mark.conformance(43)
def test_tls_is_declined_by_a_server_without_a_certificate(client: Client) -> None:
    assert client.identify(tls_v1=True)["tls_v1"] is False
    client.pub("t", b"in clear")


@pytest.mark.conformance(44)
@pytest.mark.parametrize("wish", ["tls_v1", "snappy", "deflate"])
def test_without_feature_negotiation_the_stream_stays_plain(client: Client, wish: str) -> None:
    client.send_identify(**{wish: True})
    client.expect_ok()
    client.pub("t", b"in clear")


@pytest.mark.conformance(45)
def test_names_left_out_become_empty(nsqd: NsqdHarness) -> None:
    nsqd.consumer("t", "c", user_agent="judge/1")
    (seen,) = nsqd.channel("t", "c").clients
    assert (seen.client_id, seen.hostname, seen.user_agent) == ("", "", "judge/1")


@pytest.mark.conformance(45)
def test_names_given_are_shown(nsqd: NsqdHarness) -> None:
    nsqd.consumer("t", "c", client_id="me", hostname="here")
    (seen,) = nsqd.channel("t", "c").clients
    assert (seen.client_id, seen.hostname, seen.user_agent) == ("me", "here", "")


@pytest.mark.conformance(46)
def test_identify_comes_before_sub(client: Client) -> None:
    client.sub("t", "c")
    client.send_identify()
    client.expect_fatal("E_INVALID cannot IDENTIFY in current state")


@pytest.mark.parametrize(("sent", "text"), [(b"\x00\x00", "body size"), (b"\x00\x00\x00\x10{", "body")])
def test_a_body_cut_short_is_told_as_such(client: Client, sent: bytes, text: str) -> None:
    client.send(b"IDENTIFY\n" + sent)
    client.half_close()
    client.expect_fatal(f"E_BAD_BODY IDENTIFY failed to read {text}")


def test_the_first_of_several_wrong_fields_is_reported(client: Client) -> None:
    wrong: dict[str, Any] = {"msg_timeout": 1, "sample_rate": 100, "output_buffer_timeout": 1, "output_buffer_size": 1}
    client.send_identify(**wrong)
    client.expect_fatal("E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid")
