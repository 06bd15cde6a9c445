"""Figures over a cluster of real nsqds, through nsqlookupd and without."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.cluster import upstream
from emberq.cluster.survey import ClusterReader, Rates
from emberq.cluster.topology import ClusterAddresses, Topology
from emberq.cluster.upstream import ChannelNotFoundError, NodeNotFoundError, Upstreams, UpstreamsFailedError
from emberq.embedded import EmbeddedThread
from emberq.http.client import HttpClient
from tests.support.cluster_rig import DEAD, REFUSED, View, through_lookupd, through_nsqds
from tests.support.embedded import create, post, publish
from tests.support.raw_client import Client
from tests.support.recording_daemon import RecordingDaemon
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import until

pytestmark = [pytest.mark.loop("uvloop"), pytest.mark.nsq(nsqd_count=2)]


@pytest.fixture
def busy(nsq: EmbeddedThread) -> EmbeddedThread:
    """Two messages on one node and three on the other wait in channel `c` of topic `t`."""
    for node in (0, 1):
        create(nsq, "t", "c", node=node)
    publish(nsq, "t", b"1", b"2", node=0)
    publish(nsq, "t", b"3", b"4", b"5", node=1)
    return nsq


def connect(nsq: EmbeddedThread, node: int) -> Client:
    host, _, port = nsq.nsqd_tcp_addresses[node].rpartition(":")
    return Client((host, int(port)))


async def test_a_topic_is_added_up_over_the_cluster(busy: EmbeddedThread) -> None:
    for view in (through_lookupd(busy), through_nsqds(busy)):
        topic = (await view.observer.topic("t")).value
        assert (topic.node, topic.message_count, len(topic.nodes or ())) == ("*", 5, 2)
        (channel,) = topic.channels
        assert (channel.depth, channel.message_count, channel.node) == (5, 5, "*")


async def test_a_channel_comes_with_its_clients(busy: EmbeddedThread) -> None:
    with closing(connect(busy, 0)) as client:
        client.sub("t", "c")
        view = through_lookupd(busy)
        channel = (await view.observer.channel("t", "c")).value
        assert (channel.depth, channel.client_count) == (5, 1)
        assert [each.node for each in channel.clients] == [busy.nsqd_http_addresses[0]]
        assert [part.depth for part in sorted(channel.nodes or (), key=lambda part: part.depth)] == [2, 3]


async def test_a_node_that_is_known_to_be_silent_is_asked_for_a_channel_only_if_there_is_no_other(
    busy: EmbeddedThread,
) -> None:
    first, second = busy.nsqd_http_addresses
    for view in (through_lookupd(busy), through_nsqds(busy)):
        assert (await view.observer.channel("t", "c", silent={first})).value.depth == 3
        assert (await view.observer.channel("t", "c", silent={first, second})).value.depth == 5


async def test_a_channel_that_nobody_has_is_not_found(busy: EmbeddedThread) -> None:
    for view in (through_lookupd(busy), through_nsqds(busy)):
        with pytest.raises(ChannelNotFoundError):
            await view.observer.channel("t", "none")


async def test_a_topic_with_no_live_producer_is_an_error_without_a_cause(nsq: EmbeddedThread) -> None:
    post(nsq.lookupd_http_addresses[0], "/topic/create?topic=idle")
    with pytest.raises(UpstreamsFailedError, match=r"^failed to query any nsqd: $"):
        await through_lookupd(nsq).observer.topic("idle")


async def test_one_node_is_shown_with_all_it_has(busy: EmbeddedThread) -> None:
    create(busy, "a", node=1)
    node = busy.nsqd_http_addresses[1]
    with closing(connect(busy, 1)) as client:
        client.sub("t", "c")
        for view in (through_lookupd(busy), through_nsqds(busy)):
            stats = (await view.observer.node(node)).value
            assert [topic.topic_name for topic in stats.topics] == ["a", "t"]
            assert (stats.node, stats.total_messages, stats.total_clients) == (node, 3, 1)
            assert len(stats.topics[1].channels[0].clients) == 1
    with pytest.raises(NodeNotFoundError):
        await through_lookupd(busy).observer.node("nobody:1")


async def test_counters_name_every_channel_on_every_node(busy: EmbeddedThread) -> None:
    first, second = busy.nsqd_http_addresses
    for view in (through_lookupd(busy), through_nsqds(busy)):
        counters = {each.key: each.message_count for each in (await view.observer.counters()).value}
        assert counters == {f"t:c:{first}": 2, f"t:c:{second}": 3}


async def test_a_survey_has_every_topic_and_every_node(busy: EmbeddedThread) -> None:
    create(busy, "alone", node=0)
    for view in (through_lookupd(busy), through_nsqds(busy)):
        survey = (await view.observer.survey(ManualClock())).value
        assert {key: total.node_count for key, total in survey.totals.items()} == {
            ("alone", ""): 1,
            ("t", ""): 2,
            ("t", "c"): 2,
        }
        assert {producer.node for producer in survey.producers} == set(survey.nodes) == set(busy.nsqd_http_addresses)
        assert all((figures.memory or {})["heap_in_use_bytes"] > 0 for figures in survey.nodes.values())


async def test_a_survey_tells_what_happened_since_the_one_before(busy: EmbeddedThread) -> None:
    clock = ManualClock()
    observer = through_lookupd(busy).observer
    before = (await observer.survey(clock)).value
    publish(busy, "t", b"6", b"7", b"8", node=1)
    clock.advance(seconds=2)
    survey = (await observer.survey(clock, before)).value
    assert (before.total_rates(), survey.total_rates()) == (None, Rates(came=1.5, left=0.0))


@pytest.mark.nsq(nsqd_count=0)
async def test_a_cluster_without_an_nsqd_is_surveyed_and_empty(nsq: EmbeddedThread) -> None:
    found = await through_lookupd(nsq).observer.survey(ManualClock())
    assert (found.value.totals, found.warnings) == ({}, ())


async def test_a_dead_nsqd_is_a_warning_beside_the_figures_of_the_others(busy: EmbeddedThread) -> None:
    found = await through_nsqds(busy, DEAD).observer.survey(ManualClock())
    assert found.value.totals["t", ""].message_count == 5
    assert found.warnings == (REFUSED.format("info"),)


async def test_a_dead_nsqlookupd_is_a_warning_beside_what_the_other_knows(busy: EmbeddedThread) -> None:
    found = await through_lookupd(busy, DEAD).observer.topic("t")
    assert found.value.message_count == 5
    assert found.warnings == (REFUSED.format("lookup"),)


async def test_an_nsqd_that_nsqlookupd_still_lists_but_is_gone_is_a_warning(busy: EmbeddedThread) -> None:
    gone = {"broadcast_address": "127.0.0.1", "hostname": "gone", "tcp_port": 2, "http_port": 1, "version": "1.3.0"}
    producers = {"/lookup": {"channels": [], "producers": [gone]}, "/nodes": {"producers": [gone | {"topics": ["t"]}]}}
    with RecordingDaemon("lookupd", producers, []) as stale:
        found = await through_lookupd(busy, stale.address).observer.topic("t")
        assert (found.value.message_count, found.warnings) == (5, (REFUSED.format("stats"),))
        with pytest.raises(UpstreamsFailedError):
            await View(lookupds=(stale.address,)).observer.topic("t")


async def test_messages_in_flight_and_deferred_are_not_settled(busy: EmbeddedThread) -> None:
    with closing(connect(busy, 0)) as client:
        client.sub("t", "c")
        client.rdy(2)
        client.fin(client.read_message())
        view = through_lookupd(busy)

        async def is_one_settled() -> bool:
            nodes = (await view.observer.survey(ManualClock())).value.nodes.values()
            return sum(figures.settled[figures.keys.index(("t", "c"))] for figures in nodes) == 1

        await until(is_one_settled)


async def test_nsqds_that_answered_are_not_kept_from_it_by_those_that_never_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_CONCURRENT_QUERIES", 1)
    http = HttpClient(connect_timeout_ns=NS_PER_SECOND, request_timeout_ns=NS_PER_SECOND // 6)
    upstreams = Upstreams(http, patience_s=0.5)
    with ExitStack() as running:
        alive = running.enter_context(RecordingDaemon("", {"/stats": {"topics": []}}, []))
        silent = [running.enter_context(ScriptedServer()) for _ in range(6)]
        nodes = [{"broadcast_address": "127.0.0.1", "http_port": each.port, "tcp_port": each.port} for each in silent]
        nodes.append(
            {"broadcast_address": "127.0.0.1", "http_port": alive.port, "tcp_port": alive.port, "hostname": "z"}
        )
        lookupd = running.enter_context(RecordingDaemon("", {"/nodes": {"producers": nodes}}, []))
        observer = ClusterReader(upstreams, Topology(upstreams, ClusterAddresses(lookupds=(lookupd.address,))))
        clock, survey = ManualClock(), None
        while survey is None:  # until it had the luck to be asked early
            clock.advance(seconds=1)
            with suppress(UpstreamsFailedError):
                survey = (await observer.survey(clock)).value
        for _ in range(5):
            clock.advance(seconds=1)
            survey = (await observer.survey(clock, survey)).value
            assert list(survey.nodes) == [alive.address]
