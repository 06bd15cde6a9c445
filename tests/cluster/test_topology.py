"""Who is in the cluster, asked of real daemons and, where they are to misbehave, of scripted ones."""

from __future__ import annotations

import pytest

from emberq.cluster.topology import ProducerTopic
from emberq.cluster.upstream import NodeNotFoundError, UpstreamsFailedError
from emberq.embedded import EmbeddedThread
from tests.support.cluster_rig import DEAD, REFUSED, View, through_lookupd, through_nsqds
from tests.support.embedded import create, post
from tests.support.lookupd_harness import LookupdHarness
from tests.support.recording_daemon import RecordingDaemon

pytestmark = pytest.mark.loop("uvloop")

TWO_NODES = pytest.mark.nsq(nsqd_count=2)


@pytest.fixture
def two_topics(nsq: EmbeddedThread) -> EmbeddedThread:
    """Topic `both` on two nodes, `one` on the first of them."""
    create(nsq, "both", "c", node=0)
    create(nsq, "both", "d", node=1)
    create(nsq, "one", node=0)
    return nsq


@TWO_NODES
async def test_topics_are_those_of_all_nodes_however_they_are_found(two_topics: EmbeddedThread) -> None:
    for view in (through_lookupd(two_topics), through_nsqds(two_topics)):
        assert (await view.topology.topics()).value == ("both", "one")


async def test_a_cluster_without_topics_has_none(nsq: EmbeddedThread) -> None:
    for view in (through_lookupd(nsq), through_nsqds(nsq)):
        assert (await view.topology.topics()).value == ()


@TWO_NODES
async def test_the_producers_of_a_topic_are_the_nodes_that_have_it(two_topics: EmbeddedThread) -> None:
    nodes = two_topics.nsqd_http_addresses
    for view in (through_lookupd(two_topics), through_nsqds(two_topics)):
        assert {each.node for each in (await view.topology.topic_producers("both")).value} == set(nodes)
        assert [each.node for each in (await view.topology.topic_producers("one")).value] == [nodes[0]]


async def test_an_unknown_topic_is_an_error_by_nsqlookupd_and_has_no_producers_by_nsqd(nsq: EmbeddedThread) -> None:
    with pytest.raises(UpstreamsFailedError) as raised:
        await through_lookupd(nsq).topology.topic_producers("none")
    assert str(raised.value) == (
        'failed to query any nsqlookupd: got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
    )
    assert (await through_nsqds(nsq).topology.topic_producers("none")).value == ()


@TWO_NODES
async def test_nodes_have_their_topics(two_topics: EmbeddedThread) -> None:
    both, one = ProducerTopic("both"), ProducerTopic("one")
    for view in (through_lookupd(two_topics), through_nsqds(two_topics)):
        nodes = {each.node: each.topics for each in (await view.topology.producers()).value}
        assert nodes == dict(zip(two_topics.nsqd_http_addresses, [(both, one), (both,)], strict=True))


async def test_a_node_known_by_nsqlookupd_tells_whose_word_that_is(nsq: EmbeddedThread) -> None:
    (lookupd,) = nsq.lookupd_http_addresses
    (node,) = (await through_lookupd(nsq).topology.producers()).value
    assert node.remote_addresses == (f"{lookupd}/{node.remote_address}",)
    (asked_directly,) = (await through_nsqds(nsq).topology.producers()).value
    assert (asked_directly.remote_addresses, asked_directly.remote_address) == (None, "")


async def test_two_nsqlookupds_that_know_a_node_show_it_once() -> None:
    with LookupdHarness() as one, LookupdHarness() as two:
        one.nsqd("a")
        two.nsqd("b")
        addresses = tuple(f"127.0.0.1:{each.daemon.http_address[1]}" for each in (one, two))
        (node,) = (await View(lookupds=addresses).topology.producers()).value
    assert [each.topic for each in node.topics] == ["a", "b"]
    assert [each.partition("/")[0] for each in node.remote_addresses or ()] == list(addresses)


async def test_a_tombstoned_topic_is_marked_on_its_node_and_not_found_by_lookup() -> None:
    with LookupdHarness() as lookupd:
        lookupd.nsqd("t")
        assert lookupd.post("/topic/tombstone?topic=t&node=nsqd.example:4151").status == 200
        view = View(lookupds=(f"127.0.0.1:{lookupd.daemon.http_address[1]}",))
        (node,) = (await view.topology.producers()).value
        assert node.topics == (ProducerTopic("t", tombstoned=True),)
        assert (await view.topology.topic_producers("t")).value == ()


async def test_inactive_topics_are_those_without_a_producer_and_come_with_their_channels(nsq: EmbeddedThread) -> None:
    create(nsq, "active", "c")
    (lookupd,) = nsq.lookupd_http_addresses
    post(lookupd, "/channel/create?topic=idle&channel=z")
    post(lookupd, "/channel/create?topic=idle&channel=a")
    post(lookupd, "/topic/create?topic=bare")
    assert (await through_lookupd(nsq).topology.inactive_topics()).value == {"bare": (), "idle": ("a", "z")}
    assert (await through_nsqds(nsq).topology.inactive_topics()).value == {}


async def test_a_dead_nsqlookupd_is_one_warning_however_many_topics_there_are(nsq: EmbeddedThread) -> None:
    for number in range(40):
        post(nsq.lookupd_http_addresses[0], f"/topic/create?topic=t{number}")
    found = await through_lookupd(nsq, DEAD).topology.inactive_topics()
    assert len(found.value) == 40
    assert found.warnings == (REFUSED.format("topics"), REFUSED.format("lookup"))


async def test_a_topic_that_is_deleted_between_two_questions_is_a_warning() -> None:
    with RecordingDaemon("lookupd", {"/topics": {"topics": ["gone"]}}, []) as lookupd:
        found = await View(lookupds=(lookupd.address,)).topology.inactive_topics()
    assert (found.value, len(found.warnings)) == ({}, 1)


@TWO_NODES
async def test_a_node_is_found_by_what_the_cluster_calls_it(nsq: EmbeddedThread) -> None:
    wanted = nsq.nsqd_http_addresses[1]
    for view in (through_lookupd(nsq), through_nsqds(nsq)):
        assert (await view.topology.node(wanted)).value.node == wanted
        with pytest.raises(NodeNotFoundError):
            await view.topology.node("other.example:4151")


async def test_a_dead_daemon_is_a_warning_and_all_dead_an_error(nsq: EmbeddedThread) -> None:
    create(nsq, "t")
    partial = await through_lookupd(nsq, DEAD).topology.topics()
    assert (partial.value, partial.warnings) == (("t",), (REFUSED.format("topics"),))
    partial = await through_nsqds(nsq, DEAD).topology.topics()
    assert (partial.value, partial.warnings) == (("t",), (REFUSED.format("stats"),))
    with pytest.raises(UpstreamsFailedError, match=r"^failed to query any nsqlookupd: "):
        await View(lookupds=(DEAD,)).topology.producers()
    with pytest.raises(UpstreamsFailedError, match=r"^failed to query any nsqd: "):
        await View(nsqds=(DEAD,)).topology.producers()


async def test_an_nsqd_behind_another_address_than_it_broadcasts_is_asked_where_it_was_found() -> None:
    calls: list[str] = []
    info = {"broadcast_address": "unreachable.example", "hostname": "h", "http_port": 4151, "tcp_port": 4150}
    answers = {"/info": info, "/stats": {"topics": [{"topic_name": "t", "depth": 3}]}}
    with RecordingDaemon("nsqd", answers, calls) as nsqd:
        total = (await View(nsqds=(nsqd.address,)).observer.topic("t")).value
    assert total.depth == 3
    assert [part.node for part in total.nodes or ()] == ["unreachable.example:4151"]


async def test_daemons_before_1_0_wrap_their_answers_and_are_understood() -> None:
    wrapped = {"status_code": 200, "status_txt": "OK", "data": {"topics": ["t"]}}
    with RecordingDaemon("lookupd", {"/topics": wrapped}, []) as lookupd:
        assert (await View(lookupds=(lookupd.address,)).topology.topics()).value == ("t",)
