"""How fast consumers work, as two looks tell it."""

from __future__ import annotations

from typing import Any

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import WATCH_NS, ClientFigures, ClientPace, ClientWatch
from tests.support.cluster_rig import NODE, channel_entry, topic_entry


def client(**fields: Any) -> ClientFigures:
    entry = {"remote_address": "10.0.0.7:5000", "client_id": "w", "connect_ts": 1, **fields}
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel_entry("c", clients=[entry]))]})
    return topic.channels[0].clients[0]


class Watching:
    def __init__(self) -> None:
        self.watch = ClientWatch()
        self.now_s = 100.0

    def look(self, *clients: ClientFigures, after_s: float = 2.0) -> ClientPace | None:
        self.now_s += after_s
        now_ns = round(self.now_s * NS_PER_SECOND)
        self.watch.add(clients, now_ns=now_ns, wall_ns=now_ns)
        return next(iter(self.watch.paces().values()), None)


def test_one_look_tells_no_rate_but_timeouts() -> None:
    pace = Watching().look(client(message_count=10, finish_count=4, requeue_count=2, in_flight_count=1))
    assert pace == ClientPace(None, None, None, timeout_count=3, last_finish_ns=None)


def test_two_looks_tell_rates_and_the_time_for_a_message() -> None:
    watching = Watching()
    watching.look(client(message_count=3, in_flight_count=3))
    pace = watching.look(client(message_count=13, finish_count=8, requeue_count=2, in_flight_count=3))
    assert pace is not None
    assert (pace.finish_rate, pace.requeue_rate) == (4.0, 1.0)
    assert pace.message_ns == round(3 * 2.0 / 10 * NS_PER_SECOND)  # three at once, ten in two seconds
    assert pace.last_finish_ns == 104 * NS_PER_SECOND


def test_a_consumer_that_hangs_finished_long_ago() -> None:
    watching = Watching()
    for count in (1, 2):
        watching.look(client(message_count=9, finish_count=count, in_flight_count=7))
    for _ in range(3):
        pace = watching.look(client(message_count=9, finish_count=2, in_flight_count=7), after_s=WATCH_NS / 1e9)
    assert pace is not None
    assert (pace.finish_rate, pace.message_ns, pace.last_finish_ns) == (0.0, None, 104 * NS_PER_SECOND)


def test_a_new_connection_from_the_same_address_begins_anew() -> None:
    watching = Watching()
    watching.look(client(message_count=100, finish_count=100))
    pace = watching.look(client(message_count=1, finish_count=1, connect_ts=2))
    assert pace is not None
    assert (pace.finish_rate, pace.last_finish_ns) == (None, None)


def test_who_has_left_is_forgotten() -> None:
    watching = Watching()
    watching.look(client(finish_count=1, message_count=1))
    assert watching.look() is None
    pace = watching.look(client(finish_count=2, message_count=2))
    assert pace is not None
    assert pace.finish_rate == 0.25  # it was there four seconds ago, with one message less
