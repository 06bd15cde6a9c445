"""The receiver with a real nsqd: what it does when that is killed, when it is stopped, and when nobody reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.spark.channel_frames import rows
from emberq.spark.channel_receiver import ChannelReceiver
from emberq.spark.channel_spool import Spool, read_segment
from emberq.spark.option import SourceSettings, Use
from tests.spark.conftest import StartNsqd
from tests.support.journal_nsqd import JournalNsqd
from tests.support.waiting import wait_until

WAIT_S = 30.0


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path / "spool") as opened:
        yield opened


def settings(*nsqds: JournalNsqd, topics: str = "t") -> SourceSettings:
    addresses = ",".join(nsqd.http for nsqd in nsqds)
    return SourceSettings.of({"nsqd": addresses, "topic": topics, "channel": "spark", "mode": "channel"}, Use.STREAM)


def stored(spool: Spool) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for segment in spool.segments:
        for messages in read_segment(segment.path):
            found.update(rows(messages.frames, messages.origin).column("body").to_pylist())
    return found


def wait_for(spool: Spool, count: int) -> None:
    wait_until(lambda: sum(segment.row_count for segment in spool.segments) >= count, timeout_s=WAIT_S)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def depth(nsqd: JournalNsqd, topic: str = "t") -> int:
    """Messages that the channel has not seen finished."""
    ((found,),) = (entry["channels"] for entry in nsqd.get("/stats", format="json", topic=topic)["topics"])
    waiting: int = found["depth"] + found["in_flight_count"]
    return waiting


def test_what_an_nsqd_brings_again_after_a_crash_is_stored_once(start_journal_nsqd: StartNsqd, spool: Spool) -> None:
    nsqd = start_journal_nsqd()
    nsqd.post("/topic/create", topic="t")
    receiver = ChannelReceiver(settings(nsqd), spool)
    nsqd.post("/channel/create", topic="t", channel="spark")
    receiver.start()
    count = 0
    for _ in range(3):
        nsqd.publish("t", numbers(count, count + 3000))
        count += 3000
        wait_for(spool, count)
        nsqd.kill()  # it has not saved yet how far the channel is
        nsqd.start()
    nsqd.publish("t", numbers(count, count + 10))
    wait_for(spool, count + 10)
    receiver.stop()
    assert receiver.failure is None
    assert stored(spool) == Counter(numbers(0, count + 10))


def test_several_topics_of_several_nsqds_share_a_spool(start_journal_nsqd: StartNsqd, spool: Spool) -> None:
    first, second = start_journal_nsqd("--mem-queue-size=10"), start_journal_nsqd("--mem-queue-size=10")
    for number, (nsqd, topic) in enumerate([(first, "t"), (first, "u"), (second, "t"), (second, "u")]):
        nsqd.post("/topic/create", topic=topic)
        nsqd.post("/channel/create", topic=topic, channel="spark")
        nsqd.publish(topic, numbers(number * 100, number * 100 + 100))
    receiver = ChannelReceiver(settings(first, second, topics="t,u"), spool)
    receiver.start()
    wait_for(spool, 400)
    receiver.stop()
    assert stored(spool) == Counter(numbers(0, 400))


def test_when_too_much_waits_messages_stay_with_nsqd_until_some_is_read(
    start_journal_nsqd: StartNsqd, spool: Spool
) -> None:
    nsqd = start_journal_nsqd()
    nsqd.publish("t", numbers(0, 50_000))
    nsqd.post("/channel/create", topic="t", channel="spark")
    receiver = ChannelReceiver(settings(nsqd), spool, max_waiting_bytes=100_000)
    receiver.start()
    wait_until(lambda: spool.bytes_from(0) > 100_000, timeout_s=WAIT_S)
    wait_until(lambda: _is_at_rest(nsqd), timeout_s=WAIT_S)
    assert depth(nsqd) > 20_000
    while sum(segment.row_count for segment in spool.segments) < 50_000:
        receiver.has_read(spool.next_number)  # nothing is committed, though
        wait_until(lambda: _is_at_rest(nsqd), timeout_s=WAIT_S)
    receiver.stop()
    assert stored(spool) == Counter(numbers(0, 50_000))
    assert depth(nsqd) == 0


def _is_at_rest(nsqd: JournalNsqd) -> bool:
    """Whether nothing is on its way to the receiver or to the disk."""
    ((channel,),) = (entry["channels"] for entry in nsqd.get("/stats", format="json", topic="t")["topics"])
    return (channel["in_flight_count"] == 0 and all(client["ready_count"] == 0 for client in channel["clients"])) or (
        channel["depth"] == 0 and channel["in_flight_count"] == 0
    )


def test_a_receiver_that_is_stopped_leaves_nothing_in_flight(start_journal_nsqd: StartNsqd, spool: Spool) -> None:
    nsqd = start_journal_nsqd("--mem-queue-size=1000")
    nsqd.publish("t", numbers(0, 20_000))
    nsqd.post("/channel/create", topic="t", channel="spark")
    receiver = ChannelReceiver(settings(nsqd), spool)
    receiver.start()
    wait_for(spool, 1)
    receiver.stop()
    wait_until(lambda: _client_count(nsqd) == 0, timeout_s=WAIT_S)
    again = ChannelReceiver(settings(nsqd), spool)
    again.start()
    wait_for(spool, 20_000)
    again.stop()
    found = stored(spool)
    assert found == Counter(numbers(0, 20_000))
    attempts = {
        attempt
        for segment in spool.segments
        for messages in read_segment(segment.path)
        for attempt in rows(messages.frames, messages.origin).column("attempts").to_pylist()
    }
    assert attempts == {1}


def _client_count(nsqd: JournalNsqd) -> int:
    ((channel,),) = (entry["channels"] for entry in nsqd.get("/stats", format="json", topic="t")["topics"])
    count: int = channel["client_count"]
    return count


def test_an_nsqd_that_allows_few_consumers_gets_few_connections(
    start_journal_nsqd: StartNsqd, spool: Spool, tmp_path: Path
) -> None:
    nsqd = start_journal_nsqd("--max-channel-consumers=2")
    nsqd.post("/topic/create", topic="t")
    nsqd.post("/channel/create", topic="t", channel="spark")
    nsqd.publish("t", numbers(0, 100))
    receiver = ChannelReceiver(settings(nsqd), spool)
    receiver.start()
    wait_for(spool, 100)
    assert _client_count(nsqd) == 2
    with Spool(tmp_path / "other") as other:
        late = ChannelReceiver(settings(nsqd), other)
        late.start()
        wait_until(lambda: late.failure is not None, timeout_s=WAIT_S)
        assert "nsqd does not let us consume" in str(late.failure)
    receiver.stop()
