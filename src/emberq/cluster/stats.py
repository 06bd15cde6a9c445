"""Topics, channels and clients in figures: on one nsqd, or over several.

The same classes serve for both. Over several nsqds `node` is `*`, and `nodes` holds the figures of each.

They are named tuples and not frozen dataclasses because there may be tens of thousands of clients, and a named tuple is
made in less than half the time. All topics of all nodes are too many even so: see `node_figures`.
"""

from __future__ import annotations

from typing import NamedTuple

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.latency import Latency

EVERY_NODE = "*"


class ClientStats(NamedTuple):
    """A consumer of a channel."""

    node: str
    """The nsqd it is connected to."""
    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    connect_ts: int
    """When it connected, in seconds since the Unix epoch."""
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    sample_rate: int
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool
    topology_region: str
    topology_zone: str
    node_topology_region: str
    node_topology_zone: str

    def connected_ns(self, now_ns: int) -> int:
        """How long it has been connected at `now_ns`, by the wall clock; in whole seconds."""
        return max(now_ns // NS_PER_SECOND - self.connect_ts, 0) * NS_PER_SECOND

    @property
    def distance(self) -> int:
        """0 in the node's zone, 1 in its region, 2 elsewhere."""
        if self.topology_region != self.node_topology_region:
            return 2
        return 0 if self.topology_zone == self.node_topology_zone else 1


class DeadLetterPolicy(NamedTuple):
    """When a channel gives up on a message, and where that goes."""

    max_attempts: int
    dead_letter_topic: str


class ChannelStats(NamedTuple):
    """A channel."""

    node: str
    hostname: str
    topic_name: str
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    """Messages that came from the topic, since the nsqd was started."""
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    client_count: int
    paused: bool
    """On any node."""
    latency: Latency
    clients: tuple[ClientStats, ...] = ()
    """Empty if they were not asked for."""
    nodes: tuple[ChannelStats, ...] | None = None
    policy: DeadLetterPolicy | None = None
    """Over several nodes, what all of them have; None if there is none, or they differ."""
    dead_letter_count: int = 0
    """Messages that it gave up on."""
    redriven_count: int = 0
    """Dead letters that were sent back from it."""

    @property
    def memory_depth(self) -> int:
        """Messages that are not on disk."""
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        """Deliveries that were counted by how far the client was."""
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count

    @property
    def settled_count(self) -> int:
        """Messages that the channel took in and holds no more: finished, or thrown away."""
        return self.message_count - self.depth - self.in_flight_count - self.deferred_count


class TopicStats(NamedTuple):
    """A topic."""

    node: str
    hostname: str
    topic_name: str
    depth: int
    """Messages that no channel has taken yet."""
    backend_depth: int
    message_count: int
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    paused: bool
    """On any node."""
    latency: Latency
    channels: tuple[ChannelStats, ...]
    """By name."""
    nodes: tuple[TopicStats, ...] | None = None

    @property
    def memory_depth(self) -> int:
        """Messages that are not on disk."""
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        """Deliveries that were counted by how far the client was."""
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count
