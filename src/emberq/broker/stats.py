"""Snapshots of what the broker holds: immutable, taken at one moment, safe to hand to anyone."""

from __future__ import annotations

from dataclasses import dataclass

from emberq.broker.latency import NO_LATENCY, LatencySummary
from emberq.storage.policy import ChannelPolicy


@dataclass(frozen=True, slots=True)
class ClientStats:
    """One connection."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    remote_address: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: bool = False
    tls_version: str = ""
    tls_cipher_suite: str = ""
    tls_negotiated_protocol: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: tuple[tuple[str, int], ...] = ()
    """How many messages it published, by topic."""


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel."""

    name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    paused: bool
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    clients: tuple[ClientStats, ...]
    e2e: LatencySummary = NO_LATENCY
    """How long its messages took from publish to finish."""
    dead_letter_count: int = 0
    """Messages that were tried too often and went to the dead-letter topic."""
    redriven_count: int = 0
    """Messages that were moved to another topic to be tried again."""
    policy: ChannelPolicy | None = None
    """When messages are given up; None: never."""

    @property
    def client_count(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStats:
    """The journal of one topic."""

    first_offset: int
    """The oldest message that is kept."""
    next_offset: int
    """What the next message will get."""
    synced_offset: int
    """Everything before it is on the disk."""
    size_bytes: int
    lag: int
    """How many messages the channel that is furthest behind has still to finish."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic."""

    name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e: LatencySummary = NO_LATENCY
    """The same of all its channels together."""
    journal: JournalStats | None = None
    """None if it has none."""
