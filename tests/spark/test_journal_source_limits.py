"""How large the batches of a stream are, when they come, and where each topic begins: the reader without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from emberq.base.text import format_moment
from emberq.spark.error import OptionError
from emberq.spark.journal_source import JournalStreamReader
from emberq.spark.option import SourceSettings, Use
from tests.support.journal_nsqd import JournalNsqd

TOPIC = "clicks"
BODY = b"x" * 1000


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def reader(nsqd: JournalNsqd, clock: Clock, *, topic: str = TOPIC, **options: str) -> Iterator[JournalStreamReader]:
    settings = SourceSettings.of({"nsqd": nsqd.http, "topic": topic, **options}, Use.STREAM)
    opened = JournalStreamReader(settings, monotonic_s=clock)
    try:
        yield opened
    finally:
        opened.stop()


def offset(document: dict[str, Any], topic: str = TOPIC) -> int:
    (topics,) = document.values()
    found: int = topics[topic]["offset"]
    return found


def test_a_batch_waits_for_rows_but_not_for_ever(nsqd: JournalNsqd) -> None:
    nsqd.publish(TOPIC, [BODY])
    clock = Clock()
    with reader(nsqd, clock, minRowsPerTrigger="10", maxTriggerDelay="1m") as stream:
        limit = stream.getDefaultReadLimit()
        first = stream.latestOffset(stream.initialOffset(), limit)
        assert offset(first) == 1  # the first one does not wait
        nsqd.publish(TOPIC, [BODY] * 9)
        clock.now_s += 59
        assert stream.latestOffset(first, limit) == first
        clock.now_s += 1
        second = stream.latestOffset(first, limit)
        assert offset(second) == 10
        nsqd.publish(TOPIC, [BODY] * 10)
        third = stream.latestOffset(second, limit)
        assert offset(third) == 20
        nsqd.publish(TOPIC, [BODY])
        assert stream.latestOffset(third, limit) == third
        stream.prepareForTriggerAvailableNow()
        assert offset(stream.latestOffset(third, limit)) == 21  # a query that ends does not wait


def test_a_batch_has_about_so_many_bytes(nsqd: JournalNsqd) -> None:
    nsqd.publish(TOPIC, [BODY] * 100)
    with reader(nsqd, Clock(), maxBytesPerTrigger="30000") as stream:
        limit = stream.getDefaultReadLimit()
        first = stream.latestOffset(stream.initialOffset(), limit)
        assert 25 <= offset(first) <= 30
        assert 50 <= offset(stream.latestOffset(first, limit)) <= 60
    with reader(nsqd, Clock(), maxBytesPerTrigger="30000", maxRowsPerTrigger="5") as stream:
        assert offset(stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())) == 5
    with reader(nsqd, Clock(), maxBytesPerTrigger="1") as stream:
        assert offset(stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())) == 1


def test_each_topic_begins_where_it_is_told(nsqd: JournalNsqd) -> None:
    for topic in ("a", "b", "c"):
        nsqd.publish(topic, [b"early"])
    (message,) = nsqd.get("/topic/peek", topic="a", count=1)["messages"]
    nsqd.publish("a", [b"late"])
    later = format_moment(message["timestamp"] + 1000)
    start = f'{{"a": "{later}", "b": "latest"}}'
    with reader(nsqd, Clock(), topic="a,b,c", startingOffsets=start) as stream:
        begun = stream.initialOffset()
        assert [offset(begun, topic) for topic in ("a", "b", "c")] == [1, 1, 0]
    with (
        reader(nsqd, Clock(), topic="a", startingOffsets='{"z": "latest"}') as stream,
        pytest.raises(OptionError, match='"startingOffsets" names topic z, which is not read here; there are: a'),
    ):
        stream.initialOffset()
    with pytest.raises(OptionError, match='"minRowsPerTrigger": 9 is more than "maxRowsPerTrigger" allows, 8'):
        SourceSettings.of(
            {"nsqd": nsqd.http, "topic": "a", "minRowsPerTrigger": "9", "maxRowsPerTrigger": "8"}, Use.STREAM
        )
