"""Disk queues moved into a journal, when a topic that was not journaled becomes so.

A run without journals, ours or that of the Go nsqd, leaves a disk queue for the topic and one for each channel. When
the topic is opened as a journaled one, they are moved into the journal: first those of the channels, then its own.

    journal   ......|channel a's|channel b's|the topic's own
    cursor a  ......|...........|AAAAAAAAAAA|...............      A: acknowledged, because these are not a's
    cursor b  ......|AAAAAAAAAAA|...........|...............
                                            ^ topic.mark: what follows waits in the topic

Publish times, attempts and due times are kept. Ids change, because in a journal they are offsets.

A crash may come at any moment. The other channels acknowledge a range before it is written, so that they never see a
message of it. If less is written than they acknowledged, the next opening of the journal passes over the rest, as after
a power failure. A message leaves its disk queue only when the journal has it on the disk, so the last block may come
twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from emberq.base.clock import Clock
from emberq.broker.store import Store
from emberq.storage.backend import LENGTH_BYTES, Backend, Records
from emberq.storage.error import StorageError
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.folder import JournalFolder
from emberq.wire.frame import WireMessage, decode_message
from emberq.wire.journal_batch import Bodies

MAX_PORTION_COUNT = 10_000
"""The most messages that are moved at a time; a disk queue may give fewer at once."""

_log = logging.getLogger(__name__)


def migrate(topic: str, *, store: Store, folder: JournalFolder, clock: Clock) -> None:
    """Move the disk queues of a topic, if there are any. StorageError if that fails; calling it again goes on."""
    names = store.left_queues(topic)
    if names:
        _Migration(topic, names, store=store, folder=folder, clock=clock).run()


class _Migration:
    """Moves the disk queues of one topic into its journal, before the topic has channels."""

    def __init__(self, topic: str, names: list[str], *, store: Store, folder: JournalFolder, clock: Clock) -> None:
        self._topic = topic
        self._names = names
        self._store = store
        self._folder = folder
        self._journal = folder.journal
        self._clock = clock
        mark = folder.load_mark()
        start_offset = self._journal.next_offset if mark is None else mark
        channels = {*folder.channel_names(), *(self._channel_of(name) for name in names if name != topic)}
        self._cursors = {channel: folder.cursor(channel, start_offset=start_offset) for channel in sorted(channels)}

    def run(self) -> None:
        for name in self._names:
            if name != self._topic:
                self._move_channel(name)
        if self._topic in self._names:
            self._move_topic()

    def _channel_of(self, name: str) -> str:
        return name.removeprefix(f"{self._topic}:")

    # A channel's queue.

    def _move_channel(self, name: str) -> None:
        channel = self._channel_of(name)
        own = self._cursors[channel]
        backend = self._store.backend(name)
        due_ns = self._store.load_times(name, "due")
        moved_count = 0
        try:
            while backend.depth:
                moved_count += self._move_round(backend, channel, due_ns)
            self._folder.cursor_file(channel).save(own)
        except StorageError:
            backend.close()
            raise
        self._remove(backend, name, moved_count)
        self._store.save_times(name, "due", {})

    def _move_round(self, backend: Backend, channel: str, due_ns: Mapping[bytes, int]) -> int:
        """Move as many messages as the queue says it has; how many it really had."""
        base_offset = self._journal.next_offset
        end_offset = base_offset + backend.depth
        for other, cursor in self._cursors.items():
            if other != channel:
                cursor.acknowledge(base_offset, end_offset)
                self._folder.cursor_file(other).save(cursor)
        own = self._cursors[channel]
        while self._journal.next_offset < end_offset and backend.depth:
            room = end_offset - self._journal.next_offset
            self._move_portion(backend, max_count=min(room, MAX_PORTION_COUNT), due_ns=due_ns, cursor=own)
        moved_count = self._journal.next_offset - base_offset
        own.acknowledge(self._journal.next_offset, end_offset)
        self._journal.skip_to(end_offset)
        return moved_count

    # The topic's own queue.

    def _move_topic(self) -> None:
        name = self._topic
        backend = self._store.backend(name)
        wall_ns = self._clock.wall_ns()
        due_ns = {
            message_id: wall_ns + delay_ns for message_id, delay_ns in self._store.load_times(name, "delay").items()
        }
        start_offset = self._journal.next_offset
        try:
            if backend.depth and self._folder.load_mark() is None:
                self._folder.save_mark(start_offset)
            while backend.depth:
                self._move_portion(backend, max_count=MAX_PORTION_COUNT, due_ns=due_ns, cursor=None)
        except StorageError:
            backend.close()
            raise
        self._remove(backend, name, self._journal.next_offset - start_offset)
        self._store.save_times(name, "delay", {})

    # Both.

    def _move_portion(
        self, backend: Backend, *, max_count: int, due_ns: Mapping[bytes, int], cursor: Cursor | None
    ) -> None:
        """Move one block: into the journal, to the disk, and out of the queue."""
        records = backend.peek(max_count=max_count)
        if records is None:
            if backend.depth:
                raise StorageError(f"the disk queue of {self._topic} cannot be read now")
            return
        messages = _messages_in(records)
        dues = [due_ns.get(message.id, 0) for message in messages]
        stored = self._journal.append(
            Bodies.of([message.body for message in messages]),
            timestamp_ns=self._clock.wall_ns(),
            times_ns=[message.timestamp_ns for message in messages],
            due_ns=dues if any(dues) else None,
        )
        self._journal.sync()
        if cursor is not None:
            for offset, (message, due) in enumerate(zip(messages, dues, strict=True), stored.base_offset):
                cursor.note_attempts(offset, message.attempts)
                cursor.note_due(offset, due)
        _drop(backend, len(messages))

    def _remove(self, backend: Backend, name: str, moved_count: int) -> None:
        backend.delete()
        backend.sync()  # the journal has the messages now: a crash must not bring them twice
        _log.info("TOPIC(%s): moved %d messages of the disk queue %s to the journal", self._topic, moved_count, name)


def _messages_in(records: Records) -> list[WireMessage]:
    messages: list[WireMessage] = []
    start = 0
    for end in records.ends:
        messages.append(decode_message(records.blob[start + LENGTH_BYTES : end]))
        start = end
    return messages


def _drop(backend: Backend, count: int) -> None:
    """Remove the first `count` messages from the queue."""
    while count > 0:
        records = backend.take(max_count=count, max_bytes=1 << 62)
        if records is None:
            return  # the queue is empty, or has set a damaged file aside and is empty now
        count -= len(records.ends)
