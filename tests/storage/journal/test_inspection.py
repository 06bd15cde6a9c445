"""Verifying and dumping a journal from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emberq.storage.error import JournalOpenError
from emberq.storage.journal.inspection import Finding, JournalRow, Severity, VerifyProgress, dump, verify
from emberq.storage.journal.scan import Damage
from emberq.storage.journal.segment import Segment
from emberq.storage.journal.summary import load_summary, save_summary
from emberq.wire.journal_batch import Bodies
from tests.storage.journal.rig import START_NS, JournalRig, flip


def findings(folder: Path) -> list[Finding]:
    return [found for found in verify(folder) if isinstance(found, Finding)]


def test_a_sound_journal_has_no_findings(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=30)
    assert findings(journals.folder) == []
    journal.close()
    assert list(verify(journals.folder)) == [VerifyProgress(journal.total_bytes, journal.total_bytes, 30, 90)]


def test_progress_is_shown_on_the_way(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=2 << 20)
    for _ in range(40):
        journals.append(journal, b"x" * 100_000)
    shown = [found for found in verify(journals.folder) if isinstance(found, VerifyProgress)]
    assert len(shown) >= 3
    assert {step.total_bytes for step in shown} == {journal.total_bytes}
    assert shown[0].done_bytes < journal.total_bytes
    assert [step.done_bytes for step in shown] == sorted(step.done_bytes for step in shown)
    assert shown[-1] == VerifyProgress(journal.total_bytes, journal.total_bytes, 40, 40)


def test_damage_is_found_with_its_place_and_its_loss(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=30)
    batch_bytes = journals.segment().stat().st_size // 5
    flip(journals.segment(), 64 + batch_bytes + 20)
    flip(journals.index(journal.segments[1].base_offset), 50)
    (journals.folder / "journal.json").unlink()
    loss = [found for found in findings(journals.folder) if found.severity is Severity.LOSS]
    notes = [found for found in findings(journals.folder) if found.severity is Severity.NOTE]
    assert [(found.path, found.text) for found in loss] == [
        (journals.segment(), f"{loss[0].text.split(':')[0]}: offsets 3 to 5 are lost")
    ]
    assert 64 < loss[0].position <= 64 + batch_bytes
    assert [found.path.name for found in notes] == ["journal.json", f"{journal.segments[1].base_offset:020d}.idx"]


def test_a_torn_tail_is_no_loss(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=3)
    with journals.segment().open("ab") as file:
        file.write(b"EqB1 and no more")
    (found,) = findings(journals.folder)
    assert (found.severity, found.position) == (Severity.NOTE, journal.total_bytes)
    assert found.text.startswith("a torn tail of 16 bytes")


def test_what_is_missing_at_the_end_of_a_sealed_segment_is_a_loss(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    journals.fill(journal, batches=8)
    second = journal.segments[1].base_offset
    with journals.segment().open("r+b") as file:
        file.truncate(journal.segments[0].size_bytes - (journal.segments[0].size_bytes - 64) // (second // 3))
    found = [found for found in findings(journals.folder) if found.severity is Severity.LOSS]
    assert [item.text for item in found] == [f"offsets {second - 3} to {second - 1} are in no batch"]


def test_a_damaged_header_is_found(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    journals.fill(journal, batches=8)
    flip(journals.segment(), 20)
    assert [found.text for found in findings(journals.folder)] == ["the header is damaged or of another journal"]


def test_an_index_that_lies_is_found(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=10)
    segment = Segment(journals.segment(), base_offset=0, size_bytes=journal.segments[0].size_bytes)
    sound = load_summary(segment, journal=journal.uuid, interval_bytes=256)
    assert sound is not None
    sound.sparse_index.offsets[0] += 1
    save_summary(segment, sound, journal=journal.uuid)
    assert findings(journals.folder) == [
        Finding(Severity.NOTE, journals.index(), 0, "no batch with offset 1 begins at position 64")
    ]


def test_damage_does_not_make_an_index_lie_that_points_into_it(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000, index_interval_bytes=1)
    journals.fill(journal, batches=10)
    flip(journals.segment(), 64 + 20)
    assert [found.severity for found in findings(journals.folder)] == [Severity.LOSS]


def test_a_missing_index_is_found_only_where_there_should_be_one(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=10)
    for info in (journal.segments[0], journal.segments[-1]):
        journals.index(info.base_offset).unlink()
    assert [(found.path, found.text) for found in findings(journals.folder)] == [
        (journals.index(), "missing or damaged")
    ]


def test_a_damaged_index_of_the_last_segment_is_found(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=10)
    last = journals.index(journal.segments[-1].base_offset)
    last.write_bytes(b"nonsense")
    assert [found.path for found in findings(journals.folder)] == [last]


def test_a_segment_that_cannot_be_read_is_an_error(journals: JournalRig) -> None:
    journals.open().close()
    journals.segment(7).mkdir()
    for number in range(10):
        (journals.segment(7) / str(number)).touch()  # an empty folder has no size on some file systems
    with pytest.raises(JournalOpenError, match="is a directory"):
        list(verify(journals.folder))
    with pytest.raises(JournalOpenError, match="is a directory"):
        list(dump(journals.folder))


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalOpenError, match="no journal"):
        list(verify(tmp_path))
    with pytest.raises(JournalOpenError, match="no folder"):
        list(dump(tmp_path / "missing"))


def test_a_dump_shows_every_message_from_an_offset_on(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=300)
    journal.append(Bodies.of([b"a", b"b"]), timestamp_ns=START_NS)
    journal.append(Bodies.of([b"c", b"d"]), timestamp_ns=0, times_ns=[1, 2], due_ns=[0, 9])
    published = journals.fill(journal, batches=5, count=1)
    rows = list(dump(journals.folder))
    assert rows[:4] == [
        JournalRow(0, START_NS, 0, b"a"),
        JournalRow(1, START_NS, 0, b"b"),
        JournalRow(2, 1, 0, b"c"),
        JournalRow(3, 2, 9, b"d"),
    ]
    assert [row.body for row in rows[4:] if isinstance(row, JournalRow)] == published
    assert list(dump(journals.folder, offset=3)) == rows[3:]
    assert list(dump(journals.folder, offset=99)) == []


def test_a_dump_shows_damage_in_its_place(journals: JournalRig) -> None:
    journal = journals.open()
    for body in (b"a", b"b", b"c"):
        journals.append(journal, body)
    flip(journals.segment(), 64 + (journal.total_bytes - 64) // 3)
    first, second, third = dump(journals.folder)
    assert isinstance(first, JournalRow)
    assert isinstance(second, Damage)
    assert (second.first_offset, second.next_offset) == (1, 2)
    assert third == JournalRow(2, START_NS, 0, b"c")


def test_looking_at_a_journal_changes_nothing_and_needs_no_right_to(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500)
    journals.fill(journal, batches=10)
    before = {path: path.read_bytes() for path in journals.folder.iterdir()}
    opened: list[int] = []
    os_open = os.open

    def watched(path: Path, flags: int, mode: int) -> int:
        opened.append(flags)
        return os_open(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    assert findings(journals.folder) == []
    assert len(list(dump(journals.folder))) == 30
    assert set(opened) == {os.O_RDONLY}
    assert {path: path.read_bytes() for path in journals.folder.iterdir()} == before


def moved_on(journals: JournalRig) -> Path:
    """A journal of nine messages that went on at offset 100; of the nine, the last three are damaged. The segment."""
    journal = journals.open()
    journals.fill(journal, batches=3)
    batch_bytes = (journals.segment().stat().st_size - 64) // 3
    journal.skip_to(100)
    journals.append(journal, b"later")
    journal.close()
    flip(journals.segment(), 64 + 2 * batch_bytes + 80)
    return journals.segment()


def test_offsets_that_no_message_had_are_not_called_lost_with_the_damage_before_them(journals: JournalRig) -> None:
    path = moved_on(journals)
    loss, note = findings(journals.folder)
    assert (loss.severity, loss.path) == (Severity.LOSS, path)
    assert loss.text.endswith(": offsets 6 to 8 are lost")
    assert (note.severity, note.path) == (Severity.NOTE, path)
    assert note.text == "offsets 9 to 99 are skipped: the journal moved on after an unclean stop"


def test_a_dump_shows_damage_as_large_as_it_is(journals: JournalRig) -> None:
    moved_on(journals)
    *before, damage, later = dump(journals.folder)
    assert len(before) == 6
    assert isinstance(damage, Damage)
    assert (damage.first_offset, damage.next_offset) == (6, 9)
    assert isinstance(later, JournalRow)
    assert (later.offset, later.body) == (100, b"later")
    assert [row.offset for row in dump(journals.folder, offset=9) if isinstance(row, JournalRow)] == [100]


def test_what_an_interrupted_cut_left_is_a_note(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=2)
    content = journals.segment().read_bytes()
    journals.fill(journal, batches=1)
    with_more = journals.segment().read_bytes()
    journals.segment().write_bytes(content)
    again = journals.open()
    again.skip_to(100)
    again.close()
    journals.segment().write_bytes(with_more)
    assert {found.severity for found in findings(journals.folder)} == {Severity.NOTE}
    assert [row.offset for row in dump(journals.folder) if isinstance(row, JournalRow)] == list(range(6))


def test_a_journal_that_a_crash_left_without_a_segment_holds_nothing(journals: JournalRig) -> None:
    journals.open().close()
    for path in (*journals.segments(), *journals.folder.glob("*.idx")):
        path.unlink()
    assert list(dump(journals.folder)) == []
    assert findings(journals.folder) == []
