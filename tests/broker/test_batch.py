"""Batches: one buffer, three shapes, and always the same messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.broker.batch import (
    LARGE_BYTES,
    MAX_BATCH_BYTES,
    Batch,
    Gathering,
    Span,
    cut,
    joined_records,
    lone_message,
    published_batch,
    published_shape,
    spans_of_records,
)
from emberq.broker.layout import MAX_BATCH_COUNT, Recorded
from emberq.broker.stats import Histogram, LatencyWindow
from emberq.storage.backend import Records
from tests.broker.rig import Message, fin_lines, messages_in, numbered, published, stored
from tests.broker.simulated_disk import joined, taken_apart
from tests.support.examples import examples

FIRST_ID = 0x1A2B3C4D5E6F7000
TIMESTAMP_NS = 1_700_000_000_123_456_789

bodies_of_one_size = st.tuples(st.integers(1, 30), st.integers(1, 12)).flatmap(
    lambda shape: st.lists(st.binary(min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1])
)
any_bodies = bodies_of_one_size | st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=12)


def batch_of(bodies: list[bytes], *, first_id: int = FIRST_ID) -> Batch:
    blob, ends = published(bodies)
    return published_batch(blob, ends, first_id, TIMESTAMP_NS)


def replayed_batch(bodies: list[bytes]) -> Batch:
    """As they lie in a journal: nothing stands before a body."""
    ends = list(accumulate(map(len, bodies)))
    return Batch(published_shape(b"".join(bodies), ends, FIRST_ID, TIMESTAMP_NS, 0), len(bodies))


def gathered_batch(bodies: list[bytes]) -> Batch:
    """As they lie when they were published one by one and had to wait."""
    gathering = Gathering()
    for index, body in enumerate(bodies):
        span = gathering.add(*published([body]), FIRST_ID + index, TIMESTAMP_NS)
        assert (span.start, span.stop) == (index, index + 1)
    return span.batch


def expected_messages(bodies: list[bytes], *, attempts: int, first_id: int = FIRST_ID) -> list[Message]:
    return [Message(TIMESTAMP_NS, attempts, b"%016x" % (first_id + index), body) for index, body in enumerate(bodies)]


def stored_batch(messages: list[Message]) -> Batch:
    records = joined([stored(message) for message in messages])
    return Batch(Recorded(records.blob, records.ends), len(messages))


def pieces_of(batch: Batch, start: int, stop: int, attempts: int) -> list[bytes | memoryview]:
    pieces: list[bytes | memoryview] = []
    size = batch.add_frames(pieces, start, stop, attempts)
    assert size == sum(map(len, pieces))
    return pieces


def bodies_in(blob: bytes, ends: Sequence[int]) -> list[bytes]:
    """The bodies of published messages."""
    return [record[4:] for record in taken_apart(Records(blob, ends))]


# Shapes.


@examples(100)
@given(
    bodies=any_bodies,
    origin=st.sampled_from(["published", "stored", "replayed", "gathered", "picked"]),
    framed_first=st.booleans(),
    data=st.data(),
)
def test_any_part_of_a_batch_keeps_its_messages_in_every_shape(
    bodies: list[bytes], origin: str, framed_first: bool, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(bodies) - 1))
    stop = data.draw(st.integers(start + 1, len(bodies)))
    attempts = data.draw(st.sampled_from([1, 2, 255, 256, 65535]))
    batch = {
        "published": lambda: batch_of(bodies),
        "stored": lambda: stored_batch(expected_messages(bodies, attempts=9)),
        "replayed": lambda: replayed_batch(bodies),
        "gathered": lambda: gathered_batch(bodies),
        "picked": lambda: batch_of([*bodies, b"not picked"]).picked(range(len(bodies))),
    }[origin]()
    if framed_first:
        batch.frames(0, 1, 1)
    expected = expected_messages(bodies, attempts=attempts)[start:stop]
    records = batch.records(start, stop, attempts)
    assert taken_apart(records) == [stored(message) for message in expected]
    assert batch.ids(start, stop) == [message.id for message in expected]
    assert messages_in(batch.frames(start, stop, attempts)) == expected
    assert taken_apart(batch.records(start, stop, attempts)) == [stored(message) for message in expected]
    assert b"".join(pieces_of(batch, start, stop, attempts)) == batch.frames(start, stop, attempts)
    ids = [b"%016x" % (FIRST_ID + index) for index in range(len(bodies))]
    assert batch.fin_lines(start, stop) == fin_lines(ids[start:stop])
    assert [batch.index_of(message_id, start, stop) for message_id in ids[start:stop]] == list(range(start, stop))
    assert [tuple(batch.message(index, attempts)) for index in range(start, stop)] == expected
    assert batch.body_bytes(start, stop) == sum(map(len, bodies[start:stop]))


def test_records_of_one_size_say_so_by_a_range() -> None:
    batch = batch_of(numbered(5))
    assert isinstance(batch.records(1, 4, 0).ends, range)
    batch.frames(0, 5, 1)
    assert isinstance(batch.records(0, 4, 0).ends, range)


def test_attempts_wrap_to_zero_after_65535() -> None:
    batch = batch_of([b"a", b"b"])
    assert [message.attempts for message in messages_in(batch.frames(0, 2, 65535))] == [65535, 65535]
    assert [message.attempts for message in messages_in(batch.frames(0, 2, 65536))] == [0, 0]
    assert [message.attempts for message in messages_in(batch.frames(0, 2, 65537))] == [1, 1]


def test_later_attempts_do_not_change_what_other_channels_see() -> None:
    batch = batch_of(numbered(3))
    batch.frames(0, 3, 7)
    assert [message.attempts for message in messages_in(batch.frames(0, 3, 1))] == [1, 1, 1]


def test_a_full_batch_numbers_its_ids_through() -> None:
    batch = batch_of([b"x"] * MAX_BATCH_COUNT)
    ids = [message.id for message in messages_in(batch.frames(0, MAX_BATCH_COUNT, 1))]
    assert ids == [b"%016x" % (FIRST_ID + index) for index in range(MAX_BATCH_COUNT)]


def test_ids_go_on_from_a_sequence_number_in_use() -> None:
    batch = batch_of([b"x"] * 3, first_id=FIRST_ID + 0xFFD)
    assert batch.ids(0, 3) == [b"1a2b3c4d5e6f7ffd", b"1a2b3c4d5e6f7ffe", b"1a2b3c4d5e6f7fff"]
    assert [message.id for message in messages_in(batch.frames(0, 3, 1))] == batch.ids(0, 3)


def test_records_asked_for_again_are_not_built_again() -> None:
    batch = batch_of(numbered(3))
    first = batch.records(0, 3, 0)
    assert batch.records(0, 3, 0) is first
    assert batch.records(0, 3, 1) != first
    batch.forget_records()
    assert batch.records(0, 3, 0) == first


# Single messages.


def test_some_messages_can_be_picked_out_of_a_batch() -> None:
    bodies = [b"a", b"bb", b"ccc", b"dddd"]
    expected = expected_messages(bodies, attempts=4)
    for indexes in ([1], [0, 3], [0, 1, 2, 3]):
        picked = batch_of(bodies).picked(indexes)
        assert picked.count == len(indexes)
        assert messages_in(picked.frames(0, len(indexes), 4)) == [expected[index] for index in indexes]
        assert picked.ids(0, len(indexes)) == [expected[index].id for index in indexes]


def test_a_message_that_waits_alone_is_a_batch_too() -> None:
    for size in (1, 200, LARGE_BYTES):
        (body,) = bodies = [b"x" * size]
        batch = lone_message(published(bodies)[0], FIRST_ID, TIMESTAMP_NS)
        assert messages_in(batch.frames(0, 1, 3)) == expected_messages(bodies, attempts=3)
        assert taken_apart(batch.records(0, 1, 3)) == [stored(expected_messages(bodies, attempts=3)[0])]
        assert batch.body_bytes(0, 1) == len(body)


def test_a_large_body_is_sent_from_where_it_arrived() -> None:
    bodies = [b"x" * LARGE_BYTES]
    blob, ends = published(bodies)
    batch = published_batch(blob, ends, FIRST_ID, TIMESTAMP_NS)
    header, body = pieces_of(batch, 0, 1, 2)
    assert isinstance(body, memoryview)
    assert body.obj is blob
    assert messages_in(bytes(header) + body) == expected_messages(bodies, attempts=2)
    assert batch.ids(0, 1) == [b"%016x" % FIRST_ID]
    assert taken_apart(batch.records(0, 1, 2)) == [stored(expected_messages(bodies, attempts=2)[0])]


def test_a_large_part_of_a_batch_is_sent_without_being_copied() -> None:
    batch = batch_of([b"x" * 1000] * 100)
    (frames,) = pieces_of(batch, 10, 90, 1)
    assert isinstance(frames, memoryview)
    assert frames == batch.frames(10, 90, 1)


def test_gathered_messages_begin_another_batch_when_one_is_full() -> None:
    gathering = Gathering()
    spans = [gathering.add(*published([b"x" * 900]), FIRST_ID + index, TIMESTAMP_NS) for index in range(200)]
    batches = {id(span.batch): span.batch for span in spans}
    assert 2 <= len(batches) <= 5
    frames = [span.batch.frames(span.start, span.stop, 1) for span in spans]
    assert messages_in(b"".join(frames)) == expected_messages([b"x" * 900] * 200, attempts=1)


def test_a_span_shows_its_first_messages_with_their_attempts() -> None:
    span = Span(batch_of(numbered(5)), 1, 5, 3)
    expected = expected_messages(numbered(5), attempts=3)
    assert [tuple(message) for message in span.messages(2)] == expected[1:3]
    assert [tuple(message) for message in span.messages(99)] == expected[1:]
    assert span.messages(0) == []


@pytest.mark.parametrize("batch_count", [2, 3])
def test_a_compact_span_of_one_message_does_not_hold_the_others(batch_count: int) -> None:
    span = Span(batch_of(numbered(batch_count)), batch_count - 1, batch_count, 5)
    compact = span.compact()
    assert (compact.batch.count, compact.attempts) == (1, 5)
    assert compact.ids() == span.ids()
    assert compact.records() == span.records()


def test_a_span_that_is_a_good_part_of_its_batch_is_compact_already() -> None:
    several = Span(batch_of(numbered(15)), 0, 2)
    only = Span(batch_of([b"x"]), 0, 1)
    assert several.compact() is several
    assert only.compact() is only


def test_what_is_left_of_a_batch_is_copied_out_of_it() -> None:
    span = Span(batch_of(numbered(16)), 7, 9, 2)
    compact = span.compact()
    assert (compact.batch.count, compact.ids(), compact.attempts) == (2, span.ids(), 2)
    assert taken_apart(compact.records()) == taken_apart(span.records())


def test_splitting_a_span_takes_its_first_messages_off() -> None:
    span = Span(batch_of(numbered(5)), 1, 5, 3)
    head = span.split(2)
    assert (head.start, head.stop, head.count, head.attempts) == (1, 3, 2, 3)
    assert (span.start, span.stop, span.count, span.attempts) == (3, 5, 2, 3)


def test_a_span_takes_in_what_goes_on_where_it_ends_and_nothing_else() -> None:
    batch = batch_of(numbered(5))
    span = Span(batch, 0, 2)
    for other in (Span(batch, 3, 4), Span(batch, 2, 3, 1), Span(batch_of(numbered(5)), 2, 3)):
        assert span.extend(other) is False
        assert (span.start, span.stop) == (0, 2)
    assert span.extend(Span(batch, 2, 5)) is True
    assert (span.start, span.stop) == (0, 5)


@pytest.mark.parametrize("parts", [[(0, 3)], [(1, 2)], [(0, 2), (2, 3)], [(2, 3), (0, 1), (0, 3)]])
def test_the_records_of_several_spans_are_joined(parts: list[tuple[int, int]]) -> None:
    bodies = [b"a", b"bbb", b"cc"]
    batch = batch_of(bodies)
    expected = [
        stored(message) for start, stop in parts for message in expected_messages(bodies, attempts=2)[start:stop]
    ]
    records = joined_records([Span(batch, start, stop, 2) for start, stop in parts])
    assert taken_apart(records) == expected


@pytest.mark.parametrize("make", [batch_of, replayed_batch, gathered_batch])
def test_what_is_finished_is_measured_from_its_publish(make: Callable[[list[bytes]], Batch]) -> None:
    clock = ManualClock(wall_ns=TIMESTAMP_NS + 5000)
    window, total = LatencyWindow(window_ns=NS_PER_SECOND, clock=clock), Histogram()
    make([b"a", b"bb", b"c"]).report_finished(1, 3, window)
    window.add_to(total)
    assert total.count == 2
    assert total.values_at([0.5]) == [pytest.approx(5000, rel=0.01)]


def test_publishes_of_many_messages_are_gathered_too_until_they_wait_no_longer() -> None:
    gathering = Gathering()
    bodies = [b"a", b"bb", b"ccc"]
    first = gathering.add(*published(bodies), FIRST_ID, TIMESTAMP_NS)
    second = gathering.add(*published([b"d"]), FIRST_ID + 3, TIMESTAMP_NS)
    assert second.batch is first.batch
    frames = first.batch.frames(0, 4, 1)
    assert messages_in(frames) == expected_messages([*bodies, b"d"], attempts=1)
    gathering.end()
    third = gathering.add(*published([b"e"]), FIRST_ID + 4, TIMESTAMP_NS)
    assert third.batch is not first.batch
    assert (third.start, third.stop) == (0, 1)


def test_a_large_message_alone_is_one_message() -> None:
    assert lone_message(published([b"x" * LARGE_BYTES])[0], FIRST_ID, TIMESTAMP_NS).count == 1


def test_the_size_of_bodies_is_known_in_every_shape() -> None:
    messages = [Message(11, 0, b"a" * 16, b"x"), Message(22, 0, b"b" * 16, b"yyy")]
    for batch in (batch_of([b"x", b"yyy"]), stored_batch(messages)):
        sizes = [batch.body_bytes(0, 2), batch.body_bytes(1, 2), batch.body_bytes(0, 0)]
        batch.frames(0, 2, 1)
        assert [batch.body_bytes(0, 2), batch.body_bytes(1, 2), batch.body_bytes(0, 0)] == sizes == [4, 3, 0]


# Limits.


def test_what_fits_is_limited_by_count_and_by_bytes_but_is_never_nothing() -> None:
    batch = batch_of([b"x" * 96] * 10)  # 100 bytes each with its size
    assert batch.fitting(0, max_count=4, max_bytes=10_000) == 4
    assert batch.fitting(2, max_count=100, max_bytes=10_000) == 8
    assert batch.fitting(2, max_count=100, max_bytes=350) == 3
    assert batch.fitting(2, max_count=100, max_bytes=300) == 3
    assert batch.fitting(2, max_count=100, max_bytes=1) == 1
    assert batch.fitting(2, max_count=2, max_bytes=10_000) == 2
    assert batch.fitting(2, max_count=1, max_bytes=10_000) == 1


def test_a_publish_is_cut_into_pieces_that_are_small_enough() -> None:
    pieces = [len(ends) for _, ends in cut(*published([b"x"] * 10_000))]
    assert pieces == [4096, 4096, 10_000 - 2 * 4096]
    pieces = [len(ends) for _, ends in cut(*published([b"x" * 1020] * 600))]
    assert pieces == [256, 256, 600 - 2 * 256]


def test_a_message_that_is_too_big_for_a_batch_is_a_batch_of_its_own() -> None:
    bodies = [b"before", b"x" * (MAX_BATCH_BYTES + 1), b"after"]
    assert [bodies_in(blob, ends) for blob, ends in cut(*published(bodies))] == [[body] for body in bodies]


@examples(40)
@given(st.lists(st.sampled_from([1, 2, 1000, MAX_BATCH_BYTES // 3, MAX_BATCH_BYTES]), min_size=1, max_size=20))
def test_the_pieces_of_a_publish_leave_nothing_out(sizes: list[int]) -> None:
    bodies = [b"%d" % (index % 10) * size for index, size in enumerate(sizes)]
    pieces = list(cut(*published(bodies)))
    assert [body for blob, ends in pieces for body in bodies_in(blob, ends)] == bodies
    assert all(len(ends) == 1 or len(blob) <= MAX_BATCH_BYTES for blob, ends in pieces)


# From disk.


@examples(100)
@given(
    attempts=st.lists(st.sampled_from([0, 0, 1, 2, 255, 256, 65535]), min_size=1, max_size=15),
    same_size=st.booleans(),
)
def test_what_was_read_from_disk_keeps_order_and_attempts(attempts: list[int], same_size: bool) -> None:
    bodies = [b"x" * (1 if same_size else 1 + index % 3) for index in range(len(attempts))]
    messages = [
        Message(TIMESTAMP_NS + index, tried, b"%016x" % index, body)
        for index, (tried, body) in enumerate(zip(attempts, bodies, strict=True))
    ]
    spans = spans_of_records(joined([stored(message) for message in messages]))
    again = [record for span in spans for record in taken_apart(span.records())]
    assert again == [stored(message) for message in messages]
    delivered = [message for span in spans for message in messages_in(span.batch.frames(span.start, span.stop, 1))]
    assert delivered == [message._replace(attempts=1) for message in messages]
    assert all(one.attempts != next_one.attempts for one, next_one in pairwise(spans))


def test_messages_from_disk_have_timestamps_of_their_own() -> None:
    batch = stored_batch([Message(11, 0, b"a" * 16, b"x"), Message(22, 0, b"b" * 16, b"yy")])
    assert [batch.message(index, 1).timestamp_ns for index in range(2)] == [11, 22]
    assert [message.timestamp_ns for message in messages_in(batch.frames(0, 2, 1))] == [11, 22]
    assert [batch.message(index, 1).timestamp_ns for index in range(2)] == [11, 22]
    assert batch.ids(0, 2) == [b"a" * 16, b"b" * 16]


def test_a_record_with_an_empty_body_is_a_message_too() -> None:
    messages = [Message(11, 1, b"a" * 16, b""), Message(22, 1, b"b" * 16, b"")]
    (span,) = spans_of_records(joined([stored(message) for message in messages]))
    assert messages_in(span.batch.frames(0, 2, 1)) == messages
