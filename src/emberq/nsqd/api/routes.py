"""Every path that nsqd answers."""

from __future__ import annotations

from emberq.base.clock import NS_PER_MS
from emberq.http.debug.profiler import profiler_routes
from emberq.http.router import Route
from emberq.nsqd.api.channel import ChannelApi
from emberq.nsqd.api.config import ConfigApi
from emberq.nsqd.api.debug import MAX_FORM_BYTES, free_memory, set_block_rate
from emberq.nsqd.api.info import InfoApi
from emberq.nsqd.api.journal import JournalApi
from emberq.nsqd.api.journal_read import JournalReadApi
from emberq.nsqd.api.node import Node
from emberq.nsqd.api.policy import MAX_POLICY_BYTES, PolicyApi
from emberq.nsqd.api.publish import PublishApi
from emberq.nsqd.api.stats import StatsApi
from emberq.nsqd.api.topic import TopicApi


def routes(node: Node) -> list[Route]:
    """The table of routes. What the largest body is, and what is said about a larger one, stands here too."""
    options = node.options
    max_msg_size, max_body_size = options.max_msg_size, options.max_body_size
    info, stats, config = InfoApi(node), StatsApi(node), ConfigApi(node)
    topic = TopicApi(node.broker, node.persist_metadata)
    channel = ChannelApi(node.broker, node.persist_metadata)
    policy = PolicyApi(node.broker)
    journal, journal_read = JournalApi(node.broker), JournalReadApi(node.broker)
    publish = PublishApi(
        node.broker,
        max_msg_size=max_msg_size,
        max_body_size=max_body_size,
        max_req_timeout_ms=options.max_req_timeout_ns // NS_PER_MS,
    )
    return [
        Route("GET", "/ping", info.ping),
        Route("GET", "/info", info.info),
        Route("POST", "/pub", publish.publish_one, max_body_bytes=max_msg_size, too_big="MSG_TOO_BIG", quiet=True),
        Route("POST", "/mpub", publish.publish_many, max_body_bytes=max_body_size, too_big="BODY_TOO_BIG", quiet=True),
        Route("GET", "/stats", stats.stats),
        Route("POST", "/topic/create", topic.create),
        Route("POST", "/topic/delete", topic.delete),
        Route("POST", "/topic/empty", topic.empty),
        Route("POST", "/topic/pause", topic.pause),
        Route("POST", "/topic/unpause", topic.unpause),
        Route("POST", "/channel/create", channel.create),
        Route("POST", "/channel/delete", channel.delete),
        Route("POST", "/channel/empty", channel.empty),
        Route("POST", "/channel/pause", channel.pause),
        Route("POST", "/channel/unpause", channel.unpause),
        Route("GET", "/channel/peek", channel.peek),
        Route("POST", "/channel/seek", channel.seek),
        Route("GET", "/channel/policy", policy.get),
        Route("POST", "/channel/policy", policy.set, max_body_bytes=MAX_POLICY_BYTES, too_big="INVALID_POLICY"),
        Route("POST", "/channel/redrive", policy.redrive),
        Route("GET", "/topic/peek", journal.peek),
        Route("GET", "/journal", journal.describe),
        Route("GET", "/journal/read", journal_read.read),
        Route("GET", "/config/{option}", config.get),
        Route("PUT", "/config/{option}", config.put, max_body_bytes=max_msg_size, too_big="INVALID_VALUE"),
        *profiler_routes(),
        Route("POST", "/debug/freememory", free_memory),
        Route("PUT", "/debug/setblockrate", set_block_rate, max_body_bytes=MAX_FORM_BYTES),
    ]
