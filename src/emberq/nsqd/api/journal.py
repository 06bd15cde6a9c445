"""GET /journal and GET /topic/peek: what a journal holds, as JSON. For its bytes see `journal_read`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from emberq.base.clock import NS_PER_MS
from emberq.base.moment import format_moment
from emberq.broker.broker import Broker
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.http.message import Request, Response, json
from emberq.nsqd.api.channel import MAX_PEEK_BYTES, peek_count, shown_body
from emberq.nsqd.api.failure import failing_as_internal_error
from emberq.nsqd.api.position import EARLIEST, asked_topic, position_of
from emberq.storage.journal.batch import JournalBatch
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import Gap

PEEK_READ_BYTES = 256 * 1024
"""Read at a time for a peek; at least one batch."""
TIME_READ_BYTES = 4096
"""The same for a message whose time alone matters."""

JsonObject = dict[str, Any]


class JournalApi:
    """Shows the journals of topics; changes nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self, request: Request) -> Response:
        """GET /journal: where it begins and ends, what is kept, its files, and how far each channel has come."""
        topic = asked_topic(self._broker, request.query())
        with failing_as_internal_error():
            return json(_description(topic))

    def peek(self, request: Request) -> Response:
        """GET /topic/peek: some messages from an offset or a moment on, whoever has read them already."""
        query = request.query()
        topic = asked_topic(self._broker, query)
        given = query.get("offset")
        offset = position_of(EARLIEST if given is None else given, topic, argument="offset")
        count = peek_count(query)
        with failing_as_internal_error():
            return json(_peeked(topic, offset, count))


def _description(topic: JournaledTopic) -> JsonObject:
    journal = topic.journal
    return {
        "topic_name": topic.name,
        "uuid": str(journal.uuid),
        "created": journal.created,
        "first_offset": journal.first_offset,
        "next_offset": journal.next_offset,
        "synced_offset": journal.synced_offset,
        "bytes": journal.total_bytes,
        **_times(topic),
        **_settings(topic),
        "segments": [
            {
                "file": segment.path.name,
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "bytes": segment.size_bytes,
            }
            for segment in journal.segments
        ],
        "gaps": [_gap(gap) for gap in journal.gaps],
        "channels": _channels(topic),
    }


def _times(topic: JournaledTopic) -> JsonObject:
    """When the oldest and the newest message that is kept were published; null where there is none to be read."""
    is_empty = topic.journal.first_offset >= topic.stored_offset
    ends = {"oldest": topic.journal.first_offset, "newest": topic.stored_offset - 1}
    return {name: None if is_empty else _moment_of(topic.journal, offset) for name, offset in ends.items()}


def _moment_of(journal: Journal, offset: int) -> str | None:
    """When the message was published, or, if it is damaged, the first one behind it that can be read."""
    batches = journal.read(offset, max_bytes=TIME_READ_BYTES).batches
    return format_moment(_published_ns(batches[0], max(offset, batches[0].base_offset))) if batches else None


def _settings(topic: JournaledTopic) -> JsonObject:
    """When a publish is confirmed, how large files get, and what retention leaves; null: no limit."""
    settings = topic.settings
    config = settings.config
    return {
        "sync": settings.sync,
        "segment_bytes": config.segment_bytes,
        "retention": {
            "bytes": config.retention_bytes,
            "time_ms": None if config.retention_ns is None else config.retention_ns // NS_PER_MS,
        },
    }


def _channels(topic: JournaledTopic) -> list[JsonObject]:
    """Those that are cursors; an ephemeral channel has no place in the journal."""
    cursors = [channel for channel in topic.channels.values() if isinstance(channel, JournaledChannel)]
    return [
        {"channel_name": channel.name, "low_water": channel.low_water, "lag": channel.lag}
        for channel in sorted(cursors, key=lambda channel: channel.name)
    ]


def _gap(gap: Gap) -> JsonObject:
    return {"first_offset": gap.first_offset, "next_offset": gap.next_offset, "reason": gap.reason}


def _peeked(topic: JournaledTopic, offset: int, count: int) -> JsonObject:
    """Up to `count` messages that are on the disk, as far as their bodies stay within the limit."""
    journal = topic.journal
    messages: list[JsonObject] = []
    gaps: list[Gap] = []
    room = MAX_PEEK_BYTES
    end = journal.synced_offset
    while offset < end and len(messages) < count:
        chunk = journal.read(offset, max_bytes=PEEK_READ_BYTES)
        gaps += chunk.gaps
        for shown, size in _messages(chunk.batches, start=offset, stop=end):
            room -= size
            if len(messages) == count or (room < 0 and messages):
                return _answer(messages, gaps, next_offset=shown["offset"])
            messages.append(shown)
        offset = min(chunk.next_offset, end)
    return _answer(messages, gaps, next_offset=offset)


def _answer(messages: list[JsonObject], gaps: list[Gap], *, next_offset: int) -> JsonObject:
    in_reach = [_gap(gap) for gap in gaps if gap.first_offset < next_offset]
    return {"messages": messages, "next_offset": next_offset, "gaps": in_reach}


def _messages(batches: list[JournalBatch], *, start: int, stop: int) -> Iterator[tuple[JsonObject, int]]:
    """Each message as it is shown, with the size of its body."""
    for batch in batches:
        for offset in range(max(start, batch.base_offset), min(stop, batch.next_offset)):
            index = offset - batch.base_offset
            body = batch.body(index)
            due_ns = 0 if batch.due_ns is None else batch.due_ns[index]
            shown = {
                "offset": offset,
                "id": f"{offset:016x}",
                "timestamp": _published_ns(batch, offset),
                **({"due": due_ns} if due_ns else {}),
                **shown_body(body),
            }
            yield shown, len(body)


def _published_ns(batch: JournalBatch, offset: int) -> int:
    return batch.timestamp_ns if batch.times_ns is None else batch.times_ns[offset - batch.base_offset]
