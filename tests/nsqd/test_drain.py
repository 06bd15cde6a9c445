"""A node that is drained: what it refuses, what it still does, what nsqlookupds are told, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from emberq.broker.broker import TopologyChange
from emberq.broker.error import DrainingError
from emberq.nsqd import drain
from emberq.nsqd.drain import LOOK_NS, Drain, Held
from tests.broker.dead_letters import give_up_after
from tests.broker.rig import Consumer, Rig
from tests.conftest import StartNsqd
from tests.support.http_client import HttpClient

LOOK_MS = LOOK_NS // 1_000_000


class DrainedRig(Rig):
    """A broker that can be drained."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[TopologyChange] = []
        self.ends = 0
        self.draining = Drain(
            self.broker,
            clock=self.clock,
            timers=self.timers,
            refuse=self._refuse,
            announce=self.changes.append,
            on_empty=self._end,
        )

    def _refuse(self, reason: str | None) -> None:
        self.broker.gate.reason = reason
        self.broker.gate.is_draining = reason is not None

    def _end(self) -> None:
        self.ends += 1

    def look(self) -> None:
        self.advance(ms=LOOK_MS)


@pytest.fixture
def rig() -> Iterator[DrainedRig]:
    with DrainedRig() as rig:
        yield rig


def test_nothing_new_is_taken(rig: DrainedRig) -> None:
    consumer = rig.consumer(rdy=1)
    rig.draining.begin()
    refused: list[Callable[[], object]] = [
        lambda: rig.publish(b"late"),
        lambda: rig.publish_deferred(b"late", delay_ms=10),
        lambda: rig.topic("new"),
    ]
    for attempt in refused:
        with pytest.raises(DrainingError, match="drained: publish to another one"):
            attempt()
    assert consumer.new_bodies() == []
    assert rig.broker.find_topic("new") is None
    assert rig.channel("another")  # a consumer of what is there may come


def test_it_is_done_when_the_last_message_is_finished(rig: DrainedRig) -> None:
    consumer = rig.consumer(rdy=1)
    rig.publish(b"one", b"two")
    rig.draining.begin()
    rig.look()
    one = consumer.take_one()
    consumer.finish(one)
    two = consumer.take_one()
    rig.look()
    assert rig.ends == 0
    consumer.finish(two)
    rig.look()
    rig.look()
    assert rig.ends == 1


def test_it_waits_for_what_is_deferred(rig: DrainedRig) -> None:
    consumer = rig.consumer(rdy=1)
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.draining.begin()
    rig.advance(ms=9_000)
    assert rig.ends == 0
    rig.advance(ms=1_001)
    consumer.finish(consumer.take_one())
    rig.look()
    assert rig.ends == 1


def test_an_empty_node_is_done_at_once(rig: DrainedRig) -> None:
    rig.draining.begin()
    rig.run_due()
    assert rig.ends == 1


def test_thousands_of_topics_are_looked_at_in_portions(rig: DrainedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "LOOK_COUNT", 3)
    for number in range(8):
        rig.topic(f"t{number}")
    rig.draining.begin()
    for unregistered in (3, 6, 8):
        assert rig.ends == 0
        rig.run_due()
        assert len(rig.changes) == unregistered
    assert rig.ends == 1


def test_nsqlookupds_forget_a_topic_when_it_is_empty(rig: DrainedRig) -> None:
    consumer = rig.consumer(rdy=1)
    rig.channel("c", topic="empty")
    rig.publish(b"one")
    rig.draining.begin()
    rig.run_due()
    assert rig.changes == [TopologyChange("empty", "c", exists=False), TopologyChange("empty", None, exists=False)]
    assert rig.draining.registered() == (("t", ("c",)),)
    consumer.finish(consumer.take_one())
    rig.look()
    assert [change.topic for change in rig.changes[2:]] == ["t", "t"]
    assert rig.draining.registered() == ()


def test_a_cancelled_drain_leaves_everything_as_it_was(rig: DrainedRig) -> None:
    rig.channel("c", topic="empty")
    rig.consumer()
    rig.publish(b"one")
    rig.draining.begin()
    rig.run_due()
    rig.changes.clear()
    rig.draining.cancel()
    assert rig.changes == [TopologyChange("empty", None, exists=True), TopologyChange("empty", "c", exists=True)]
    assert sorted(rig.draining.registered()) == [("empty", ("c",)), ("t", ("c",))]
    rig.publish(b"two")
    rig.channel().empty()
    rig.look()
    assert rig.ends == 0
    assert rig.draining.report() is None


def test_dead_letters_still_go_to_their_topic(rig: DrainedRig) -> None:
    give_up_after(rig, 1)
    consumer = rig.consumer(rdy=1)
    rig.publish(b"bad")
    rig.draining.begin()
    consumer.requeue(consumer.take_one())
    rig.look()
    rig.look()
    assert rig.draining.report() is not None
    assert [held.topic for held in rig.draining.report().topics] == ["dead"]  # type: ignore[union-attr]
    assert rig.ends == 0
    letters = Consumer(rig.channel("c", topic="dead"), rdy=1)
    letters.finish(letters.take_one())
    rig.look()
    assert rig.ends == 1


def test_the_report_says_what_each_topic_waits_for(rig: DrainedRig) -> None:
    rig.publish(b"one", topic="alone")
    rig.channel(topic="paused").pause()
    rig.publish(b"one", b"two", topic="paused")
    rig.channel(topic="left")
    rig.publish(b"one", topic="left")
    held = rig.consumer(rdy=1)
    rig.publish(b"one")
    rig.topic("empty")
    rig.draining.begin()
    report = rig.draining.report()
    assert report is not None
    assert (report.topic_count, report.message_count) == (4, 5)
    assert report.topics == [
        Held("alone", 1, 0, 0, "a channel"),
        Held("left", 1, 0, 0, "consumers"),
        Held("paused", 2, 0, 0, "being unpaused"),
        Held("t", 0, 1, 0, "its consumers to finish"),
    ]
    assert held.take_one()


# Over HTTP.


def test_over_http_a_drain_is_begun_watched_and_cancelled(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal_topic=("^j",))
    http = HttpClient(nsqd.http_address)
    nsqd.create_channel("j", "c")
    nsqd.connect().pub("j", b"one")
    assert http.get("/drain").json() == {"draining": False}
    assert http.get("/ping?ready=true").text == "OK"
    begun = http.post("/drain").json()
    assert begun["draining"] is True
    assert begun["topics"] == [
        {"topic_name": "j", "depth": 1, "in_flight_count": 0, "deferred_count": 0, "waits_for": "consumers"}
    ]
    ready = http.get("/ping?ready=true")
    assert (ready.status, ready.text) == (503, "NOK - draining")
    assert http.get("/ping").text == "OK"
    assert http.post("/pub?topic=j", b"two").error == (503, "DRAINING")
    assert http.post("/topic/create?topic=new").error == (503, "DRAINING")
    producer = nsqd.connect()
    producer.command(b"PUB j", b"two")
    producer.expect_fatal("E_PUB_FAILED PUB failed this nsqd is being drained: publish to another one")
    assert http.request("DELETE", "/drain").json() == {"draining": False}
    assert http.post("/pub?topic=j", b"two").text == "OK"


def test_the_metric_says_so(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    http = HttpClient(nsqd.http_address)
    nsqd.create_channel("t", "c")
    nsqd.connect().pub("t", b"one")
    assert "\nnsqd_draining 0\n" in http.get("/metrics").text
    http.post("/drain")
    assert "\nnsqd_draining 1\n" in http.get("/metrics").text
