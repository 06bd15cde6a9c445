"""POST /pub and POST /mpub over a socket (rows 166-178)."""

from __future__ import annotations

import struct

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import mpub_body


@pytest.fixture
def small_nsqd(start_nsqd: StartNsqd) -> NsqdHarness:
    """An nsqd that takes messages of 100 bytes and bodies of 1000."""
    return start_nsqd(max_msg_size=100, max_body_size=1000)


@pytest.fixture
def small_http(small_nsqd: NsqdHarness) -> HttpClient:
    return HttpClient(small_nsqd.http_address)


def bodies_in(nsqd: NsqdHarness, topic: str, count: int) -> list[bytes]:
    """The messages of a topic, as a consumer gets them."""
    consumer = nsqd.consumer(topic, "c", rdy=count + 1)
    return [message.body for message in consumer.messages_until_now()]


@pytest.mark.conformance(166)
def test_a_message_is_taken(nsqd: NsqdHarness, http: HttpClient) -> None:
    answer = http.post("/pub?topic=t", b"hello")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert nsqd.topic("t").depth == 1
    assert bodies_in(nsqd, "t", 1) == [b"hello"]


@pytest.mark.conformance(166)
def test_a_message_may_hold_any_bytes(nsqd: NsqdHarness, http: HttpClient) -> None:
    body = bytes(range(256)) * 4
    assert http.post("/pub?topic=t%23ephemeral", body).text == "OK"
    assert bodies_in(nsqd, "t#ephemeral", 1) == [body]


@pytest.mark.conformance(167)
def test_an_empty_message_is_refused(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_topic("t")
    assert http.post("/pub?topic=t").error == (400, "MSG_EMPTY")
    assert nsqd.topic("t").depth == 0


@pytest.mark.conformance(168)
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    ("query", "complaint"),
    [("", "MISSING_ARG_TOPIC"), ("?topic=a$", "INVALID_TOPIC"), ("?topic=", "INVALID_TOPIC")],
)
def test_a_topic_is_needed(http: HttpClient, path: str, query: str, complaint: str) -> None:
    assert http.post(path + query, b"x").error == (400, complaint)


@pytest.mark.conformance(168)
def test_a_form_is_no_place_for_the_topic(http: HttpClient) -> None:
    assert http.post("/pub", b"topic=t").error == (400, "MISSING_ARG_TOPIC")


@pytest.mark.conformance(169)
def test_a_message_above_the_limit_is_refused(small_nsqd: NsqdHarness, small_http: HttpClient) -> None:
    assert small_http.post("/pub?topic=t", b"x" * 101).error == (413, "MSG_TOO_BIG")
    assert small_http.post("/pub?topic=t", [b"x" * 100, b"x"]).error == (413, "MSG_TOO_BIG")
    assert not small_nsqd.has_topic("t")
    assert small_http.post("/pub?topic=t", b"x" * 100).text == "OK"
    assert small_http.post("/pub?topic=t", [b"x" * 99, b"x"]).text == "OK"
    assert small_nsqd.topic("t").depth == 2


@pytest.mark.conformance(169)
def test_a_message_as_large_as_the_default_limit_is_taken(nsqd: NsqdHarness, http: HttpClient) -> None:
    body = b"x" * 1_048_576
    assert http.post("/pub?topic=t", body).text == "OK"
    assert bodies_in(nsqd, "t", 1) == [body]


@pytest.mark.conformance(170)
def test_a_deferred_message_waits_in_the_channel(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    assert http.post("/pub?topic=t&defer=1000", b"later").text == "OK"
    assert (nsqd.channel("t", "c").deferred_count, nsqd.channel("t", "c").depth) == (1, 0)
    nsqd.advance(ms=1000)
    assert bodies_in(nsqd, "t", 1) == [b"later"]


@pytest.mark.conformance(171)
@pytest.mark.parametrize("defer", ["x", "-1", "3600001", ""])
def test_a_deferral_that_cannot_be_is_refused(http: HttpClient, defer: str) -> None:
    assert http.post(f"/pub?topic=t&defer={defer}", b"x").error == (400, "INVALID_DEFER")


@pytest.mark.conformance(171)
@pytest.mark.parametrize("defer", ["0", "3600000", "%2B5"])
def test_a_deferral_within_the_limit_is_taken(http: HttpClient, defer: str) -> None:
    assert http.post(f"/pub?topic=t&defer={defer}", b"x").text == "OK"


@pytest.mark.conformance(172)
@pytest.mark.parametrize("query", ["topic=t;defer=1", "topic=t%zz", "topic=t&x=%", "%zz"])
@pytest.mark.parametrize(
    "path",
    [
        "/pub",
        "/mpub",
        "/topic/create",
        "/topic/delete",
        "/topic/empty",
        "/topic/pause",
        "/topic/unpause",
        "/channel/create",
        "/channel/delete",
        "/channel/empty",
        "/channel/pause",
        "/channel/unpause",
    ],
)
def test_a_malformed_query_is_refused(http: HttpClient, path: str, query: str) -> None:
    assert http.post(f"{path}?{query}", b"x").error == (400, "INVALID_REQUEST")


@pytest.mark.conformance(173)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_each_line_of_a_batch_is_a_message(nsqd: NsqdHarness, http: HttpClient, end: bytes) -> None:
    assert http.post("/mpub?topic=t", b"one\ntwo\nthree\nfour" + end).text == "OK"
    assert nsqd.topic("t").depth == 4
    assert bodies_in(nsqd, "t", 4) == [b"one", b"two", b"three", b"four"]


@pytest.mark.conformance(174)
@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_a_batch_of_nothing_is_fine(nsqd: NsqdHarness, http: HttpClient, body: bytes) -> None:
    assert http.post("/mpub?topic=t", body).text == "OK"
    assert (nsqd.topic("t").depth, nsqd.topic("t").message_count) == (0, 0)


@pytest.mark.conformance(175)
def test_empty_lines_are_skipped_and_carriage_returns_kept(nsqd: NsqdHarness, http: HttpClient) -> None:
    assert http.post("/mpub?topic=t", b"a\nb\r\n\nc").text == "OK"
    assert bodies_in(nsqd, "t", 3) == [b"a", b"b\r", b"c"]


@pytest.mark.parametrize(("body", "complaint"), [(b"x" * 101, "MSG_TOO_BIG"), (b"x\n" * 500 + b"x", "BODY_TOO_BIG")])
def test_a_batch_above_the_limits_is_refused(
    small_nsqd: NsqdHarness, small_http: HttpClient, body: bytes, complaint: str
) -> None:
    small_nsqd.create_topic("t")
    assert small_http.post("/mpub?topic=t", body).error == (413, complaint)
    assert small_http.post("/mpub?topic=t", [body]).error == (413, complaint)
    assert small_nsqd.topic("t").depth == 0


@pytest.mark.conformance(176)
@pytest.mark.parametrize("word", ["true", "1", "anything", ""])
def test_a_binary_batch_holds_records(nsqd: NsqdHarness, http: HttpClient, word: str) -> None:
    bodies = [b"one", b"two\n", b"\x00", b"four", b"five" * 100]
    assert http.post(f"/mpub?topic=t&binary={word}", mpub_body(bodies)).text == "OK"
    assert nsqd.topic("t").depth == 5
    assert bodies_in(nsqd, "t", 5) == bodies


@pytest.mark.conformance(177)
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (mpub_body([b"one", b""]), "BAD_MESSAGE"),
        (b"", "BAD_BODY"),
        (struct.pack(">i", 0), "BAD_BODY"),
        (mpub_body([b"one", b"two"])[:-1], "BAD_MESSAGE"),
        (mpub_body([b"x" * 101]), "BAD_MESSAGE"),
    ],
)
def test_a_binary_batch_that_makes_no_sense_is_refused_in_whole(
    small_nsqd: NsqdHarness, small_http: HttpClient, body: bytes, complaint: str
) -> None:
    assert small_http.post("/mpub?topic=t&binary=1", body).error == (413, complaint)
    assert small_nsqd.topic("t").message_count == 0


@pytest.mark.conformance(178)
@pytest.mark.parametrize("word", ["0", "false"])
def test_binary_can_be_turned_off(nsqd: NsqdHarness, http: HttpClient, word: str) -> None:
    assert http.post(f"/mpub?topic=t&binary={word}", b"one\ntwo").text == "OK"
    assert bodies_in(nsqd, "t", 2) == [b"one", b"two"]
