"""What a channel still has to deliver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from emberq.embedded import EmbeddedThread
from emberq.spark.channel_source import backlog
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SourceSettings, Use
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create, post, publish


@pytest.fixture
def nsq() -> Iterator[EmbeddedThread]:
    with EmbeddedThread(nsqd_count=2) as running:
        for number in range(2):
            create(running, "t", "spark", "other", node=number)
        yield running


def count(**options: str) -> int | None:
    settings = SourceSettings.of({"topic": "t", "channel": "spark", "mode": "channel", **options}, Use.STREAM)
    with closing(AddressBook(settings.access)) as book:
        return backlog(settings, book)


def test_messages_of_all_nsqds_are_counted_for_one_channel(nsq: EmbeddedThread) -> None:
    nsqds = ",".join(nsq.nsqd_http_addresses)
    assert count(nsqd=nsqds) == 0
    publish(nsq, "t", b"a", b"b", node=0)
    publish(nsq, "t", b"c", node=1)
    assert count(nsqd=nsqds) == count(lookupd=nsq.lookupd_http_addresses[0]) == 3


def test_a_paused_channel_is_not_waited_for(nsq: EmbeddedThread) -> None:
    nsqd = nsq.nsqd_http_addresses[0]
    publish(nsq, "t", b"a")
    post(nsqd, "/channel/pause?topic=t&channel=spark")
    assert count(nsqd=nsqd) == 0


def test_a_topic_that_is_not_there_yet_has_nothing(nsq: EmbeddedThread) -> None:
    assert count(nsqd=nsq.nsqd_http_addresses[0], topic="new") == 0


def test_an_nsqd_that_does_not_answer_leaves_it_open(nsq: EmbeddedThread) -> None:
    assert count(nsqd=f"{nsq.nsqd_http_addresses[0]},{DEAD}") is None


def test_what_waits_in_a_topic_for_its_first_channel_is_counted(nsq: EmbeddedThread) -> None:
    publish(nsq, "fresh", b"a", b"b")
    assert count(nsqd=nsq.nsqd_http_addresses[0], topic="fresh") == 2
