"""Reading from anywhere, locating stretches of file, finding moments."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.storage.error import JournalBusyError, JournalError
from emberq.storage.journal import segments as segments_module
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import Extent, JournalReader
from emberq.storage.journal.recovery import recover
from emberq.storage.journal.segment import JournalConfig
from emberq.storage.journal.segments import Segments
from emberq.wire.journal_batch import Bodies
from tests.storage.journal.rig import MANY, START_NS, JournalRig, OtherThread, bodies_of, flip, open_files, read_all


def content_of(extent: Extent | None) -> bytes:
    assert extent is not None
    return extent.path.read_bytes()[extent.position : extent.position + extent.length]


# -- read ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1, 100, 700, MANY])
def test_reading_begins_with_the_batch_that_holds_the_offset(journals: JournalRig, max_bytes: int) -> None:
    journal = journals.open(segment_bytes=1500)
    published = journals.fill(journal, batches=40, count=3)
    for offset in range(journal.next_offset):
        chunk = journal.read(offset, max_bytes=max_bytes)
        first = offset - offset % 3
        assert chunk.batches[0].base_offset == first
        assert chunk.next_offset == chunk.batches[-1].next_offset
        assert bodies_of(chunk.batches) == published[first : chunk.next_offset]
        assert len(chunk.batches) == 1 or sum(batch.length for batch in chunk.batches) <= max_bytes
        assert chunk.gaps == []


def test_reading_ends_at_the_end(journals: JournalRig) -> None:
    journal = journals.open()
    assert journal.read(0, max_bytes=100) == ([], 0, [])
    journals.append(journal, b"a")
    assert bodies_of(journal.read(0, max_bytes=100).batches) == [b"a"]
    assert journal.read(1, max_bytes=100) == ([], 1, [])
    assert journal.read(7, max_bytes=100) == ([], 7, [])
    journals.append(journal, b"b")
    assert bodies_of(journal.read(1, max_bytes=100).batches) == [b"b"]


def test_reading_goes_on_while_the_journal_is_written(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=700)
    seen: list[bytes] = []
    published: list[bytes] = []
    for _ in range(50):
        published += journals.fill(journal, batches=2)
        chunk = journal.read(len(seen), max_bytes=200)
        seen += bodies_of(chunk.batches)
        assert seen == published[: chunk.next_offset]


def test_a_sequential_reader_needs_no_search(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    published = journals.fill(journal, batches=30)
    chunk = journal.read(0, max_bytes=300)

    def must_not(*arguments: object) -> None:
        raise AssertionError("the place was known")

    monkeypatch.setattr("emberq.storage.journal.segment.SparseIndex.before_offset", must_not)
    assert read_all(journal, offset=chunk.next_offset, max_bytes=300)[0] == published[chunk.next_offset :]


def test_offsets_that_retention_removed_are_a_gap(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=1000)
    published = journals.fill(journal, batches=20)
    journal.sync()
    journal.trim(before_offset=60, now_ns=START_NS)
    first = journal.first_offset
    assert first > 0
    chunk = journal.read(1, max_bytes=MANY)
    assert chunk.gaps == [(1, first, "removed by retention")]
    assert bodies_of(chunk.batches)[0] == published[first]


def test_damage_is_reported_once_and_passed_over(journals: JournalRig, caplog: pytest.LogCaptureFixture) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=6)
    second = 64 + (journal.total_bytes - 64) // 6
    flip(journals.segment(), second + 70)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            bodies, gaps = read_all(journal)
            assert bodies == published[:3] + published[6:]
            assert gaps == [(3, 6, "the crc does not fit the contents")]
    assert [record.getMessage() for record in caplog.records] == [
        f"journal {journals.folder}: offsets 3 to 5 are lost: 00000000000000000000.log, position {second}:"
        " the crc does not fit the contents"
    ]
    assert journal.gaps == gaps
    inside = journal.read(4, max_bytes=MANY)
    assert inside.gaps == [(4, 6, "the crc does not fit the contents")]
    assert bodies_of(inside.batches) == published[6:]


def test_damage_up_to_the_end_does_not_stop_the_reader(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=3)
    flip(journals.segment(), journal.total_bytes - 5)
    assert read_all(journal) == (published[:6], [(6, 9, "the crc does not fit the contents")])
    journals.append(journal, b"next")
    assert read_all(journal, offset=9) == ([b"next"], [])


def test_a_segment_of_zeros_is_one_gap(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    published = journals.fill(journal, batches=12)
    middle = journal.segments[1]
    middle.path.write_bytes(bytes(middle.size_bytes))
    bodies, gaps = read_all(journal)
    assert bodies == published[: middle.base_offset] + published[middle.next_offset :]
    assert [gap[:2] for gap in gaps] == [(middle.base_offset, middle.next_offset)]


def test_a_file_that_cannot_be_read_is_an_error_and_no_gap(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open()
    journals.append(journal, b"a")

    def fails(fd: int, size: int, position: int) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fails)
        with pytest.raises(JournalError, match="input/output error"):
            journal.read(0, max_bytes=10)
    assert read_all(journal) == ([b"a"], [])


def test_reads_that_the_system_serves_in_pieces_are_completed(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=5)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 50), position))
    assert read_all(journal) == (published, [])


def test_more_readers_than_places_are_remembered_still_find_theirs(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    published = journals.fill(journal, batches=300, count=1)
    for _ in range(2):
        for offset in range(299):
            assert bodies_of(journal.read(offset, max_bytes=1).batches) == published[offset : offset + 1]


def test_many_readers_in_many_places_keep_few_files_open(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=300)
    published = journals.fill(journal, batches=300, count=1)
    journal.sync()
    for start in range(0, 300, 7):
        assert bodies_of(journal.read(start, max_bytes=1).batches) == published[start : start + 1]
    assert open_files(journals.folder) <= 9


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "foreign"])
def test_an_index_that_is_lost_is_made_anew(journals: JournalRig, damage: str, tmp_path: Path) -> None:
    journal = journals.open(segment_bytes=2000)
    published = journals.fill(journal, batches=60)
    first, second = journals.index(journal.segments[0].base_offset), journals.index(journal.segments[1].base_offset)
    sound = first.read_bytes()
    if damage == "missing":
        first.unlink()
    elif damage == "truncated":
        first.write_bytes(sound[:-1])
    elif damage == "flipped":
        flip(first, len(sound) // 2)
    else:
        first.write_bytes(second.read_bytes())
    again = journals.open(segment_bytes=2000)
    assert bodies_of(again.read(10, max_bytes=1).batches) == published[9:12]
    assert len(first.read_bytes()) <= len(sound)
    assert first.read_bytes()[:64] == sound[:8] + first.read_bytes()[8:12] + sound[12:64]


def test_an_index_that_is_there_is_used_as_it_is(journals: JournalRig, caplog: pytest.LogCaptureFixture) -> None:
    journal = journals.open(segment_bytes=2000)
    published = journals.fill(journal, batches=60)
    journal.close()
    before = {path.name: path.stat().st_mtime_ns for path in journals.folder.glob("*.idx")}
    again = journals.open(segment_bytes=2000)
    assert read_all(again, offset=10)[0] == published[9:]
    assert caplog.text == ""
    assert {path.name: path.stat().st_mtime_ns for path in journals.folder.glob("*.idx")} == before


def test_offsets_that_were_never_given_are_a_gap_at_the_end_of_a_segment(journals: JournalRig) -> None:
    journal = journals.open()
    journals.append(journal, b"a")
    journal.skip_to(10)
    journals.append(journal, b"b")
    chunk = journal.read(0, max_bytes=MANY)
    assert (bodies_of(chunk.batches), chunk.next_offset) == ([b"a"], 10)
    assert chunk.gaps == [(1, 10, "skipped after an unclean stop")]
    assert journal.gaps == []  # that is no damage


def test_a_read_before_a_journal_of_which_retention_has_left_nothing_ends_behind_it(journals: JournalRig) -> None:
    journal = journals.open(retention_ns=NS_PER_SECOND)
    journals.fill(journal, batches=3)
    journal.trim(before_offset=9, now_ns=START_NS + 100 * NS_PER_SECOND)
    assert journal.first_offset == journal.next_offset == 9
    assert journal.read(4, max_bytes=MANY) == ([], 9, [(4, 9, "removed by retention")])


def test_damage_before_offsets_that_were_never_given_costs_no_more_than_it_hides(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=3)
    batch_bytes = (journals.segment().stat().st_size - 64) // 3
    journal.skip_to(100)
    journals.append(journal, b"later")
    journal.sync()
    flip(journals.segment(), 64 + 2 * batch_bytes + 80)
    bodies, gaps = read_all(journal)
    assert bodies == [*published[:6], b"later"]
    assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(6, 9), (9, 100)]
    assert [(gap.first_offset, gap.next_offset) for gap in journal.gaps] == [(6, 9)]
    assert [gap[:2] for gap in journal.read(50, max_bytes=MANY).gaps] == [(50, 100)]
    extent = journal.locate(6, max_bytes=MANY)
    assert extent is not None
    assert extent.base_offset == 100


# -- locate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1, 500, 1000, MANY])
def test_located_stretches_together_are_the_whole_journal(journals: JournalRig, max_bytes: int) -> None:
    journal = journals.open(segment_bytes=3000)
    journals.fill(journal, batches=60)
    journal.sync()
    offset, content = 0, b""
    while (extent := journal.locate(offset, max_bytes=max_bytes)) is not None:
        assert extent.base_offset == offset
        assert extent.length <= max_bytes or extent.next_offset == offset + 3
        offset = extent.next_offset
        content += content_of(extent)
    assert offset == journal.next_offset
    assert content == b"".join(path.read_bytes()[64:] for path in journals.segments())


def test_a_located_stretch_is_as_long_as_allowed(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    journals.fill(journal, batches=50)
    journal.sync()
    batch_bytes = (journal.total_bytes - 64) // 50
    for batches in (1, 2, 9, 50):
        extent = journal.locate(4, max_bytes=batches * batch_bytes + 7)
        assert extent is not None
        assert (extent.position, extent.base_offset) == (64 + batch_bytes, 3)
        assert extent.length == min(batches, 49) * batch_bytes


def test_what_retention_removed_is_not_located_but_what_follows_is(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=1000)
    journals.fill(journal, batches=20)
    journal.sync()
    journal.trim(before_offset=60, now_ns=START_NS)
    extent = journal.locate(0, max_bytes=MANY)
    assert extent is not None
    assert extent.base_offset == journal.first_offset > 0


def test_a_reader_that_asks_for_one_stretch_after_the_other_needs_no_search(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    journals.fill(journal, batches=30)
    journal.sync()
    extent = journal.locate(0, max_bytes=300)
    assert extent is not None

    def must_not(*arguments: object) -> None:
        raise AssertionError("the place was known")

    monkeypatch.setattr("emberq.storage.journal.segment.SparseIndex.before_offset", must_not)
    following = journal.locate(extent.next_offset, max_bytes=300)
    assert following is not None
    assert following.position == extent.position + extent.length


def test_only_what_is_synced_is_located(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=3, synced=False)
    assert journal.locate(0, max_bytes=MANY) is None
    journal.sync()
    journals.fill(journal, batches=3, synced=False)
    extent = journal.locate(0, max_bytes=MANY)
    assert extent is not None
    assert extent.next_offset == 9
    assert journal.locate(9, max_bytes=MANY) is None


def test_a_batch_that_is_synced_in_part_is_not_located(journals: JournalRig) -> None:
    journals.fill(journals.open(), batches=2)
    recovered = recover(journals.folder, JournalConfig(), clock=journals.clock)
    segments = Segments(recovered.segments, journal=recovered.identity.uuid, next_offset=6, interval_bytes=100)
    reader = JournalReader(segments)
    assert [reader.locate(0, max_bytes=MANY, end_offset=end) is None for end in (2, 3)] == [True, False]
    segments.active.close()


def test_locating_in_a_journal_that_is_all_damaged_finds_nothing(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=2)
    journal.sync()
    journals.segment().write_bytes(bytes(journal.total_bytes))
    assert journal.locate(0, max_bytes=MANY) is None
    assert [gap[:2] for gap in journal.gaps] == [(0, 6)]


def test_locating_passes_over_damage_and_shows_that_it_did(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    journals.fill(journal, batches=4)
    journal.sync()
    batch_bytes = (journal.total_bytes - 64) // 4
    flip(journals.segment(), 64 + batch_bytes)
    extent = journal.locate(3, max_bytes=MANY)
    assert extent is not None
    assert (extent.base_offset, extent.next_offset, extent.position) == (6, 12, 64 + 2 * batch_bytes)


def test_locating_goes_on_in_the_next_segment_when_one_is_lost(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    journals.fill(journal, batches=12)
    journal.sync()
    first, second = journal.segments[:2]
    first.path.write_bytes(bytes(first.size_bytes))
    extent = journal.locate(0, max_bytes=1)
    assert extent is not None
    assert (extent.path, extent.base_offset) == (second.path, second.base_offset)


# -- moments ---------------------------------------------------------------------------------------------------------


def publish_at(journal: Journal, *seconds: int) -> None:
    for second in seconds:
        journal.append(Bodies.of([b"x" * 100, b"y"]), timestamp_ns=second * NS_PER_SECOND)


def test_a_moment_is_the_first_offset_published_at_or_after_it(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=2000)
    publish_at(journal, *range(100, 200, 2))
    assert journal.offset_at(0) == 0
    for second in range(100, 199):
        assert journal.offset_at(second * NS_PER_SECOND) == 2 * ((second - 99) // 2)
    assert journal.offset_at(198 * NS_PER_SECOND + 1) == journal.next_offset == 100


def test_a_clock_that_goes_back_hides_no_message(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=600, index_interval_bytes=1)
    seconds = [10, 50, 20, 30, 5, 6, 7, 60, 8, 55, 70, 1]
    publish_at(journal, *seconds)
    for opened in (journal, journals.open(segment_bytes=600, index_interval_bytes=1)):
        for moment in range(72):
            expected = next((i for i, second in enumerate(seconds) if second >= moment), len(seconds))
            assert opened.offset_at(moment * NS_PER_SECOND) == 2 * expected


def test_messages_with_times_of_their_own_are_found_one_by_one(journals: JournalRig) -> None:
    journal = journals.open()
    journal.append(Bodies.of([b"a", b"b", b"c"]), timestamp_ns=0, times_ns=[10, 20, 30])
    assert [journal.offset_at(moment) for moment in (5, 10, 11, 20, 30, 31)] == [0, 0, 1, 1, 2, 3]


# -- what takes long -------------------------------------------------------------------------------------------------


def without_indexes(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> tuple[Journal, list[bytes]]:
    """A journal whose sealed segments count as large and have lost their .idx files; and what was published."""
    monkeypatch.setattr(segments_module, "SOON_READ_BYTES", 1000)
    journal = journals.open(segment_bytes=1500)
    published = journals.fill(journal, batches=40, count=3)
    journal.close()
    for path in sorted(journals.folder.glob("*.idx"))[:-1]:
        path.unlink()
    return journals.open(segment_bytes=1500, workers=other_thread.workers), published


def test_a_lost_index_of_a_large_segment_is_made_in_another_thread(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, published = without_indexes(journals, other_thread, monkeypatch)
    for _ in range(2):
        with pytest.raises(JournalBusyError, match="made anew"):
            journal.read(4, max_bytes=100)
    assert len(other_thread.waiting) == 1
    other_thread.run()
    assert bodies_of(journal.read(4, max_bytes=1).batches) == published[3:6]


def test_the_beginning_of_a_segment_is_read_without_its_index(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, published = without_indexes(journals, other_thread, monkeypatch)
    assert read_all(journal, max_bytes=100)[0] == published
    assert other_thread.waiting == []


def test_a_view_finds_what_the_journal_finds_and_leaves_no_file_open(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1500)
    for number in range(40):
        journals.append(journal, b"%d" % number)
        journals.clock.advance(ms=1000)
    journal.sync()
    held = open_files(journals.folder)
    view = journal.view()
    journals.append(journal, b"behind it")
    for offset in (0, 17, 39):
        assert view.read(offset, max_bytes=100).next_offset == journal.read(offset, max_bytes=100).next_offset
        assert view.located(offset, max_bytes=100) == journal.locate(offset, max_bytes=100)
        assert view.offset_at(START_NS + offset * NS_PER_SECOND) == offset
    assert view.located(40, max_bytes=100) is None
    view.close()
    assert open_files(journals.folder) <= held + 1


def test_damage_that_a_view_came_across_is_known_to_the_journal(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1500)
    journals.fill(journal, batches=10, count=3)
    flip(journal.segments[0].path, 100)
    view = journal.view()
    view.read(0, max_bytes=MANY)
    view.close()
    assert journal.gaps == []
    journal.learn(view)
    assert [gap[:2] for gap in journal.gaps] == [(0, 3)]


def test_a_view_of_files_that_are_gone_is_an_error(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1500)
    journals.fill(journal, batches=10, count=3)
    view = journal.view()
    journal.segments[0].path.unlink()
    with pytest.raises(JournalError, match="no such file"):
        view.read(0, max_bytes=100)
    view.close()
