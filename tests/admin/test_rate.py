"""Rates, from two looks at the cluster."""

from __future__ import annotations

from emberq.admin.rate import Meter, RateBook, Rates
from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.aggregate import total_topics
from emberq.cluster.producer import Producer
from emberq.cluster.stats import TopicStats
from emberq.cluster.stats_document import StatsReader
from tests.cluster.rig import channel_entry, topic_entry


def look(*message_counts: int, channel: dict[str, int] | None = None) -> tuple[TopicStats, ...]:
    """A topic on as many nodes as there are counts, each with a channel."""
    parts: list[TopicStats] = []
    for number, count in enumerate(message_counts):
        producer = Producer(broadcast_address=f"n{number}", hostname="h", tcp_port=1, http_port=2, version="1.3.0")
        entry = topic_entry("t", channel_entry("c", message_count=count, **(channel or {})), message_count=count)
        parts += StatsReader(producer).topics({"topics": [entry]})
    return total_topics(parts)


def rates(before: tuple[TopicStats, ...], after: tuple[TopicStats, ...]) -> RateBook:
    meter = Meter()
    assert meter.measure(before, now_ns=NS_PER_SECOND).total() is None
    return meter.measure(after, now_ns=3 * NS_PER_SECOND)


def test_a_rate_is_a_difference_by_time() -> None:
    book = rates(look(10, 100), look(20, 104))
    assert book.of("t") == Rates(came=7.0, left=7.0)
    assert book.of("t", node="n0:2") == Rates(came=5.0, left=5.0)
    assert book.of("t", "c", node="n1:2") == Rates(came=2.0, left=2.0)
    assert book.total() == Rates(came=7.0, left=7.0)
    assert book.total(node="n0:2") == Rates(came=5.0, left=5.0)


def test_what_waits_has_not_left() -> None:
    book = rates(look(10), look(20, channel={"depth": 6, "in_flight_count": 2}))
    assert book.of("t", "c") == Rates(came=5.0, left=1.0)


def test_a_node_that_is_new_or_began_anew_makes_no_leap() -> None:
    book = rates(look(1000), look(10, 500))
    assert book.of("t") is None
    assert book.total() is None


def test_what_was_there_only_once_has_no_rate() -> None:
    assert rates((), look(5)).of("t") is None
    assert rates(look(5), ()).of("t") is None
