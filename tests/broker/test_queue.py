"""The queue of a topic or channel: memory first, then disk, and back."""

from __future__ import annotations

import pytest

from emberq.broker.batch import Batch, Span, published_batch
from emberq.broker.layout import Recorded
from emberq.broker.queue import MessageQueue
from emberq.storage.error import DiskWriteError, SyncError
from tests.broker.rig import Message, messages_in, numbered, published, stored
from tests.broker.simulated_disk import REFUSAL, SimulatedDisk, joined

ANY_BYTES = 1 << 30


class QueueRig:
    """A queue with its disk, and what it reported about its writes."""

    def __init__(self, *, capacity: int, max_bytes: int = ANY_BYTES) -> None:
        self.disk = SimulatedDisk()
        self.reports: list[str | None] = []
        self.queue = MessageQueue(
            max_count=capacity,
            max_bytes=max_bytes,
            backend=self.disk.backend("q"),
            report_health=self.reports.append,
        )

    def put(self, *bodies: bytes) -> None:
        blob, ends = published(bodies)
        self.queue.put(Span(published_batch(blob, ends, 0x1000, 0), 0, len(bodies)))

    def put_again(self, *spans: list[bytes]) -> None:
        """Messages that were tried twice before, in spans of these bodies."""
        batches = [published_batch(*published(bodies), 0x1000, 0) for bodies in spans]
        self.queue.put_again([Span(batch, 0, batch.count, 2) for batch in batches])

    def take_all(self) -> list[bytes]:
        """The bodies of all, in as many takes as that needs; each gives something."""
        taken: list[bytes] = []
        while self.queue.depth:
            more = self.take()
            assert more
            taken += more
        return taken

    def take(self, *, max_count: int = 100, max_bytes: int = ANY_BYTES) -> list[bytes]:
        """The bodies of one take."""
        return [message.body for message in self.take_messages(max_count=max_count, max_bytes=max_bytes)]

    def take_messages(self, *, max_count: int = 100, max_bytes: int = ANY_BYTES) -> list[Message]:
        span = self.queue.take(max_count=max_count, max_bytes=max_bytes)
        if span is None:
            return []
        return messages_in(span.batch.frames(span.start, span.stop, span.attempts))

    def on_disk(self) -> list[bytes]:
        """The bodies that lie on disk."""
        return [record[30:] for record in self.disk.files["q"]]


def test_messages_come_out_in_the_order_they_came() -> None:
    rig = QueueRig(capacity=100)
    rig.put(b"a", b"b")
    rig.put(b"c")
    assert rig.queue.depth == 3
    assert rig.take() == [b"a", b"b"]
    assert rig.take() == [b"c"]
    assert rig.take() == []
    assert rig.queue.depth == 0


def test_what_does_not_fit_into_memory_goes_to_disk() -> None:
    rig = QueueRig(capacity=3)
    rig.put(*numbered(5))
    rig.put(b"more")
    assert (rig.queue.memory_count, rig.queue.backend_depth, rig.queue.depth) == (3, 3, 6)
    assert rig.on_disk() == [*numbered(5)[3:], b"more"]


def test_a_batch_that_fills_memory_exactly_does_not_touch_the_disk() -> None:
    rig = QueueRig(capacity=3)
    rig.put(*numbered(3))
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (3, 0)
    assert rig.reports == []


def test_without_memory_everything_goes_to_disk_in_order() -> None:
    rig = QueueRig(capacity=0)
    rig.put(*numbered(3))
    rig.put(b"more")
    assert rig.queue.memory_count == 0
    assert rig.take(max_count=2) == numbered(2)
    assert rig.take() == [*numbered(1, first=2), b"more"]


def test_of_a_part_of_a_batch_only_that_part_counts() -> None:
    rig = QueueRig(capacity=2)
    blob, ends = published(numbered(6))
    rig.queue.put(Span(published_batch(blob, ends, 0x1000, 0), 4, 6))
    assert (rig.queue.memory_count, rig.queue.backend_depth, rig.reports) == (2, 0, [])
    assert rig.take() == numbered(2, first=4)


def test_trimming_drops_the_youngest_in_memory() -> None:
    rig = QueueRig(capacity=10)
    rig.put(*numbered(4))
    rig.put(*numbered(3, first=4))
    rig.put(*numbered(2, first=7))
    rig.queue.trim(max_count=6, max_bytes=ANY_BYTES)
    assert (rig.queue.memory_count, rig.queue.depth) == (6, 6)
    rig.queue.trim(max_count=6, max_bytes=ANY_BYTES)
    assert rig.take() + rig.take() == numbered(6)
    assert (rig.take(), rig.queue.depth) == ([], 0)


def test_trimming_counts_bytes_too() -> None:
    rig = QueueRig(capacity=10)
    rig.put(b"large" * 100, b"x", b"large" * 100)
    rig.queue.trim(max_count=10, max_bytes=501)
    assert (rig.queue.memory_count, rig.take()) == (2, [b"large" * 100, b"x"])


def test_bodies_that_are_too_many_bytes_for_memory_go_to_disk() -> None:
    rig = QueueRig(capacity=100, max_bytes=1000)
    rig.put(*[b"x" * 300] * 5)
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (3, 2)
    rig.put(b"y" * 101)
    rig.put(b"z" * 100)
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (4, 3)
    rig.put_again([b"again"])
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (4, 4)
    taken = rig.take_all()
    assert sorted(taken) == [b"again", *[b"x" * 300] * 5, b"y" * 101, b"z" * 100]
    rig.put(*[b"x" * 500] * 2)
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (2, 0)


def test_a_body_larger_than_memory_may_hold_goes_to_disk() -> None:
    rig = QueueRig(capacity=100, max_bytes=1000)
    rig.put(b"x" * 1001, b"y")
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (0, 2)
    assert rig.take_all() == [b"x" * 1001, b"y"]


def test_bytes_are_free_again_when_the_queue_is_emptied() -> None:
    rig = QueueRig(capacity=100, max_bytes=1000)
    rig.put(b"x" * 1000)
    rig.queue.empty()
    rig.put(b"x" * 1000)
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (1, 0)


def test_trimming_to_nothing_drops_all_in_memory() -> None:
    rig = QueueRig(capacity=10)
    rig.put(*numbered(4))
    rig.queue.trim(max_count=0, max_bytes=ANY_BYTES)
    assert (rig.queue.depth, rig.take()) == (0, [])


def test_memory_and_disk_are_served_in_turn() -> None:
    rig = QueueRig(capacity=2)
    rig.put(b"m1", b"m2", b"d1", b"d2")
    taken = [rig.take(max_count=1) for _ in range(4)]
    assert sorted(taken) == [[b"d1"], [b"d2"], [b"m1"], [b"m2"]]
    origins = [body[:1] for (body,) in taken]
    assert origins in ([b"m", b"d", b"m", b"d"], [b"d", b"m", b"d", b"m"])


def test_it_is_known_what_had_to_be_read() -> None:
    rig = QueueRig(capacity=1)
    assert rig.queue.was_in_memory
    rig.put(b"m", b"d")
    for _ in range(2):
        (body,) = rig.take()
        assert rig.queue.was_in_memory == (body == b"m")
    rig.take()
    assert rig.queue.was_in_memory


@pytest.mark.parametrize("waiting", [1, 2, 3, 4])
def test_what_is_put_again_fills_memory_and_then_goes_to_disk(waiting: int) -> None:
    rig = QueueRig(capacity=3)
    rig.put(*numbered(waiting))
    again = [numbered(2, first=10), numbered(3, first=20)]
    rig.put_again(*again)
    assert (rig.queue.memory_count, rig.queue.depth) == (3, waiting + 5)
    assert sorted(rig.take_all()) == [*numbered(waiting), *again[0], *again[1]]


def test_a_busy_memory_does_not_starve_the_disk() -> None:
    rig = QueueRig(capacity=2)
    rig.put(b"m1", b"m2", b"old")
    seen: list[bytes] = []
    for number in range(5):
        seen += rig.take(max_count=1)
        rig.put(b"new %d" % number)
    assert b"old" in seen[:2]


def test_a_take_respects_both_limits_but_gives_at_least_one() -> None:
    for capacity in (0, 100):
        rig = QueueRig(capacity=capacity)
        rig.put(*[b"x" * 100] * 10)
        assert len(rig.take(max_count=3)) == 3
        assert len(rig.take(max_bytes=350)) in (2, 3)
        assert len(rig.take(max_bytes=1)) == 1
        assert rig.queue.depth in (3, 4)


def test_room_in_memory_is_used_again_after_a_take() -> None:
    rig = QueueRig(capacity=3)
    rig.put(*numbered(3))
    rig.take(max_count=2)
    rig.put(*numbered(3, first=10))
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (3, 1)


def test_what_was_put_back_comes_next_and_may_exceed_the_capacity() -> None:
    rig = QueueRig(capacity=1)
    rig.put(b"a")
    span = rig.queue.take(max_count=1, max_bytes=ANY_BYTES)
    assert span is not None
    rig.put(b"b")
    rig.queue.put_back(span)
    assert rig.queue.depth == 2
    assert rig.take() == [b"a"]
    rig.put(b"c")
    assert rig.on_disk() == [b"c"]


def test_attempts_survive_the_disk() -> None:
    rig = QueueRig(capacity=0)
    messages = [Message(7, tried, b"%016x" % index, b"x") for index, tried in enumerate([0, 0, 3, 300, 0])]
    records = joined([stored(message) for message in messages])
    batch = Batch(Recorded(records.blob, records.ends), len(records.ends))
    for index, message in enumerate(messages):
        rig.queue.put(Span(batch, index, index + 1, message.attempts))
    taken: list[Message] = []
    while more := rig.take_messages():
        taken += more
        assert rig.queue.depth == len(messages) - len(taken)
    assert taken == messages


@pytest.mark.parametrize("capacity", [0, 2, 100])
def test_peeking_shows_the_next_messages_and_leaves_them(capacity: int) -> None:
    rig = QueueRig(capacity=capacity)
    rig.put(*numbered(3))
    rig.put(*numbered(2, first=3))
    assert [message.body for message in rig.queue.peek(4)] == numbered(4)
    assert [message.body for message in rig.queue.peek(100)] == numbered(5)
    assert [message.attempts for message in rig.queue.peek(2)] == [0, 0]
    assert rig.queue.depth == 5
    assert sorted(rig.take() + rig.take() + rig.take()) == numbered(5)


def test_there_is_nothing_to_see_in_an_empty_queue() -> None:
    assert QueueRig(capacity=2).queue.peek(10) == []


def test_emptying_drops_memory_and_disk() -> None:
    rig = QueueRig(capacity=2)
    rig.put(*numbered(5))
    rig.queue.empty()
    assert rig.queue.depth == 0
    assert rig.take() == []
    rig.put(b"next")
    assert rig.take() == [b"next"]


def test_closing_writes_what_is_in_memory_and_then_the_rest() -> None:
    rig = QueueRig(capacity=2)
    rig.put(b"m1", b"m2", b"d1")
    blob, ends = published([b"held"])
    rig.queue.close([Span(published_batch(blob, ends, 0x2000, 0), 0, 1, 4)])
    assert rig.on_disk() == [b"d1", b"m1", b"m2", b"held"]
    assert rig.disk.files["q"][-1][12:14] == b"\x00\x04", "the attempts of what was in flight"
    assert rig.queue.memory_count == 0


def test_deleting_removes_the_files() -> None:
    rig = QueueRig(capacity=1)
    rig.put(*numbered(2))
    rig.queue.delete()
    assert rig.disk.files == {}
    assert (rig.queue.depth, rig.queue.memory_count) == (0, 0)


# A failing disk.


def test_each_write_to_disk_reports_how_it_went_and_memory_reports_nothing() -> None:
    rig = QueueRig(capacity=1)
    rig.put(b"memory")
    assert rig.reports == []
    rig.put(b"disk")
    assert rig.reports == [None]
    rig.disk.room["q"] = 0
    with pytest.raises(DiskWriteError):
        rig.put(b"refused")
    assert rig.reports == [None, REFUSAL]
    del rig.disk.room["q"]
    rig.put(b"disk again")
    assert rig.reports == [None, REFUSAL, None]


def test_what_was_stored_before_the_disk_refused_is_kept_and_counted() -> None:
    rig = QueueRig(capacity=2)
    rig.disk.room["q"] = 1
    with pytest.raises(DiskWriteError) as refusal:
        rig.put(*numbered(5))
    assert refusal.value.stored_count == 3
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (2, 1)


def test_a_refusal_without_room_in_memory_counts_what_the_disk_took() -> None:
    rig = QueueRig(capacity=1)
    rig.put(b"fills memory")
    rig.disk.room["q"] = 2
    with pytest.raises(DiskWriteError) as refusal:
        rig.put(*numbered(5))
    assert refusal.value.stored_count == 2


def test_what_is_put_again_stays_in_memory_when_the_disk_refuses_it() -> None:
    rig = QueueRig(capacity=1)
    rig.disk.room["q"] = 2
    blob, ends = published(numbered(5))
    rig.queue.put_again([Span(published_batch(blob, ends, 0x1000, 0), 0, 5, 3)])
    assert (rig.queue.memory_count, rig.queue.backend_depth) == (3, 2)
    assert rig.reports == [REFUSAL]
    taken: list[Message] = []
    while more := rig.take_messages():
        taken += more
    assert sorted(message.body for message in taken) == numbered(5)
    assert {message.attempts for message in taken} == {3}


@pytest.mark.parametrize("room", range(7))
def test_each_message_that_is_put_again_is_kept_once_wherever_the_disk_refuses(room: int) -> None:
    rig = QueueRig(capacity=0)
    rig.disk.room["q"] = room
    spans = [numbered(2), numbered(3, first=2), numbered(1, first=5)]
    rig.put_again(*spans)
    assert (rig.queue.backend_depth, rig.queue.memory_count) == (room, 6 - room)
    assert rig.on_disk() == numbered(room)
    assert sorted(rig.take_all()) == numbered(6)


def test_what_memory_gives_instead_of_the_disk_keeps_to_the_limits() -> None:
    rig = QueueRig(capacity=4)
    rig.put(*numbered(4), b"disk")
    rig.disk.unreadable.add("q")
    assert [len(rig.take(max_count=2)) for _ in range(3)] == [2, 2, 0]


def test_a_disk_that_cannot_be_read_does_not_hold_up_memory() -> None:
    rig = QueueRig(capacity=2)
    rig.put(b"m1", b"m2", b"d1")
    rig.disk.unreadable.add("q")
    assert [rig.take(max_count=1) for _ in range(3)] == [[b"m1"], [b"m2"], []]
    assert rig.queue.depth == 1
    rig.disk.unreadable.clear()
    assert rig.take() == [b"d1"]


def test_closing_writes_as_much_as_the_disk_takes() -> None:
    rig = QueueRig(capacity=10)
    for body in numbered(4):
        rig.put(body)
    rig.disk.room["q"] = 2
    with pytest.raises(DiskWriteError):
        rig.queue.close([])
    assert rig.on_disk() == numbered(2)


def test_closing_closes_the_disk_even_when_it_refused_some() -> None:
    rig = QueueRig(capacity=10)
    rig.put(b"x")
    rig.disk.room["q"] = 0
    rig.disk.unsyncable.add("q")
    with pytest.raises(SyncError):
        rig.queue.close([])
