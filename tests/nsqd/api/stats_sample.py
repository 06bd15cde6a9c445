"""A node's statistics with something in every field, for the tests of both shapes of /stats."""

from __future__ import annotations

from emberq.broker.stats import ChannelStats, ClientStats, LatencySummary, Percentile, TopicStats
from emberq.nsqd.api.stats import ShownChannel, ShownTopic, StatsReport
from emberq.nsqd.metrics import MemoryStats

CONSUMER = ClientStats(
    client_id="worker",
    hostname="worker.example",
    user_agent="agent/1.0",
    remote_address="10.0.0.7:43210",
    state=3,
    ready_count=2,
    in_flight_count=2,
    message_count=12,
    finish_count=9,
    requeue_count=1,
    connect_ts=1_700_000_000,
    sample_rate=50,
    snappy=True,
    topology_zone="z",
    topology_region="r",
)

PRODUCER = ClientStats(
    client_id="source",
    hostname="source.example",
    user_agent="agent/1.0",
    remote_address="@",
    connect_ts=1_700_000_060,
    authed=True,
    auth_identity="source",
    auth_identity_url="https://auth.example/source",
    tls=True,
    tls_version="tls1.3",
    tls_cipher_suite="TLS_AES_128_GCM_SHA256",
    pub_counts=(("orders", 40), ("visits", 2)),
)

CHANNEL = ChannelStats(
    name="archive",
    depth=7,
    backend_depth=3,
    in_flight_count=2,
    deferred_count=1,
    message_count=19,
    requeue_count=4,
    timeout_count=5,
    paused=False,
    zone_local_msg_count=0,
    region_local_msg_count=6,
    global_msg_count=8,
    clients=(CONSUMER,),
    e2e=LatencySummary(9, (Percentile(1.0, 2_500_000_000), Percentile(0.95, 1_500))),
)

TOPIC = TopicStats(
    name="orders",
    channels=(CHANNEL,),
    depth=6,
    backend_depth=1,
    message_count=42,
    message_bytes=4200,
    paused=False,
)


def as_shown(topic: TopicStats) -> ShownTopic:
    """A topic as a report has it."""
    channels = [ShownChannel(channel, channel.client_count, channel.clients) for channel in topic.channels]
    return ShownTopic(topic, channels)


REPORT = StatsReport(
    health="OK",
    start_time_s=1_700_000_000,
    now_s=1_700_000_078,
    topics=(as_shown(TOPIC),),
    memory=MemoryStats(heap_objects=3134, gc_total_runs=2),
    producers=(PRODUCER,),
    shows_clients=True,
)
