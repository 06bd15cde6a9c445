"""Limits on what waits in a topic: from the flag to what publishers, /stats and /metrics tell."""

from __future__ import annotations

import re

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.settings import OptionsError
from emberq.broker.limit import TopicLimits, WhenFull
from emberq.nsqd.options import NsqdOptions, topic_limits
from emberq.wire import command
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import RESPONSE, Frame


def test_the_first_pattern_that_fits_a_topic_counts() -> None:
    limits_of = topic_limits(
        NsqdOptions(
            topic_limit=(
                "orders.eu:max-depth=10:when-full=drop-oldest",
                "orders.*:max-depth=1_000:max-bytes=0x1000",
                "*#ephemeral:ttl=1m30s",
                "audit:journal-max-bytes=5",
                "shard-?:max-depth=7",
            )
        )
    )
    assert limits_of("orders.eu") == TopicLimits(max_depth=10, when_full=WhenFull.DROP_OLDEST)
    assert limits_of("orders.us") == TopicLimits(max_depth=1000, max_bytes=4096)
    assert limits_of("tail#ephemeral") == TopicLimits(ttl_ns=90 * NS_PER_SECOND)
    assert limits_of("audit") == TopicLimits(journal_max_bytes=5)
    assert limits_of("shard-1") == TopicLimits(max_depth=7)
    assert limits_of("shard-10") is None
    assert limits_of("order") is None
    assert topic_limits(NsqdOptions())("orders") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders", "it takes a pattern and limits"),
        (":ttl=1h", "it takes a pattern and limits"),
        ("orders:when-full=refuse", "it takes a pattern and limits"),
        ("orders:ttl=1h:when-full=refuse", "when-full needs max-depth or max-bytes"),
        ("orders:ttl=1h:ttl=2h", "ttl stands there twice"),
        ("orders:depth=5", "there are max-depth, max-bytes, when-full, ttl and journal-max-bytes"),
        ("orders:max-depth=-1", "it has to be more than 0"),
        ("orders:ttl=0s", "it has to be more than 0"),
        ("orders:max-bytes=1GB", "parse error"),
        ("orders:max-depth=5:when-full=panic", "refuse"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_at_the_start(text: str, reason: str) -> None:
    with pytest.raises(OptionsError, match=f"--topic-limit {re.escape(repr(text))}.*{reason}"):
        NsqdOptions(topic_limit=(text,)).validated()


@pytest.mark.nsqd(topic_limit=("full.*:max-depth=3",))
def test_publishers_to_a_full_topic_are_told_so(nsqd: NsqdHarness) -> None:
    http = HttpClient(nsqd.http_address)
    client = nsqd.connect()
    client.send(command.pub("full.t", b"1") + command.mpub("full.t", [b"2", b"3"]) + command.pub("full.t", b"4"))
    assert client.read_frame() == Frame(RESPONSE, b"OK")
    assert client.read_frame() == Frame(RESPONSE, b"OK")
    client.expect_fatal("E_PUB_FAILED PUB failed full.t is full: no more than 3 messages may wait")
    for verb, line in (
        ("MPUB", command.mpub("full.t", [b"x", b"y"])),
        ("DPUB", command.dpub("full.t", b"x", defer_ms=100)),
    ):
        client = nsqd.connect()
        client.send(line)
        client.expect_fatal(f"E_{verb}_FAILED {verb} failed full.t is full: no more than 3 messages may wait")
    reason = {"message": "TOPIC_FULL", "topic": "full.t", "reason": "no more than 3 messages may wait"}
    for target in ("/pub?topic=full.t", "/pub?topic=full.t&defer=100", "/mpub?topic=full.t"):
        answer = http.post(target, b"x")
        assert (answer.status, answer.json()) == (429, reason)
    assert http.post("/pub?topic=other", b"x").status == 200
    (shown,) = http.get("/stats?format=json&topic=full.t").json()["topics"]
    assert (shown["depth"], shown["message_count"], shown["refused_count"]) == (3, 3, 7)
    assert 'nsqd_topic_refused_total{topic="full.t"} 7' in http.get("/metrics").text
    consumer = nsqd.consumer("full.t", "c", rdy=3)
    for message in consumer.read_messages(3):
        consumer.fin(message)
    nsqd.settle()
    assert http.post("/pub?topic=full.t", b"x").status == 200


@pytest.mark.nsqd(topic_limit=("short:max-depth=2:when-full=drop-oldest", "old:ttl=10s"))
def test_what_is_dropped_and_what_is_too_old_can_be_seen(nsqd: NsqdHarness) -> None:
    http = HttpClient(nsqd.http_address)
    nsqd.create_channel("short", "c")
    nsqd.create_channel("old", "c")
    client = nsqd.connect()
    client.mpub("short", [b"1", b"2", b"3"])
    client.mpub("old", [b"1", b"2"])
    nsqd.advance(ms=10_001)
    nsqd.settle()
    topics = {topic["topic_name"]: topic for topic in http.get("/stats?format=json").json()["topics"]}
    (short,), (old,) = topics["short"]["channels"], topics["old"]["channels"]
    assert (short["depth"], short["dropped_count"], "expired_count" in short) == (2, 1, False)
    assert (old["depth"], old["expired_count"], "dropped_count" in old) == (0, 2, False)
    metrics = http.get("/metrics").text
    assert 'nsqd_channel_dropped_total{topic="short",channel="c"} 1' in metrics
    assert 'nsqd_channel_expired_total{topic="old",channel="c"} 2' in metrics
