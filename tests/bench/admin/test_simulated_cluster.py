"""The acted cluster is taken for a real one by what asks it."""

from __future__ import annotations

import pytest

from bench.admin.simulated_cluster import SimulatedCluster, Size
from emberq.base.clock import ManualClock
from tests.support.cluster_rig import View

pytestmark = pytest.mark.loop("uvloop")


async def test_it_is_looked_at_like_a_real_one() -> None:
    with SimulatedCluster(Size(topics=4, nodes=4, nodes_per_topic=2, consumers=3)) as cluster:
        view = View(lookupds=(cluster.lookupd_address,))
        found = await view.observer.survey(ManualClock())
        channel = (await view.observer.channel("topic-0000", "worker")).value
        node = (await view.observer.node(found.value.producers[0].node)).value
    assert found.warnings == ()
    totals = found.value.totals
    assert [totals[f"topic-000{number}", ""].node_count for number in range(4)] == [4, 2, 2, 2]
    assert all(total.message_count > 0 for total in totals.values())
    assert (channel.client_count, len(channel.clients), len(channel.nodes or ())) == (12, 12, 4)
    assert node.total_clients >= 3


@pytest.mark.parametrize("nodes_per_topic", [1, 8, 80])
def test_topics_lie_evenly_on_nodes(nodes_per_topic: int) -> None:
    size = Size(nodes_per_topic=nodes_per_topic)
    counts = {len(size.topics_on(node)) for node in range(size.nodes)}
    assert max(counts) - min(counts) <= 2
