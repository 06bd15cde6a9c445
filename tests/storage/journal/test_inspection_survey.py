"""Journals seen from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.storage.error import JournalOpenError
from emberq.storage.journal.cursor import Cursor, save_cursor, to_bytes
from emberq.storage.journal.inspection import ChannelPlace, find_journals, is_journal, survey
from tests.storage.journal.rig import JournalRig, flip


def test_a_journal_that_is_open_shows_what_has_been_written(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.fill(journal, batches=30)
    seen = survey(journals.folder)
    assert (seen.identity.uuid, seen.identity.created) == (journal.uuid, journal.created)
    assert (seen.first_offset, seen.next_offset) == (0, journal.next_offset)
    assert (seen.size_bytes, seen.segment_count) == (journal.total_bytes, len(journal.segments))
    assert seen.channels == []


def test_a_journal_without_a_message_is_one_too(journals: JournalRig) -> None:
    journals.open()
    assert (survey(journals.folder).first_offset, survey(journals.folder).next_offset) == (0, 0)


def test_a_torn_tail_and_damage_do_not_hide_the_end(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1 << 20)
    journals.fill(journal, batches=10)
    flip(journals.segment(), 64 + 10)
    with journals.segment().open("ab") as file:
        file.write(b"EqB1 half a batch")
    assert survey(journals.folder).next_offset == journal.next_offset


def test_channels_are_shown_with_their_lag(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=10)
    cursors = journals.folder / "cursors"
    cursors.mkdir()
    cursor = Cursor(journal.uuid, low_water=3)
    cursor.acknowledge(5, 7)
    save_cursor(cursors / "c.cursor", to_bytes(cursor))
    (cursors / "damaged.cursor").write_bytes(b"nonsense")
    assert survey(journals.folder).channels == [ChannelPlace("c", 3, journal.next_offset - 5)]


def test_a_folder_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(JournalOpenError):
            survey(folder)


def test_journals_are_found_at_a_path_and_some_way_below_it(tmp_path: Path) -> None:
    near, far, too_far = tmp_path / "b.journal", tmp_path / "x" / "y" / "a.journal", tmp_path / "1/2/3/c.journal"
    for folder in (near, far, too_far):
        folder.mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert find_journals(tmp_path) == [near, far]
    assert find_journals(near) == [near]
    with pytest.raises(JournalOpenError):
        find_journals(tmp_path / "none")


def test_a_folder_is_a_journal_by_its_identity_or_by_its_segments(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    assert not is_journal(folder)
    folder.mkdir()
    (folder / "notes.txt").touch()
    assert not is_journal(folder)
    (folder / "journal.json").touch()
    assert is_journal(folder)
    (folder / "journal.json").unlink()
    (folder / "00000000000000000000.log").touch()
    assert is_journal(folder)
