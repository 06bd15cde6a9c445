"""Requests that carry the number of a batch: stored once, and refused where the number cannot be trusted."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Sequence

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


# A batch that is refused while others are on their way.


def request_bytes(sequence: int, body: bytes, target: str) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Emberq-Producer: {PRODUCER}\r\nX-Emberq-Sequence: {sequence}\r\n\r\n".encode() + body


def sent_at_once(nsqd: NsqdHarness, requests: bytes) -> bytes:
    """Everything that nsqd answers until it closes the connection."""
    address = nsqd.http_address
    assert isinstance(address, tuple)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(requests)
        answers = b""
        while piece := connection.recv(65536):
            answers += piece
    return answers


def refuse_large_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is nearly full."""
    write = os.pwritev

    def pwritev(fd: int, parts: Sequence[bytes], position: int) -> int:
        if sum(map(len, parts)) > 10_000:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(fd, parts, position)

    monkeypatch.setattr(os, "pwritev", pwritev)


@pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=t&defer=1000", "/mpub?topic=t"])
def test_what_is_sent_behind_a_refused_batch_is_not_stored(
    nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    large = b"7" * 20_000
    with monkeypatch.context() as full:
        refuse_large_writes(full)
        pipeline = request_bytes(7, large, target) + request_bytes(8, b"8", target)
        answers = sent_at_once(nsqd, pipeline)
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 503 ")
    assert b"Connection: close" in answers
    for number, body in ((7, large), (8, b"8")):
        assert post(nsqd, target, body, producer=PRODUCER, sequence=str(number)).status == 200
    assert [body[0] for body in bodies(nsqd)] == ["7", "8"]


def test_a_refused_batch_does_not_count_as_stored_because_a_later_one_is(
    nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"7" * 20_000
    with monkeypatch.context() as full:
        refuse_large_writes(full)
        assert post(nsqd, "/pub?topic=t", large, producer=PRODUCER, sequence="7").status == 503
        assert post(nsqd, "/pub?topic=t", b"8", producer=PRODUCER, sequence="8").status == 200
    assert post(nsqd, "/pub?topic=t", large, producer=PRODUCER, sequence="7").status == 503
    assert post(nsqd, "/pub?topic=t", b"8", producer=PRODUCER, sequence="8").status == 200
    assert bodies(nsqd) == ["8"]


def test_a_refused_batch_is_stored_when_it_is_sent_again_before_a_later_one(
    nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"7" * 20_000
    with monkeypatch.context() as full:
        refuse_large_writes(full)
        assert post(nsqd, "/pub?topic=t", large, producer=PRODUCER, sequence="7").status == 503
    for _ in range(2):
        assert post(nsqd, "/pub?topic=t", large, producer=PRODUCER, sequence="7").status == 200
    assert len(bodies(nsqd)) == 1


def test_a_refused_request_without_a_number_leaves_the_connection_open(
    nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = HttpClient(nsqd.http_address)
    with monkeypatch.context() as full:
        refuse_large_writes(full)
        refused = http.post("/pub?topic=t", b"7" * 20_000)
    assert refused.status == 503
    assert "close" not in str(refused.headers).lower()


def test_what_is_sent_behind_a_refused_batch_over_tcp_is_not_stored_either(
    nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"7" * 20_000
    with monkeypatch.context() as full:
        refuse_large_writes(full)
        client = nsqd.connect()
        client.identify(emberq_producer_id=PRODUCER)
        sent = b"".join(
            b"PUB t %d\n" % number + struct.pack(">i", len(body)) + body
            for number, body in ((6, b"6"), (7, large), (8, b"8"))
        )
        client.send(sent)
        frames = client.frames_until_eof()
    assert [frame.data[:12] for frame in frames] == [b"OK", b"E_PUB_FAILED"]
    for number, body in ((7, large), (8, b"8")):
        assert post(nsqd, "/pub?topic=t", body, producer=PRODUCER, sequence=str(number)).status == 200
    assert [body[0] for body in bodies(nsqd)] == ["6", "7", "8"]
