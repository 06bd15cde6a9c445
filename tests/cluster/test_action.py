"""Changes to the cluster: their order by daemons that take notes, their effect by real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emberq.base.clock import SystemClock
from emberq.cluster.action import DrainUnknownError, Verb
from emberq.cluster.stats import ChannelFigures
from emberq.cluster.upstream import NodeNotFoundError, UpstreamsFailedError
from emberq.embedded import EmbeddedThread
from tests.support.cluster_rig import View, through_lookupd, through_nsqds
from tests.support.embedded import create, publish
from tests.support.recording_daemon import RecordingDaemon

pytestmark = pytest.mark.loop("uvloop")

POSTED: dict[str, dict[str, object]] = {
    f"/{kind}/{verb}": {}
    for kind in ("topic", "channel")
    for verb in ("create", "delete", "pause", "unpause", "empty", "tombstone")
}


class Ensemble:
    """Two nsqlookupds, both knowing the same two nsqds of topic `t`."""

    def __init__(self, running: ExitStack) -> None:
        self.calls: list[str] = []

        def start(name: str) -> RecordingDaemon:
            return running.enter_context(RecordingDaemon(name, dict(POSTED), self.calls))

        self.nsqds = [start("nsqd1"), start("nsqd2")]
        for nsqd in self.nsqds:
            nsqd.answers["/info"] = self._identity(nsqd)
            nsqd.answers["/stats"] = {"topics": [{"topic_name": "t"}]}
        self.lookupds = [start("lookupd1"), start("lookupd2")]
        for lookupd in self.lookupds:
            lookupd.answers["/lookup"] = {"channels": [], "producers": [self._identity(each) for each in self.nsqds]}
            lookupd.answers["/nodes"] = {"producers": [self._identity(each) for each in self.nsqds]}
        self.view = View(lookupds=tuple(lookupd.address for lookupd in self.lookupds))

    def _identity(self, nsqd: RecordingDaemon) -> dict[str, object]:
        return {"broadcast_address": "127.0.0.1", "http_port": nsqd.port, "tcp_port": nsqd.port, "hostname": "h"}

    @property
    def posts(self) -> list[str]:
        return [call.removeprefix("POST ") for call in self.calls if call.startswith("POST")]


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with ExitStack() as running:
        yield Ensemble(running)


async def test_a_topic_is_created_at_every_nsqlookupd(ensemble: Ensemble) -> None:
    assert (await ensemble.view.actions.create("t")).message == ""
    assert ensemble.calls == ["POST lookupd1/topic/create?topic=t", "POST lookupd2/topic/create?topic=t"]


async def test_a_channel_is_created_at_every_nsqlookupd_and_then_on_every_nsqd(ensemble: Ensemble) -> None:
    assert (await ensemble.view.actions.create("t", "c")).message == ""
    assert ensemble.posts == [
        "lookupd1/topic/create?topic=t",
        "lookupd2/topic/create?topic=t",
        "lookupd1/channel/create?topic=t&channel=c",
        "lookupd2/channel/create?topic=t&channel=c",
        "nsqd1/channel/create?topic=t&channel=c",
        "nsqd2/channel/create?topic=t&channel=c",
    ]


async def test_deleting_finds_the_nsqds_first_then_tells_the_nsqlookupds_then_the_nsqds(ensemble: Ensemble) -> None:
    assert (await ensemble.view.actions.delete("t")).message == ""
    assert all(call.startswith("GET lookupd") for call in ensemble.calls[:2])
    assert ensemble.posts == [f"{name}/topic/delete?topic=t" for name in ("lookupd1", "lookupd2", "nsqd1", "nsqd2")]


async def test_deleting_a_channel_goes_the_same_way(ensemble: Ensemble) -> None:
    assert (await ensemble.view.actions.delete("t", "c#ephemeral")).message == ""
    assert ensemble.posts == [
        f"{name}/channel/delete?topic=t&channel=c%23ephemeral" for name in ("lookupd1", "lookupd2", "nsqd1", "nsqd2")
    ]


@pytest.mark.parametrize("verb", list(Verb))
async def test_pausing_and_emptying_concern_the_nsqds_alone(ensemble: Ensemble, verb: Verb) -> None:
    assert (await ensemble.view.actions.act(verb, "t")).message == ""
    assert (await ensemble.view.actions.act(verb, "t", "c")).message == ""
    assert ensemble.posts == [
        f"nsqd1/topic/{verb}?topic=t",
        f"nsqd2/topic/{verb}?topic=t",
        f"nsqd1/channel/{verb}?topic=t&channel=c",
        f"nsqd2/channel/{verb}?topic=t&channel=c",
    ]


async def test_a_tombstone_is_set_before_the_topic_is_deleted_on_that_node(ensemble: Ensemble) -> None:
    node = ensemble.nsqds[1].address
    assert (await ensemble.view.actions.tombstone("t", node=node)).message == ""
    query = f"topic=t&node={node.replace(':', '%3A')}"
    assert sorted(ensemble.calls[:2]) == ["GET lookupd1/nodes", "GET lookupd2/nodes"]
    assert ensemble.calls[2:] == [
        f"POST lookupd1/topic/tombstone?{query}",
        f"POST lookupd2/topic/tombstone?{query}",
        "POST nsqd2/topic/delete?topic=t",
    ]


async def test_what_fails_is_a_warning_and_the_rest_is_done(ensemble: Ensemble) -> None:
    del ensemble.lookupds[0].answers["/topic/delete"]
    del ensemble.nsqds[0].answers["/topic/delete"]
    refusal = 'got response 404 Not Found "{\\"message\\": \\"NOT_FOUND\\"}"'
    assert (await ensemble.view.actions.delete("t")).message == f"WARNING: {refusal}; {refusal}"
    assert len(ensemble.posts) == 4


async def test_an_action_whose_nsqds_cannot_be_found_does_nothing() -> None:
    calls: list[str] = []
    with (
        RecordingDaemon("lookupd", dict(POSTED), calls) as lookupd,
        pytest.raises(UpstreamsFailedError, match=r"^failed to query any nsqlookupd: "),
    ):
        await View(lookupds=(lookupd.address,)).actions.delete("t")
    assert calls == ["GET lookupd/lookup?topic=t"]


async def test_without_nsqlookupds_there_is_nowhere_to_create_anything(nsq: EmbeddedThread) -> None:
    view = through_nsqds(nsq)
    assert (await view.actions.create("t")).message == ""
    assert (await view.topology.topics()).value == ()
    with pytest.raises(UpstreamsFailedError, match=r"^failed to query any nsqlookupd: $"):
        await view.actions.create("t", "c")


async def test_a_node_is_drained_tells_what_it_holds_and_goes_on_when_that_is_cancelled(nsq: EmbeddedThread) -> None:
    view, node = through_nsqds(nsq), nsq.nsqd_http_addresses[0]
    create(nsq, "drained", "c")
    publish(nsq, "drained", b"one", b"two")
    assert not (await view.actions.drain_state(node)).value.is_draining
    begun = (await view.actions.drain(node)).value
    assert begun.is_draining
    assert (begun.message_count, begun.topic_count) == (2, 1)
    assert begun.waits == (("drained", 2, "consumers"),)
    assert (await view.actions.drain_state(node)).value == begun
    figures = (await view.observer.survey(SystemClock())).value.nodes[node]
    assert (figures.is_draining, figures.is_healthy, figures.health) == (True, True, "OK")
    assert not (await view.actions.drain(node, is_cancelled=True)).value.is_draining
    await view.actions.delete("drained")
    with pytest.raises(NodeNotFoundError):
        await view.actions.drain("127.0.0.1:1")


async def test_an_nsqd_of_another_make_cannot_be_drained(ensemble: Ensemble) -> None:
    node = ensemble.nsqds[0].address
    with pytest.raises(DrainUnknownError, match="only emberq's nsqd can"):
        await ensemble.view.actions.drain(node)
    with pytest.raises(DrainUnknownError):
        await ensemble.view.actions.drain_state(node)


async def test_only_a_node_of_the_cluster_can_be_tombstoned(nsq: EmbeddedThread) -> None:
    calls: list[str] = []
    with RecordingDaemon("stranger", dict(POSTED) | {"/info": {}}, calls) as stranger:
        for view in (through_lookupd(nsq), through_nsqds(nsq)):
            with pytest.raises(NodeNotFoundError):
                await view.actions.tombstone("t", node=stranger.address)
    assert calls == []


@pytest.mark.nsq(nsqd_count=2)
async def test_actions_reach_every_node_of_a_real_cluster(nsq: EmbeddedThread) -> None:
    for node in (0, 1):
        create(nsq, "t", "c", node=node)
        publish(nsq, "t", b"message", node=node)
    for view in (through_lookupd(nsq), through_nsqds(nsq)):
        assert (await view.actions.act(Verb.PAUSE, "t", "c")).message == ""
        assert [part.paused for part in (await _channel(view)).nodes or ()] == [True, True]
        assert (await view.actions.act(Verb.UNPAUSE, "t", "c")).message == ""
        assert not (await _channel(view)).paused
    view = through_lookupd(nsq)
    assert (await _channel(view)).depth == 2
    assert (await view.actions.act(Verb.EMPTY, "t", "c")).message == ""
    assert (await _channel(view)).depth == 0
    assert (await view.actions.delete("t")).message == ""
    assert (await through_nsqds(nsq).topology.topics()).value == ()


async def _channel(view: View) -> ChannelFigures:
    return (await view.observer.channel("t", "c")).value
