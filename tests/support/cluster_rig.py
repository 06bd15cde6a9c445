"""What tests of the cluster package share: someone who asks, real daemons to ask, and made up statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.cluster.action import Actions
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.survey import NOTHING, ClusterReader, Survey, Tally
from emberq.cluster.topology import ClusterAddresses, ClusterNode, Topology
from emberq.cluster.upstream import Credentials, Upstreams
from emberq.embedded import EmbeddedThread
from emberq.http.client import HttpClient

DEAD = "127.0.0.1:1"
"""Nobody listens there."""
REFUSED = f'Get "http://{DEAD}/{{}}": cannot connect: Connection refused'

NODE = ClusterNode(
    broadcast_address="nsqd.example",
    hostname="host",
    tcp_port=4150,
    http_port=4151,
    version="1.3.0",
    topology_region="eu",
    topology_zone="eu-1",
)


def make_upstreams(*, request_timeout_ms: int = 5_000, secret: bytes = b"") -> Upstreams:
    http = HttpClient(connect_timeout_ns=2 * NS_PER_SECOND, request_timeout_ns=request_timeout_ms * NS_PER_MS)
    return Upstreams(http, credentials=Credentials(nsqd=secret))


class View:
    """All that can be asked about, and done to, the cluster at these addresses."""

    def __init__(self, *, lookupds: tuple[str, ...] = (), nsqds: tuple[str, ...] = ()) -> None:
        self.upstreams = make_upstreams()
        self.topology = Topology(self.upstreams, ClusterAddresses(lookupds=lookupds, nsqds=nsqds))
        self.observer = ClusterReader(self.upstreams, self.topology)
        self.actions = Actions(self.upstreams, self.topology)


def through_lookupd(nsq: EmbeddedThread, *more: str) -> View:
    """The cluster as its nsqlookupd knows it."""
    return View(lookupds=(*nsq.lookupd_http_addresses, *more))


def through_nsqds(nsq: EmbeddedThread, *more: str) -> View:
    """The cluster as its nsqds know it."""
    return View(nsqds=(*nsq.nsqd_http_addresses, *more))


def channel_entry(name: str = "c", **fields: Any) -> dict[str, Any]:
    """A channel as /stats shows it."""
    return {
        "channel_name": name,
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "message_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "client_count": 0,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    } | fields


def topic_entry(name: str = "t", *channels: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A topic as /stats shows it."""
    return {
        "topic_name": name,
        "channels": list(channels),
        "depth": 0,
        "backend_depth": 0,
        "message_count": 0,
        "message_bytes": 0,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    } | fields


def seen(*, before: Survey | None = None, at_s: int = 1, **topics_by_node: list[dict[str, Any]]) -> Survey:
    """A look at a cluster of these nsqds."""
    producers = [replace(NODE, broadcast_address=node) for node in topics_by_node]
    then = before.nodes if before is not None else NOTHING
    tally = Tally(then)
    for producer, topics in zip(producers, topics_by_node.values(), strict=True):
        tally.add(StatsReader(producer, before=then.get(producer.node)).figures({"topics": topics}))
    return Survey(producers, tally, taken_ns=at_s * NS_PER_SECOND, before=before)
