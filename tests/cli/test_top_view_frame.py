"""Looks at clusters of real nsqds, and what is shown of them as JSON."""

from __future__ import annotations

import pytest

from emberq.base.clock import ManualClock
from emberq.cli.top_view import ScreenFrame, Watcher, frame_document
from emberq.cluster.survey import Rates
from emberq.embedded import EmbeddedThread
from tests.cli.cluster_look import row
from tests.support.cluster_rig import DEAD, REFUSED, View, channel_entry, through_nsqds, topic_entry
from tests.support.embedded import create, publish
from tests.support.recording_daemon import RecordingDaemon

pytestmark = pytest.mark.loop("uvloop")

INFO = {"broadcast_address": "127.0.0.1", "hostname": "h", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}


@pytest.mark.nsq(nsqd_count=2)
async def test_two_looks_give_depths_and_rates(nsq: EmbeddedThread) -> None:
    clock = ManualClock()
    create(nsq, "t", "c")
    watcher = Watcher(through_nsqds(nsq).observer, clock)
    first = await watcher.look()
    assert (first.topic_count, first.came_per_s, first.rows[0].came_per_s) == (1, None, None)
    publish(nsq, "t", b"1", b"2", b"3", b"4")
    clock.advance(seconds=2)
    second = await watcher.look()
    assert (second.came_per_s, second.left_per_s) == (2.0, 0.0)
    assert (second.rows[0].total.depth, second.rows[0].came_per_s) == (4, 2.0)
    assert set(second.nodes) == set(nsq.nsqd_http_addresses)


async def test_a_dead_nsqd_beside_a_live_one_is_a_warning(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    frame = await Watcher(through_nsqds(nsq, DEAD).observer, ManualClock()).look()
    assert (len(frame.rows), frame.warnings, frame.failure) == (1, (REFUSED.format("info"),), "")


async def test_a_cluster_that_goes_down_keeps_its_last_figures_until_it_is_back() -> None:
    clock = ManualClock()
    answers = {"/info": INFO, "/stats": {"topics": [topic_entry("t", channel_entry("c", depth=3))]}}
    with RecordingDaemon("nsqd", dict(answers), []) as nsqd:
        watcher = Watcher(View(nsqds=(nsqd.address,)).observer, clock)
        up = await watcher.look()
        nsqd.answers.clear()
        clock.advance(seconds=2)
        down = await watcher.look()
        assert (down.rows, down.taken_ns) == (up.rows, up.taken_ns)
        assert down.failure.startswith("failed to query any nsqd: got response 404")
        nsqd.answers.update(answers)
        back = await watcher.look()
        assert (back.failure, back.taken_ns) == ("", clock.wall_ns())


async def test_a_cluster_that_never_answered_has_no_figures() -> None:
    frame = await Watcher(View(nsqds=(DEAD,)).observer, ManualClock()).look()
    assert (frame.rows, frame.taken_ns) == ((), 0)
    assert frame_document(frame, []) == {"error": f"failed to query any nsqd: {REFUSED.format('info')}"}


def test_a_frame_as_json() -> None:
    rows = (row("t", "c", depth=3, rates=Rates(0.26, 0.0)), row("t", "", rates=None))
    frame = ScreenFrame(
        taken_ns=1_700_000_000_123_000_000, nodes=("a:1",), topic_count=1, rows=rows, came_per_s=0.26, warnings=("w",)
    )
    document = frame_document(frame, rows)
    channel, topic = document.pop("rows")
    assert document == {
        "time": "2023-11-14T22:13:20.123Z",
        "nodes": ["a:1"],
        "topic_count": 1,
        "came_per_s": 0.3,
        "left_per_s": None,
        "warnings": ["w"],
    }
    assert (channel["topic"], channel["channel"], channel["depth"]) == ("t", "c", 3)
    assert (channel["came_per_s"], channel["left_per_s"]) == (0.3, 0.0)
    assert (topic["channel"], topic["came_per_s"], topic["left_per_s"]) == (None, None, None)
    assert list(topic) == [
        "topic",
        "channel",
        "depth",
        "backend_depth",
        "in_flight_count",
        "deferred_count",
        "requeue_count",
        "timeout_count",
        "message_count",
        "client_count",
        "node_count",
        "paused",
        "came_per_s",
        "left_per_s",
    ]
