from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emberq.spark.journal_offset import Place, Position, from_document, to_document
from emberq.spark.journal_plan import JournalExtent, Range, next_step, ranges_between, shared_out, split

A, B = Place("a:1", "t"), Place("b:1", "t")
PLACES = st.builds(Place, st.sampled_from("abcd"), st.sampled_from("xyz"))


def journal(place: Place, uuid: str, *, first: int = 0, end: int) -> JournalExtent:
    return JournalExtent(place=place, uuid=uuid, first_offset=first, end_offset=end, bytes_per_row=100)


def test_a_batch_reads_all_that_waits() -> None:
    step = next_step({A: Position("ja", 5)}, {A: journal(A, "ja", end=9)}, max_rows=None)
    assert (step.end, step.losses) == ({A: Position("ja", 9)}, [])
    (found,) = ranges_between({A: Position("ja", 5)}, step.end)
    assert (found.place, found.start, found.end) == (A, 5, 9)


def test_a_journal_that_is_new_enters_at_its_first_message_and_gives_rows_from_the_next_batch_on() -> None:
    start = {A: Position("ja", 5)}
    journals = {A: journal(A, "ja", end=5), B: journal(B, "jb", first=300, end=400)}
    first = next_step(start, journals, max_rows=None)
    assert first.end == {A: Position("ja", 5), B: Position("jb", 300)}
    assert ranges_between(start, first.end) == []
    second = next_step(first.end, journals, max_rows=None)
    assert ranges_between(first.end, second.end) == [Range(place=B, journal="jb", start=300, end=400)]


def test_an_nsqd_that_is_away_keeps_its_position() -> None:
    start = {A: Position("ja", 5), B: Position("jb", 7)}
    step = next_step(start, {B: journal(B, "jb", end=8)}, max_rows=None)
    assert (step.end, step.losses) == ({A: Position("ja", 5), B: Position("jb", 8)}, [])


def test_a_journal_that_moved_to_another_address_is_found_again() -> None:
    start = {A: Position("ja", 5)}
    step = next_step(start, {B: journal(B, "ja", end=8)}, max_rows=None)
    assert (step.end, step.losses) == ({B: Position("ja", 8)}, [])
    assert ranges_between(start, step.end) == [Range(place=B, journal="ja", start=5, end=8)]


def test_two_nsqds_may_change_addresses() -> None:
    start = {A: Position("ja", 5), B: Position("jb", 7)}
    journals = {A: journal(A, "jb", end=9), B: journal(B, "ja", end=6)}
    step = next_step(start, journals, max_rows=None)
    assert (step.end, step.losses) == ({A: Position("jb", 9), B: Position("ja", 6)}, [])


def test_a_topic_that_was_made_again_is_a_loss_and_begins_anew() -> None:
    step = next_step({A: Position("old", 5)}, {A: journal(A, "new", end=8)}, max_rows=None)
    assert step.end == {A: Position("new", 0)}
    assert step.losses == ["topic t on nsqd a:1 was deleted and made again since this query read it"]


def test_a_topic_that_was_deleted_is_a_loss_once_and_its_position_goes() -> None:
    start = {A: Position("ja", 5), B: Position("jb", 7)}
    step = next_step(start, {B: journal(B, "jb", end=8)}, max_rows=None, gone=[A])
    assert step.end == {B: Position("jb", 8)}
    assert step.losses == [
        "topic t on nsqd a:1 was deleted since this query read it; what was there from offset 5 on is lost"
    ]


def test_a_journal_that_was_read_under_two_names_goes_on_under_one_behind_what_was_read() -> None:
    start = {A: Position("ja", 9), B: Position("ja", 7)}
    step = next_step(start, {A: journal(A, "ja", end=12)}, max_rows=None)
    assert (step.end, step.losses) == ({A: Position("ja", 12)}, [])
    assert ranges_between(start, step.end) == [Range(place=A, journal="ja", start=9, end=12)]


def test_what_retention_removed_unread_is_a_loss() -> None:
    step = next_step({A: Position("ja", 5)}, {A: journal(A, "ja", first=7, end=9)}, max_rows=None)
    assert "offset 5 to 6 were removed by retention" in step.losses[0]
    assert step.end == {A: Position("ja", 9)}


def test_a_journal_that_lost_its_end_is_a_loss_and_goes_on_from_there() -> None:
    step = next_step({A: Position("ja", 5)}, {A: journal(A, "ja", end=3)}, max_rows=None)
    assert "ends at offset 3, but this query had read up to 5" in step.losses[0]
    assert step.end == {A: Position("ja", 3)}


@given(st.dictionaries(PLACES, st.integers(1, 1000)), st.integers(1, 500))
def test_a_limit_is_used_up_and_never_exceeded(waiting: dict[Place, int], max_rows: int) -> None:
    shares = shared_out(waiting, max_rows)
    assert sum(shares.values()) == min(max_rows, sum(waiting.values()))
    assert all(0 <= shares[place] <= waiting[place] for place in waiting)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 3000)), max_size=5),
    st.integers(1, 2000),
    st.integers(1, 9),
)
def test_pieces_together_are_the_whole_and_are_not_too_large(
    spans: list[tuple[int, int]], rows_per_partition: int, min_partitions: int
) -> None:
    ranges = [
        Range(place=Place("n", str(number)), journal=str(number), start=start, end=start + rows)
        for number, (start, rows) in enumerate(spans)
    ]
    pieces = split(ranges, rows_per_partition=rows_per_partition, min_partitions=min_partitions)
    assert all(0 < piece.row_count <= rows_per_partition for piece in pieces)
    assert len(pieces) >= min(min_partitions, sum(rows for _, rows in spans))
    for whole in ranges:
        parts = [piece for piece in pieces if piece.journal == whole.journal]
        assert [piece.start for piece in parts] + [whole.end] == [whole.start] + [piece.end for piece in parts]


def test_positions_are_what_spark_keeps_of_them() -> None:
    positions = {B: Position("jb", 7), A: Position("ja", 5)}
    document = to_document(positions)
    assert list(document) == ["a:1", "b:1"]
    assert from_document(document) == positions
