"""Journals with pages that the disk cannot read: they cost the batches that they are in, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.storage.error import JournalError
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.folder import JournalFolder
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.scan import MAX_UNREADABLE_PIECES
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies
from tests.crash.simulated_files import PAGE_BYTES, ROOT, SimulatedFiles
from tests.storage.journal.rig import read_all

FOLDER = ROOT / "topic.journal"
FIRST = FOLDER / "00000000000000000000.log"
COUNT = 6
"""Messages whose batches are two pages long; that of message n begins in page 2n, behind the header of the segment."""


def opened(fs: SimulatedFiles, *, segment_bytes: int = 1 << 24) -> Journal:
    return Journal.open(FOLDER, JournalConfig(segment_bytes=segment_bytes), clock=ManualClock(), fs=fs)


def filled(fs: SimulatedFiles, *, segment_bytes: int = 1 << 24) -> Journal:
    """A journal with `COUNT` messages, each synced before the next."""
    journal = opened(fs, segment_bytes=segment_bytes)
    for number in range(COUNT):
        journal.append(Bodies.of([body(number)]), timestamp_ns=1)
        journal.sync()
    return journal


def body(number: int) -> bytes:
    return (b"%d" % number).ljust(2 * PAGE_BYTES - 80, b".")


def names(journal: Journal, *, offset: int = 0) -> str:
    """The messages that can be read."""
    return "".join(chr(found[0]) for found in read_all(journal, offset=offset)[0])


def test_a_reader_passes_over_a_page_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    fs = SimulatedFiles()
    journal = filled(fs)
    fs.spoil(FIRST, 5 * PAGE_BYTES)
    with caplog.at_level(logging.ERROR):
        bodies, gaps = read_all(journal)
    assert [found[:1] for found in bodies] == [b"0", b"1", b"3", b"4", b"5"]
    assert gaps == [(2, 3, f"the disk cannot read it at position {5 * PAGE_BYTES}")]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"journal {FOLDER}: offsets 2 to 2 are lost: {FIRST.name}, position ")
    assert journal.gaps == gaps
    assert journal.append(Bodies.of([b"new"]), timestamp_ns=1).base_offset == COUNT


@pytest.mark.parametrize("pages", [MAX_UNREADABLE_PIECES + 1, 2 * COUNT + 1])
def test_a_disk_that_cannot_be_read_at_all_is_no_gap(pages: int) -> None:
    fs = SimulatedFiles()
    journal = filled(fs)
    journal.append(Bodies.of([bytes(max(pages - 2 * COUNT - 1, 0) * PAGE_BYTES)]), timestamp_ns=1)
    for page in range(pages):
        fs.spoil(FIRST, page * PAGE_BYTES)
    with pytest.raises(JournalError, match="input/output error"):
        journal.read(0, max_bytes=1)


def test_a_batch_all_of_which_cannot_be_read_is_a_gap() -> None:
    fs = SimulatedFiles()
    journal = filled(fs)
    for page in range(2, 4):
        fs.spoil(FIRST, page * PAGE_BYTES)
    assert names(journal) == "2345"  # the end of message 0 is in page 2


def test_a_segment_that_ends_in_a_page_that_cannot_be_read_is_followed_by_another() -> None:
    fs = SimulatedFiles()
    filled(fs).close()
    fs.spoil(FIRST, 2 * COUNT * PAGE_BYTES)
    journal = opened(fs)
    assert journal.append(Bodies.of([b"new"]), timestamp_ns=1).base_offset == COUNT
    assert len(journal.segments) == 2
    journal.sync()
    assert names(opened(fs)) == "01234n"  # the end of message 5 is in that page


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("page", range(2 * COUNT))
def test_a_journal_with_a_page_that_cannot_be_read_is_opened(page: int, is_closed: bool) -> None:
    fs = SimulatedFiles()
    journal = filled(fs)
    if is_closed:
        journal.close()
    fs.spoil(FIRST, page * PAGE_BYTES)
    again = opened(fs)
    lost = {page // 2, (page - 1) // 2} if page and page % 2 == 0 else {page // 2}
    found = set(names(again))
    assert found >= set("012345") - {str(number) for number in lost}
    offset = again.append(Bodies.of([b"new"]), timestamp_ns=1).base_offset
    assert offset >= COUNT
    again.sync()
    assert set(names(again)) == found | {"n"}


def test_the_page_of_a_segment_in_the_middle_is_a_gap_after_a_crash() -> None:
    fs = SimulatedFiles()
    journal = filled(fs, segment_bytes=5 * PAGE_BYTES)
    assert len(journal.segments) == COUNT // 2
    fs.spoil(journal.segments[1].path, 0)
    for name in fs.names(FOLDER):
        if name.endswith(".idx"):
            fs.unlink(FOLDER / name)
    again = opened(fs, segment_bytes=5 * PAGE_BYTES)
    assert names(again) == "01345"
    assert [gap[:2] for gap in again.gaps] == [(2, 3)]


def test_a_cursor_that_cannot_be_read_starts_at_the_oldest_message(caplog: pytest.LogCaptureFixture) -> None:
    fs = SimulatedFiles()
    folder = folder_on(fs)
    folder.journal.append(Bodies.of([b"a", b"b"]), timestamp_ns=1)
    folder.cursor("c", start_offset=2)
    folder.journal.close()
    cursor = FOLDER / "cursors" / "c.cursor"
    fs.spoil(cursor, 0)
    again = folder_on(fs)
    with caplog.at_level(logging.WARNING):
        assert again.cursor("c", start_offset=2).low_water == 0
    assert str(cursor) in caplog.text


def folder_on(fs: SimulatedFiles, path: Path = FOLDER) -> JournalFolder:
    return JournalFolder(path, JournalConfig(), clock=ManualClock(), workers=Workers(), fs=fs)
