"""What a crash leaves, byte by byte, and what damage in other places does."""

from __future__ import annotations

import json
import shutil
import struct
from itertools import groupby
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import OsFiles
from emberq.storage.error import JournalOpenError
from tests.storage.journal.rig import START_NS, JournalRig, flip, open_files, producer, read_all

BATCHES = [[b"first"], [b"second", b"", b"third of them"], [b"fourth", b"fifth"]]


@pytest.fixture
def small(journals: JournalRig) -> tuple[JournalRig, list[int]]:
    """A crashed journal of one small segment, and where its batches begin and end."""
    journal = journals.open()
    edges = [journal.total_bytes]
    for number, bodies in enumerate(BATCHES):
        journals.append(journal, *bodies, by=producer(b"p", number))
        journal.sync()
        edges.append(journal.total_bytes)
    return journals, edges


def copy_of(journals: JournalRig, tmp_path: Path) -> JournalRig:
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(journals.folder, folder)
    return JournalRig(folder)


def bodies_up_to(count: int) -> list[bytes]:
    return [body for bodies in BATCHES[:count] for body in bodies]


def test_a_tail_torn_at_any_byte_is_cut_off(small: tuple[JournalRig, list[int]], tmp_path: Path) -> None:
    journals, edges = small
    content = journals.segment().read_bytes()
    for kept in range(len(content)):
        copy = copy_of(journals, tmp_path)
        copy.segment().write_bytes(content[:kept])
        journal = copy.open()
        whole = max(sum(edge <= kept for edge in edges) - 1, 0)
        assert read_all(journal) == (bodies_up_to(whole), [])
        assert journal.next_offset == len(bodies_up_to(whole))
        assert journal.report.cut_bytes == (kept - edges[whole] if kept >= edges[0] else 0)
        assert copy.segment().stat().st_size == edges[whole]
        stored = copy.append(journal, b"new", by=producer(b"p", whole))
        assert not stored.is_repeated
        assert read_all(journal)[0] == [*bodies_up_to(whole), b"new"]
        copy.close()


def test_a_bit_flipped_at_any_byte_costs_the_batch_it_is_in(
    small: tuple[JournalRig, list[int]], tmp_path: Path
) -> None:
    journals, edges = small
    for position in range(edges[-1]):
        copy = copy_of(journals, tmp_path)
        flip(copy.segment(), position, bit=position % 8)
        journal = copy.open()
        hit = sum(edge <= position for edge in edges) - 1
        bodies, gaps = read_all(journal)
        if hit < 0:
            assert (bodies, gaps) == (bodies_up_to(3), [])
            assert journal.report.repairs == ["the header of 00000000000000000000.log was damaged and is written anew"]
            assert copy.open().report.repairs == []
        elif hit == 2:
            assert bodies == bodies_up_to(2)
            assert journal.report.cut_bytes == edges[3] - edges[2]
            assert journal.report.moved_on == (4, journal.next_offset)
            assert [gap[:2] for gap in gaps] == [(4, journal.next_offset)]
        else:
            first = len(bodies_up_to(hit))
            expected = bodies_up_to(3)
            del expected[first : first + len(BATCHES[hit])]
            assert bodies == expected
            assert [gap[:2] for gap in gaps] == [(first, first + len(BATCHES[hit]))]
            assert journal.report.cut_bytes == 0
            assert [(damage.position, damage.end) for damage in journal.report.damage] == [(edges[hit], edges[hit + 1])]
        new_offset = copy.append(journal, b"new").base_offset
        assert new_offset >= 6 if hit == 2 else new_offset == 6
        copy.close()


@pytest.mark.parametrize("garbage", [b"\0" * 4096, b"EqB1" * 1000, b"EqB1" + b"\0" * 60])
def test_garbage_behind_the_last_batch_is_cut_off(small: tuple[JournalRig, list[int]], garbage: bytes) -> None:
    journals, edges = small
    with journals.segment().open("ab") as file:
        file.write(garbage)
    journal = journals.open()
    assert journal.report.cut_bytes == len(garbage)
    assert journals.segment().stat().st_size == edges[-1]
    assert read_all(journal)[0] == bodies_up_to(3)
    assert journal.report.moved_on == (6, 6 + len(garbage) // 4)  # as many as it may have held


def test_the_beginning_of_a_batch_behind_the_last_one_is_cut_off(small: tuple[JournalRig, list[int]]) -> None:
    journals, edges = small
    content = journals.segment().read_bytes()
    with journals.segment().open("ab") as file:
        file.write(content[edges[0] : edges[0] + 13])
    journal = journals.open()
    assert journal.report.cut_bytes == 13
    assert journal.report.moved_on is None
    assert read_all(journal) == (bodies_up_to(3), [])


def test_batches_inside_a_message_do_not_pass_for_batches(journals: JournalRig, tmp_path: Path) -> None:
    other = JournalRig(tmp_path / "other")
    journal = other.open()
    journal.skip_to(5)
    other.append(journal, b"smuggled")
    smuggled = other.segment(5).read_bytes()[64:]
    other.close()

    victim = journals.open()
    for padding in range(8):
        journals.append(victim, b"." * padding + smuggled)
    own = journals.segment().read_bytes()[64:]
    journals.append(victim, own)
    journals.append(victim, b"last")
    victim.close()
    position = 64 + len(own)
    flip(journals.segment(), position + 12)  # the version of the batch that holds a copy of all earlier ones
    bodies, gaps = read_all(journals.open())
    assert bodies[-1] == b"last"
    assert len(bodies) == 9
    assert [gap[:2] for gap in gaps] == [(8, 9)]


def test_after_a_clean_stop_nothing_is_read_again(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open(segment_bytes=1000)
    published = journals.fill(journal, batches=20)
    journal.close()
    with monkeypatch.context() as watched:

        def must_not(*arguments: object) -> bytes:
            raise AssertionError("the index file says everything")

        watched.setattr("emberq.storage.journal.scan.read_around", must_not)
        watched.setattr(OsFiles, "sync_data", must_not)
        again = journals.open(segment_bytes=1000)
    assert again.next_offset == again.synced_offset == 60
    assert read_all(again) == (published, [])


def test_what_was_appended_after_a_clean_stop_is_found_after_a_crash(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=3)
    journal.close()
    published += journals.fill(journals.open(), batches=3)
    assert read_all(journals.open()) == (published, [])


def test_an_index_of_a_longer_file_is_not_trusted(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=3, count=1)
    journal.close()
    size = journals.segment().stat().st_size
    with journals.segment().open("r+b") as file:
        file.truncate(size - 1)
    shorter = journals.open()
    assert shorter.next_offset == 2
    for _ in range(4):
        journals.append(shorter, b"other", b"other")
    again = journals.open()
    assert again.next_offset == 10
    assert len(read_all(again)[0]) == 10


def test_a_process_that_died_while_rolling_leaves_a_segment_that_is_made_anew(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=2)
    for left in (b"", b"EMBERQJL", bytes(64)):
        journals.segment(6).write_bytes(left)
        again = journals.open()
        assert again.next_offset == 6
        assert "made anew" in " ".join(again.report.repairs)
        assert read_all(again) == (published, [])
    assert journals.append(again, b"x").base_offset == 6


def test_a_file_that_is_no_segment_is_set_aside(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=2)
    journals.segment(6).write_bytes(b"precious" * 100)
    again = journals.open()
    journals.segment(6).write_bytes(b"precious too" * 100)
    again = journals.open()
    assert (journals.folder / "00000000000000000006.bad").read_bytes() == b"precious" * 100
    assert (journals.folder / "00000000000000000006.bad.1").read_bytes() == b"precious too" * 100
    assert journals.append(again, b"x").base_offset == 6
    assert read_all(again) == ([*published, b"x"], [])


def test_the_tail_of_a_sealed_segment_is_reported_and_not_cut(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    published = journals.fill(journal, batches=8, count=1)
    second = journal.segments[1].base_offset
    with journals.segment().open("r+b") as file:
        file.truncate(journals.segment().stat().st_size - 1)
    bodies, gaps = read_all(journals.open(segment_bytes=500))
    assert bodies == published[: second - 1] + published[second:]
    assert [gap[:2] for gap in gaps] == [(second - 1, second)]


def test_a_missing_segment_is_a_gap(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    published = journals.fill(journal, batches=12, count=1)
    lost = journal.segments[1]
    lost.path.unlink()
    bodies, gaps = read_all(journals.open(segment_bytes=500))
    assert bodies == published[: lost.base_offset] + published[lost.next_offset :]
    assert [gap[:2] for gap in gaps] == [(lost.base_offset, lost.next_offset)]


def test_after_a_crash_the_segments_reach_the_disk_before_their_summaries_and_once_more_at_the_end(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary without the segment behind its own would tell of messages as lost that were never confirmed."""
    journals.fill(journals.open(segment_bytes=500), batches=8)
    done: list[str] = []
    rename = OsFiles.rename

    def note_rename(files: OsFiles, source: Path, target: Path) -> None:
        done.append(target.suffix)
        rename(files, source, target)

    monkeypatch.setattr(OsFiles, "rename", note_rename)
    monkeypatch.setattr(OsFiles, "sync_folder", lambda _, path: done.append("sync" if path == journals.folder else "?"))
    journals.open(segment_bytes=500)
    assert [name for name, _ in groupby(done)] == ["sync", ".idx", "sync"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"format":1,"uuid":"x","created":""}'])
def test_a_lost_identity_is_found_in_the_segments(journals: JournalRig, content: bytes | None) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=2)
    identity = journals.folder / "journal.json"
    identity.unlink()
    if content is not None:
        identity.write_bytes(content)
    again = journals.open()
    assert again.uuid == journal.uuid
    assert again.report.repairs
    assert json.loads(identity.read_bytes())["uuid"] == str(journal.uuid)
    assert read_all(again) == (published, [])


def test_a_digit_that_flipped_in_the_identity_makes_no_other_journal(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    published = journals.fill(journal, batches=8)
    identity = journals.folder / "journal.json"
    flipped = UUID(int=journal.uuid.int ^ 1)
    identity.write_text(identity.read_text().replace(str(journal.uuid), str(flipped)))
    again = journals.open(segment_bytes=500)
    assert again.uuid == journal.uuid
    assert again.report.repairs == ["journal.json named another journal than all segments do, and is made anew"]
    assert json.loads(identity.read_bytes())["uuid"] == str(journal.uuid)
    assert read_all(again) == (published, [])


def test_segments_of_no_known_journal_are_refused(journals: JournalRig) -> None:
    journals.folder.mkdir()
    journals.segment().write_bytes(b"?" * 100)
    with pytest.raises(JournalOpenError, match="nothing in it tells"):
        journals.open()


def test_formats_of_the_future_are_refused_and_left_alone(journals: JournalRig) -> None:
    journal = journals.open()
    journals.fill(journal, batches=1)
    header = bytearray(journals.segment().read_bytes()[:64])
    struct.pack_into("<I", header, 12, 3)
    struct.pack_into("<I", header, 8, crc32(header[12:]))
    content = bytes(header) + journals.segment().read_bytes()[64:]
    journals.segment().write_bytes(content)
    with pytest.raises(JournalOpenError, match="version 3"):
        journals.open()
    assert journals.segment().read_bytes() == content
    (journals.folder / "journal.json").write_text(json.dumps({"format": 9, "uuid": str(UUID(int=1)), "created": "x"}))
    with pytest.raises(JournalOpenError, match="format 9"):
        journals.open()


def test_the_segment_header_is_the_one_of_the_drawing(journals: JournalRig) -> None:
    journal = journals.open()
    rest = struct.pack("<I16sqqqq", 2, journal.uuid.bytes, 0, journals.clock.wall_ns(), 0, 0)
    assert journals.segment().read_bytes() == b"EMBERQJL" + struct.pack("<I", crc32(rest)) + rest


def test_leftovers_of_replaced_files_are_removed(journals: JournalRig) -> None:
    journals.open()
    (journals.folder / "journal.json.17.tmp").write_bytes(b"half")
    journals.open()
    assert journals.names() == {"journal.json", "00000000000000000000.log"}


def test_a_big_endian_machine_is_refused(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberq.storage.journal.recovery.sys.byteorder", "big")
    with pytest.raises(JournalOpenError, match="little-endian"):
        journals.open()


# -- producers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "crashed", "crashed and the last index lost", "all indexes lost"])
def test_the_producers_of_all_segments_are_known_again(journals: JournalRig, end: str) -> None:
    journal = journals.open(segment_bytes=400)
    for number in range(12):
        journals.append(journal, b"x" * 60, by=producer(b"%d" % (number % 4), number))
        journal.sync()
    names = [producer(b"%d" % number, 0).producer_id for number in range(4)]
    before = [journal.producer_state(name) for name in names]
    assert len(journals.segments()) > 3
    if end == "closed":
        journal.close()
    elif end == "crashed and the last index lost":
        journals.index(journal.segments[-1].base_offset).unlink()
    elif end == "all indexes lost":
        for path in journals.folder.glob("*.idx"):
            path.unlink()
    again = journals.open(segment_bytes=400)
    assert [again.producer_state(name) for name in names] == before
    assert None not in before


def test_the_index_of_a_sealed_segment_that_is_sound_is_not_made_anew(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=400)
    for number in range(12):
        journals.append(journal, b"x" * 60, by=producer(b"p", number))
        journal.sync()
    journals.index(journal.segments[-1].base_offset).unlink()
    assert journals.open(segment_bytes=400).report.repairs == []


def test_what_was_found_after_a_crash_can_be_looked_up_by_time(journals: JournalRig) -> None:
    journal = journals.open(index_interval_bytes=1)
    journals.fill(journal, batches=5)
    again = journals.open(index_interval_bytes=1)
    assert again.offset_at(START_NS + 2 * NS_PER_SECOND) == 6


def test_segments_that_are_synced_after_a_crash_are_not_kept_open(journals: JournalRig) -> None:
    journals.fill(journals.open(segment_bytes=400), batches=20)
    before = open_files(journals.folder)
    journals.open(segment_bytes=400)
    assert open_files(journals.folder) <= before + 1


def test_a_damaged_header_of_a_journal_that_was_stopped_is_written_anew(journals: JournalRig) -> None:
    journal = journals.open()
    published = journals.fill(journal, batches=2)
    journal.close()
    flip(journals.segment(), 20)
    again = journals.open()
    assert again.report.repairs == ["the header of 00000000000000000000.log was damaged and is written anew"]
    assert read_all(again) == (published, [])
    again.close()
    assert journals.open().report.repairs == []
