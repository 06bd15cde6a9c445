"""Small publishes of one turn of the event loop, gathered into one batch per topic.

Many clients publish one message and wait for its OK. Each turn of the loop reads from all of them that have sent
something; what they sent is put together here and published at the end of the turn, before any of them is answered. So
the broker's work is done once per turn and topic instead of once per message, and messages that came alone lie in
memory, on disk and on the wire as batches like all others. A publish is answered only when its batch is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from emberq.broker.batch import MAX_BATCH_BYTES
from emberq.broker.broker import Broker
from emberq.broker.error import BrokerError
from emberq.storage.errors import StorageError
from emberq.wire.command import Publish

MAX_GATHERED_BYTES = MAX_BATCH_BYTES
"""A turn that brings more is flushed in between: a larger batch would be cut again."""


class Publisher(Protocol):
    """Who published, and waits to hear what became of it."""

    def accepted(self, command: Publish) -> None: ...

    def refused(self, command: Publish, refusal: Exception) -> None: ...


class Intake:
    """Owned by the daemon; `flush` is called by the loop at the end of each turn that brought something."""

    def __init__(self, broker: Broker, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._broker = broker
        self._call_soon = call_soon
        self._gathered: dict[str, list[tuple[Publisher, Publish]]] = {}
        self._gathered_bytes = 0

    def add(self, publisher: Publisher, command: Publish) -> None:
        """Publish with the others of this turn."""
        gathered = self._gathered
        if not gathered:
            self._call_soon(self.flush)
        waiting = gathered.get(command.topic)
        if waiting is None:
            gathered[command.topic] = [(publisher, command)]
        else:
            waiting.append((publisher, command))
        self._gathered_bytes += len(command.blob)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish what was gathered and let everyone know."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        for topic, waiting in gathered.items():
            self._publish(topic, waiting)

    def publish(self, publisher: Publisher, command: Publish) -> None:
        """Publish at once, alone: for what is a batch already."""
        self._publish(command.topic, [(publisher, command)])

    def _publish(self, topic: str, waiting: Sequence[tuple[Publisher, Publish]]) -> None:
        try:
            blob, ends = _join([command for _, command in waiting])
            self._broker.topic(topic).publish(blob, ends)
        except (BrokerError, StorageError) as refusal:
            for publisher, command in waiting:
                publisher.refused(command, refusal)
        else:
            for publisher, command in waiting:
                publisher.accepted(command)


def _join(commands: Sequence[Publish]) -> tuple[bytes, Sequence[int]]:
    """The messages of all commands, back to back."""
    first = commands[0]
    if len(commands) == 1:
        return first.blob, first.ends
    blob = b"".join([command.blob for command in commands])
    size = first.ends[0]
    count = sum([len(command.ends) for command in commands])
    if len(blob) == size * count and all(command.ends[0] == size == command.ends[-1] for command in commands):
        return blob, range(size, len(blob) + 1, size)
    ends: list[int] = []
    offset = 0
    for command in commands:
        ends += [offset + end for end in command.ends] if offset else command.ends
        offset += len(command.blob)
    return blob, ends
