"""Requests that carry the number of a batch: stored once, and refused where the number cannot be trusted."""

from __future__ import annotations

import json

import pytest

from emberq.http.message import HttpError
from emberq.nsqd.api.publish import producer_of
from emberq.wire.parameter import ProducerSequence
from tests.nsqd.api.rig import request
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient

pytestmark = pytest.mark.nsqd(journal=True)

PRODUCER = "5f0c0000000000000000000000000abc"


def post(nsqd: NsqdHarness, target: str, body: bytes, **headers: str) -> Answer:
    named = {f"X-Emberq-{name.capitalize()}": value for name, value in headers.items()}
    return HttpClient(nsqd.http_address).request("POST", target, body, headers=named)


def bodies(nsqd: NsqdHarness) -> list[str]:
    answer = HttpClient(nsqd.http_address).get("/topic/peek?topic=t&offset=0&count=100")
    return [message["body"] for message in json.loads(answer.body)["messages"]]


@pytest.mark.parametrize(
    ("target", "body", "stored"),
    [
        ("/pub?topic=t", b"a", ["a"]),
        ("/pub?topic=t&defer=1000", b"a", ["a"]),
        ("/mpub?topic=t", b"a\nb\n", ["a", "b"]),
        ("/mpub?topic=t&binary=true", b"\0\0\0\x01\0\0\0\x01a", ["a"]),
    ],
)
def test_a_request_sent_again_is_confirmed_and_stored_once(
    nsqd: NsqdHarness, target: str, body: bytes, stored: list[str]
) -> None:
    for _ in range(3):
        answer = post(nsqd, target, body, producer=PRODUCER, sequence="1")
        assert (answer.status, answer.body) == (200, b"OK")
    assert bodies(nsqd) == stored
    nsqd.restart()
    assert post(nsqd, target, body, producer=PRODUCER.upper(), sequence="1").status == 200
    assert bodies(nsqd) == stored
    assert post(nsqd, target, body, producer=PRODUCER, sequence="2").status == 200
    assert bodies(nsqd) == stored * 2


def test_plain_publishes_to_the_same_target_are_not_mixed_up_with_numbered_ones(nsqd: NsqdHarness) -> None:
    for _ in range(2):
        assert post(nsqd, "/pub?topic=t", b"plain").status == 200
        assert post(nsqd, "/pub?topic=t", b"numbered", producer=PRODUCER, sequence="1").status == 200
    assert bodies(nsqd) == ["plain", "numbered", "plain"]


@pytest.mark.nsqd(journal=False)
def test_a_classic_topic_has_no_memory_of_numbers(nsqd: NsqdHarness) -> None:
    for _ in range(2):
        assert post(nsqd, "/pub?topic=t", b"a", producer=PRODUCER, sequence="1").status == 200
    assert nsqd.topic("t").message_count == 2


@pytest.mark.parametrize("target", ["/pub?topic=t", "/mpub?topic=t"])
@pytest.mark.parametrize(
    "headers",
    [
        {"producer": PRODUCER},
        {"sequence": "1"},
        {"producer": PRODUCER, "sequence": "x"},
        {"producer": PRODUCER, "sequence": "-1"},
        {"producer": PRODUCER, "sequence": ""},
        {"producer": PRODUCER, "sequence": "9223372036854775808"},
        {"producer": PRODUCER[1:], "sequence": "1"},
        {"producer": "0" * 32, "sequence": "1"},
        {"producer": "é" * 32, "sequence": "1"},
    ],
)
def test_half_a_name_or_a_wrong_one_is_refused_and_no_topic_is_made(
    nsqd: NsqdHarness, target: str, headers: dict[str, str]
) -> None:
    assert post(nsqd, target, b"a", **headers).error == (400, "INVALID_PRODUCER")
    assert not nsqd.has_topic("t")


def test_headers_are_read_as_they_are() -> None:
    headers = {b"x-emberq-producer": PRODUCER.encode(), b"x-emberq-sequence": b"7"}
    assert producer_of(request(headers=headers)) == ProducerSequence(bytes.fromhex(PRODUCER), 7)
    assert producer_of(request()) is None
    with pytest.raises(HttpError, match="INVALID_PRODUCER"):
        producer_of(request(headers={b"x-emberq-sequence": b"7"}))
