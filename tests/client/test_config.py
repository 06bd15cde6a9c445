"""What a client can ask for, and what is refused before anybody is asked."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from emberq.client.config import ClientConfig
from emberq.client.message import Message
from emberq.client.observer import ObservedChannel, Observer
from emberq.wire.command import identify
from emberq.wire.negotiation import IdentifyRequest, parse_request


def requested(config: ClientConfig) -> IdentifyRequest:
    """What a server reads in the IDENTIFY of a client with this config."""
    return parse_request(identify(config.identify_fields()).partition(b"\n")[2][4:])


class Asynchronous(Observer):
    async def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:  # type: ignore[override]
        pass


def test_the_defaults_are_those_of_the_reference() -> None:
    request = requested(ClientConfig())
    assert request.feature_negotiation
    assert request.heartbeat_interval == 30_000
    assert (request.output_buffer_size, request.output_buffer_timeout) == (16_384, 250)
    assert (request.msg_timeout, request.sample_rate) == (0, 0)
    assert (request.tls_v1, request.snappy, request.deflate) == (False, False, False)
    assert request.user_agent.startswith("emberq/")


def test_the_server_is_told_everything_that_was_configured() -> None:
    config = ClientConfig(
        client_id="me",
        hostname="here.example",
        user_agent="mine/1",
        heartbeat_interval_ms=5_000,
        output_buffer_size=-1,
        output_buffer_timeout_ms=-1,
        msg_timeout_ms=2_000,
        sample_rate=10,
        tls=ssl.create_default_context(),
        deflate=True,
        deflate_level=9,
        topology_region="r",
        topology_zone="z",
    )
    assert requested(config) == IdentifyRequest(
        client_id="me",
        hostname="here.example",
        user_agent="mine/1",
        feature_negotiation=True,
        heartbeat_interval=5_000,
        output_buffer_size=-1,
        output_buffer_timeout=-1,
        msg_timeout=2_000,
        sample_rate=10,
        tls_v1=True,
        deflate=True,
        deflate_level=9,
        topology_region="r",
        topology_zone="z",
    )


def test_a_producer_id_is_told_only_if_there_is_one() -> None:
    assert "emberq_producer_id" not in ClientConfig().identify_fields()
    assert requested(ClientConfig(producer_id=b"\xab" * 16)).emberq_producer_id == "ab" * 16


def test_the_client_id_is_the_hostname_up_to_its_first_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "worker.example.net")
    assert ClientConfig().client_id == "worker"


def test_a_secret_does_not_show() -> None:
    assert "hush" not in repr(ClientConfig(auth_secret=b"hush"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_ms": 999},
        {"heartbeat_interval_ms": 0},
        {"output_buffer_size": 63},
        {"output_buffer_timeout_ms": -2},
        {"msg_timeout_ms": 999},
        {"msg_timeout_ms": -1},
        {"sample_rate": 100},
        {"sample_rate": -1},
        {"deflate_level": 0},
        {"deflate_level": 10},
        {"connect_timeout_s": 0},
        {"request_timeout_s": -1},
        {"max_frame_bytes": 0},
        {"producer_id": b"short"},
    ],
)
def test_a_value_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        ClientConfig(**wrong)


def test_two_kinds_of_compression_at_a_time_are_refused() -> None:
    with pytest.raises(ValueError, match="snappy and deflate"):
        replace(ClientConfig(snappy=True), deflate=True)


@pytest.mark.conformance(263)
def test_an_unknown_option_or_one_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        ClientConfig(no_such_option=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tls is 'lol'"):
        ClientConfig(tls="lol")  # type: ignore[arg-type]


@pytest.mark.conformance(263)
def test_a_minimum_version_of_tls_and_certificates_that_nobody_checks_are_accepted() -> None:
    careless = ssl.create_default_context()
    careless.minimum_version = ssl.TLSVersion.TLSv1_2
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    assert ClientConfig(tls=careless).tls is careless


def test_heartbeats_can_be_switched_off() -> None:
    assert requested(ClientConfig(heartbeat_interval_ms=-1)).heartbeat_interval == -1


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"auth_secret": "s3cret"}, "auth_secret is of type str; it must be bytes; encode it"),
        ({"heartbeat_interval_ms": "5000"}, "heartbeat_interval_ms is '5000'; it must be an int"),
        ({"msg_timeout_ms": 1000.0}, "msg_timeout_ms is 1000.0; it must be an int"),
        ({"sample_rate": True}, "sample_rate is True; it must be an int"),
        ({"snappy": "no"}, "snappy is 'no'; it must be True or False"),
        ({"connect_timeout_s": "5"}, "connect_timeout_s is '5'; it must be a number"),
        ({"connect_timeout_s": timedelta(seconds=5)}, "connect_timeout_s is a timedelta; it must be a number"),
        ({"client_id": 7}, "client_id is 7; it must be a str"),
        ({"observer": Observer}, r"make one: Observer\(\)"),
        ({"observer": object()}, "observer is not"),
        ({"observer": Asynchronous()}, "observer: handled is a coroutine function"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(TypeError, match=match) as refusal:
        ClientConfig(**wrong)
    assert "s3cret" not in str(refusal.value)
