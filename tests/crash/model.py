"""What was promised to publishers and consumers, and what must therefore be true after a crash.

A run writes down events, each with the moment of the file system at which it happened (`simulated_files`). `at` gives
the promises as they stood at any moment: a crash at that moment is held against those, and against no later ones.

    stored      a publisher was told OK. With sync `always` the message survives a power cut; else only a dead process
    seen        a consumer or a reader may know the message by its offset, which then belongs to it for ever
    owed        a message that a channel has to deliver: stored behind the place where the channel began, or was moved
                to, and not finished
    logged      a message that was finished so long ago that its channel does not deliver it again, unless the machine
                dies
    deleted     a topic or channel whose deletion was answered never comes back. One whose deletion was not is there as
                a whole, or not at all
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from uuid import UUID

from emberq.wire.parameter import ProducerSequence


class BrokenPromiseError(AssertionError):
    """The state after a crash is not what was promised."""


@dataclass
class PublishedBatch:
    """Messages that were published together, each with a body of its own."""

    topic: str
    bodies: tuple[bytes, ...]
    producer: ProducerSequence | None
    journal: UUID | None = None
    base_offset: int | None = None
    """None: not appended, or never known."""
    is_stored: bool = False
    is_lost: bool = False
    """A power cut or retention took it, and was allowed to."""
    is_trimmed: bool = False
    """It was retention. The producer is still known."""


@dataclass
class ChannelPromise:
    """What a channel has to deliver."""

    floor: int
    """The offset it began at, or was moved to: it owes what lies behind."""
    lowest: int
    """It gives nothing before this offset. Less than `floor` if it may be at another place, or was found at one."""
    finished: set[bytes] = field(default_factory=set)
    finished_before: set[bytes] = field(default_factory=set)
    """What was finished before it was moved, which counts if a crash brings the old place back."""
    logged: set[bytes] = field(default_factory=set)
    """What a process that dies does not bring back."""
    is_certain: bool = True
    """Whether it is there for sure; while it is moved, a crash may leave it at either place."""
    deletion: int = 0
    """The number of its deletion, if one has begun: then it may be gone."""


@dataclass
class Promises:
    """All promises at one moment."""

    batches: dict[int, PublishedBatch] = field(default_factory=dict)
    channels: dict[tuple[str, str], ChannelPromise] = field(default_factory=dict)
    seen: dict[tuple[UUID, int], bytes] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    """Topics that were deleted."""
    leaving: set[str] = field(default_factory=set)
    """Topics of which the deletion has begun: each is there as a whole, or gone."""
    deleted_channels: set[tuple[str, str]] = field(default_factory=set)
    bodies: dict[bytes, str] = field(default_factory=dict)
    """Everything that was ever published, and the topic."""

    def copy(self) -> Promises:
        """The same promises, to be changed apart from these."""
        return Promises(
            {number: copy.copy(batch) for number, batch in self.batches.items()},
            {
                key: replace(
                    known,
                    finished=set(known.finished),
                    finished_before=set(known.finished_before),
                    logged=set(known.logged),
                )
                for key, known in self.channels.items()
            },
            dict(self.seen),
            set(self.deleted),
            set(self.leaving),
            set(self.deleted_channels),
            dict(self.bodies),
        )

    def of_topic(self, topic: str) -> list[tuple[int, PublishedBatch]]:
        """The batches of a topic, each with its number."""
        if topic in self.deleted:
            return []
        return [(number, batch) for number, batch in self.batches.items() if batch.topic == topic]

    def topics(self) -> set[str]:
        return {batch.topic for batch in self.batches.values()} - self.deleted

    def owed(self, topic: str, channel: str) -> set[bytes]:
        """What a channel has to deliver still."""
        promise = self.channels.get((topic, channel))
        if promise is None or not promise.is_certain:
            return set()
        return {
            body
            for _, batch in self.of_topic(topic)
            if batch.is_stored and not batch.is_lost and batch.base_offset is not None
            for offset, body in enumerate(batch.bodies, batch.base_offset)
            if offset >= promise.floor and body not in promise.finished
        }

    def before(self, topic: str, offset: int) -> set[bytes]:
        """The messages of a topic whose offsets are known to be before this one."""
        return {
            body
            for _, batch in self.of_topic(topic)
            if batch.base_offset is not None
            for at, body in enumerate(batch.bodies, batch.base_offset)
            if at < offset
        }

    def is_owed(self, topic: str, body: bytes, *, found: Container[str]) -> bool:
        """Whether any channel of the topic has to deliver it: one whose deletion has begun, only if it was `found`."""
        return any(
            body in self.owed(topic, name)
            for (of, name), promise in self.channels.items()
            if of == topic and (not promise.deletion or name in found)
        )


Change = Callable[[Promises], None]


class Model:
    """The promises of one run, as a base and the events since."""

    def __init__(self, base: Promises | None = None) -> None:
        self._base = base or Promises()
        self._events: list[tuple[int, Change]] = []
        self.now = self._base.copy()
        """The promises after the last event."""

    def note(self, moment: int, change: Change) -> None:
        """Something happened."""
        self._events.append((moment, change))
        change(self.now)

    def at(self, moment: int) -> Promises:
        """The promises at that moment."""
        promises = self._base.copy()
        for at, change in self._events:
            if at <= moment:
                change(promises)
        return promises

    # Events.

    def published(self, moment: int, number: int, batch: PublishedBatch) -> None:
        """A publisher has sent a batch; what becomes of it is open."""

        def change(promises: Promises) -> None:
            promises.batches[number] = copy.copy(batch)
            for body in batch.bodies:
                promises.bodies[body] = batch.topic

        self.note(moment, change)

    def appended(self, moment: int, number: int, *, journal: UUID, base_offset: int | None) -> None:
        """A batch is in the journal, with these offsets, or with offsets that are not known yet."""

        def change(promises: Promises) -> None:
            promises.batches[number].journal = journal
            promises.batches[number].base_offset = base_offset

        self.note(moment, change)

    def stored(self, moment: int, number: int) -> None:
        """Its publisher was told OK."""

        def change(promises: Promises) -> None:
            batch = promises.batches[number]
            batch.is_stored = True
            batch.is_lost = False
            if batch.journal is not None and batch.base_offset is not None:
                for offset, body in enumerate(batch.bodies, batch.base_offset):
                    promises.seen[batch.journal, offset] = body

        self.note(moment, change)

    def lost(self, moment: int, number: int, *, is_trimmed: bool) -> None:
        """A batch is gone, and was allowed to: by a power cut, or by retention."""

        def change(promises: Promises) -> None:
            promises.batches[number].is_lost = True
            promises.batches[number].is_trimmed = is_trimmed

        self.note(moment, change)

    def channel_found(self, moment: int, topic: str, name: str, *, floor: int) -> None:
        """A crash came while the channel was moved, and this is where it is."""

        def change(promises: Promises) -> None:
            known = promises.channels[topic, name]
            finished = known.finished | known.finished_before
            lowest = min(known.lowest, floor)
            promises.channels[topic, name] = ChannelPromise(floor, lowest, finished, deletion=known.deletion)

        self.note(moment, change)

    def channel_begins(self, moment: int, topic: str, name: str) -> None:
        """A channel is being made; from now on it may be there in the place of one that was deleted."""

        def change(promises: Promises) -> None:
            promises.deleted_channels.discard((topic, name))
            known = promises.channels.get((topic, name))
            if known is not None:
                known.is_certain = False

        self.note(moment, change)

    def channel_created(self, moment: int, topic: str, name: str, *, floor: int) -> None:
        """A channel begins at this offset."""

        def change(promises: Promises) -> None:
            promises.channels[topic, name] = ChannelPromise(floor, floor)

        self.note(moment, change)

    def channel_moved(self, moment: int, topic: str, name: str, *, floor: int, is_certain: bool) -> None:
        """A channel is moved to this offset; certain when that was answered."""

        def change(promises: Promises) -> None:
            known = promises.channels.get((topic, name))
            if known is None:
                return  # it was deleted, and a crash has brought it back: nothing is promised of it
            if is_certain:
                known.is_certain = True
                known.lowest = known.floor
                known.finished_before.clear()
            else:
                before = known.finished | known.finished_before
                lowest = min(known.lowest, floor)
                promises.channels[topic, name] = ChannelPromise(floor, lowest, finished_before=before, is_certain=False)

        self.note(moment, change)

    def finished(self, moment: int, topic: str, name: str, body: bytes) -> None:
        """A consumer has finished a message."""

        def change(promises: Promises) -> None:
            promise = promises.channels.get((topic, name))
            if promise is not None:
                promise.finished.add(body)
                promise.logged.discard(body)  # if a power cut brought it back, it is to be written down again

        self.note(moment, change)

    def logged(self, moment: int) -> None:
        """All channels have had the time to write down what was finished."""

        def change(promises: Promises) -> None:
            for promise in promises.channels.values():
                if promise.is_certain:
                    promise.logged |= promise.finished

        self.note(moment, change)

    def channel_leaves(self, moment: int, topic: str, name: str, *, deletion: int) -> None:
        """The deletion of a channel, which has this number, begins; 0: it has been refused."""

        def change(promises: Promises) -> None:
            known = promises.channels.get((topic, name))
            if known is not None:
                known.deletion = deletion

        self.note(moment, change)

    def channel_deleted(self, moment: int, topic: str, name: str, *, deletion: int | None = None) -> None:
        """A channel is gone for good; unless it was made anew since its deletion, which has this number, began."""

        def change(promises: Promises) -> None:
            known = promises.channels.get((topic, name))
            if known is not None and deletion in (None, known.deletion):
                del promises.channels[topic, name]
                promises.deleted_channels.add((topic, name))

        self.note(moment, change)

    def topic_leaves(self, moment: int, topic: str) -> None:
        """The deletion of a topic begins."""
        self.note(moment, lambda promises: promises.leaving.add(topic))

    def topic_stays(self, moment: int, topic: str) -> None:
        """The deletion of a topic was refused, or a crash has undone it."""
        self.note(moment, lambda promises: promises.leaving.discard(topic))

    def topic_deleted(self, moment: int, topic: str) -> None:
        """A topic is gone for good."""

        def change(promises: Promises) -> None:
            promises.leaving.discard(topic)
            promises.deleted.add(topic)
            for key in [key for key in promises.channels if key[0] == topic]:
                del promises.channels[key]

        self.note(moment, change)
