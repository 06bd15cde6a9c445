"""Figures of many nsqds made into one: sums, with the parts kept beside them.

Depths and counts are added up; a thing is paused if it is so anywhere; percentiles are combined as `latency` says; a
policy is the one that all have.
Inside a topic, a channel that only one nsqd has stays as that nsqd's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from emberq.cluster.latency import combined
from emberq.cluster.stats import EVERY_NODE, ChannelStats, ClientStats, TopicStats


def total_topic(name: str, parts: Sequence[TopicStats]) -> TopicStats:
    """A topic over the nodes that have it, which may be none."""
    by_channel: dict[str, list[ChannelStats]] = {}
    for part in parts:
        for channel in part.channels:
            by_channel.setdefault(channel.channel_name, []).append(channel)
    return TopicStats(
        node=EVERY_NODE,
        hostname="",
        topic_name=name,
        depth=sum(part.depth for part in parts),
        backend_depth=sum(part.backend_depth for part in parts),
        message_count=sum(part.message_count for part in parts),
        zone_local_msg_count=sum(part.zone_local_msg_count for part in parts),
        region_local_msg_count=sum(part.region_local_msg_count for part in parts),
        global_msg_count=sum(part.global_msg_count for part in parts),
        paused=any(part.paused for part in parts),
        latency=combined((part.latency for part in parts), topic=name),
        channels=tuple(_channel_of_topic(by_channel[channel]) for channel in sorted(by_channel)),
        nodes=tuple(sorted(parts, key=lambda part: (part.hostname, part.node))),
    )


def _channel_of_topic(parts: Sequence[ChannelStats]) -> ChannelStats:
    return parts[0] if len(parts) == 1 else total_channel(parts)


def total_channel(parts: Sequence[ChannelStats]) -> ChannelStats:
    """A channel over the nodes that have it, of which there must be one."""
    topic, name = parts[0].topic_name, parts[0].channel_name
    return ChannelStats(
        node=EVERY_NODE,
        hostname="",
        topic_name=topic,
        channel_name=name,
        depth=sum(part.depth for part in parts),
        backend_depth=sum(part.backend_depth for part in parts),
        in_flight_count=sum(part.in_flight_count for part in parts),
        deferred_count=sum(part.deferred_count for part in parts),
        requeue_count=sum(part.requeue_count for part in parts),
        timeout_count=sum(part.timeout_count for part in parts),
        message_count=sum(part.message_count for part in parts),
        zone_local_msg_count=sum(part.zone_local_msg_count for part in parts),
        region_local_msg_count=sum(part.region_local_msg_count for part in parts),
        global_msg_count=sum(part.global_msg_count for part in parts),
        client_count=sum(part.client_count for part in parts),
        paused=any(part.paused for part in parts),
        latency=combined((part.latency for part in parts), topic=topic, channel=name),
        clients=sorted_clients(client for part in parts for client in part.clients),
        nodes=tuple(sorted(parts, key=lambda part: (part.hostname, part.node))),
        policy=parts[0].policy if len({part.policy for part in parts}) == 1 else None,
        dead_letter_count=sum(part.dead_letter_count for part in parts),
        redriven_count=sum(part.redriven_count for part in parts),
    )


def sorted_clients(clients: Iterable[ClientStats]) -> tuple[ClientStats, ...]:
    """By node, and within a node the nearest first."""
    return tuple(
        sorted(
            clients,
            key=lambda client: (client.node, client.distance, client.topology_region, client.topology_zone),
        )
    )
