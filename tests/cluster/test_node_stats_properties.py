"""A hostile nsqd: whatever it says of itself in /stats, its figures are read and summed, or refused in a line."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import CHANNEL_FIGURES, LOCALITIES, total_channel, total_topic
from emberq.cluster.upstream import MalformedDocumentError, as_document
from emberq.tools.nsq_stat import row
from tests.client.hostile_wire import values
from tests.support.cluster_rig import NODE
from tests.support.examples import examples

_FIGURES = [*CHANNEL_FIGURES, *LOCALITIES, "paused", "clients", "e2e_processing_latency", "policy", "channel_name"]
counts = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**63, 10**400]) | values
clients = st.lists(st.dictionaries(st.sampled_from(["client_id", "name", "state", "connect_ts"]), values), max_size=2)
percentiles = st.lists(
    st.dictionaries(st.sampled_from(["quantile", "value", "min", "max", "average", "count"]), counts), max_size=3
)
latencies = st.fixed_dictionaries({"count": counts, "percentiles": percentiles | values})
channels = st.dictionaries(st.sampled_from(_FIGURES), counts | clients | latencies, max_size=5)
topics = st.builds(
    lambda figures, of_topic: figures | {"channels": of_topic, "topic_name": "t"},
    st.dictionaries(st.sampled_from(_FIGURES), counts | latencies, max_size=4),
    st.lists(channels, max_size=3) | values,
)
documents = st.one_of(
    values,
    st.builds(
        lambda found, memory: {"topics": found, "memory": memory},
        st.lists(topics, max_size=3) | values,
        st.dictionaries(st.text(max_size=3), counts, max_size=2) | values,
    ),
)


def _channel(**figures: Any) -> Any:
    return {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", **figures}]}]}


@examples(300)
@given(documents)
@example(_channel(message_count=-(2**63), depth=2**63 - 1))
@example(_channel(e2e_processing_latency={"count": 10**400, "percentiles": [{"quantile": 0.5, "value": 1.5}]}))
@example(_channel(e2e_processing_latency={"count": 1, "percentiles": [{"quantile": 0.5, "value": 10**400}]}))
@example(_channel(clients=[{"connect_ts": 10**400}]))
def test_any_answer_is_summed_or_refused(answer: Any) -> None:
    reader = StatsReader(NODE)
    try:
        figures = reader.figures(as_document(answer), with_details=True)
    except MalformedDocumentError:
        return
    assert len(figures.settled) == len(figures.keys)
    found = figures.topics()
    if found:
        total_topic("t", found)
    of_channels = [channel for topic in found for channel in topic.channels]
    if of_channels:
        total = total_channel(of_channels)
        assert row(total, total, interval_ns=NS_PER_SECOND)
