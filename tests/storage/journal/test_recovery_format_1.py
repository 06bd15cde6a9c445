"""Journals of format 1, as versions before wrote them: they open, are read, and go on."""

from __future__ import annotations

import json
import struct
from uuid import UUID
from zlib import crc32

from emberq.wire.journal_batch import Bodies, encode, seed_of
from tests.storage.journal.rig import JournalRig, flip, producer, read_all

JOURNAL = UUID(int=77)


def batch_1(number: int, *, base_offset: int) -> bytes:
    """A batch of version 1: what version 2 writes, without its end."""
    content = bytearray(
        b"".join(
            encode(
                Bodies.of([b"message %d" % number]),
                base_offset=base_offset,
                timestamp_ns=1,
                seed=0,
                producer=producer(b"p", number),
            ).parts
        )[:-8]
    )
    struct.pack_into("<IH", content, 8, len(content), 1)
    struct.pack_into("<I", content, 4, crc32(content[8:], seed_of(JOURNAL)))
    return bytes(content)


def write_journal(journals: JournalRig, *, segments: dict[int, list[bytes]]) -> None:
    """A journal that was not closed: no .idx files."""
    journals.folder.mkdir()
    document = {"format": 1, "uuid": str(JOURNAL), "created": "2025-01-31T12:00:00Z"}
    (journals.folder / "journal.json").write_text(json.dumps(document))
    for base_offset, batches in segments.items():
        rest = struct.pack("<I16sqq16x", 1, JOURNAL.bytes, base_offset, 5)
        header = b"EMBERQJL" + struct.pack("<I", crc32(rest)) + rest
        journals.segment(base_offset).write_bytes(header + b"".join(batches))


def test_a_journal_of_format_1_is_read_and_goes_on(journals: JournalRig) -> None:
    batches = [batch_1(number, base_offset=number) for number in range(4)]
    write_journal(journals, segments={0: batches[:2], 2: batches[2:]})
    journal = journals.open()
    assert read_all(journal) == ([b"message %d" % number for number in range(4)], [])
    assert journals.append(journal, b"again", by=producer(b"p", 3)).is_repeated
    assert journals.append(journal, b"new", by=producer(b"p", 4)).base_offset == 4
    journal.sync()
    assert json.loads((journals.folder / "journal.json").read_text())["format"] == 2
    assert read_all(journals.open())[0][-1] == b"new"


def test_damage_in_the_middle_of_format_1_is_passed_over(journals: JournalRig) -> None:
    batches = [batch_1(number, base_offset=number) for number in range(4)]
    write_journal(journals, segments={0: batches})
    flip(journals.segment(), 64 + len(batches[0]) + 70)
    journal = journals.open()
    bodies, gaps = read_all(journal)
    assert bodies == [b"message 0", b"message 2", b"message 3"]
    assert [gap[:2] for gap in gaps] == [(1, 2)]


def test_offsets_that_format_1_skipped_between_segments_are_no_end(journals: JournalRig) -> None:
    write_journal(journals, segments={0: [batch_1(0, base_offset=0)], 50: [batch_1(1, base_offset=50)]})
    journal = journals.open()
    assert read_all(journal)[0] == [b"message 0", b"message 1"]
    assert journal.next_offset == 51


def test_a_torn_tail_of_format_1_is_cut_off(journals: JournalRig) -> None:
    batches = [batch_1(number, base_offset=number) for number in range(2)]
    write_journal(journals, segments={0: [batches[0], batches[1][:-8]]})
    journal = journals.open()
    assert read_all(journal) == ([b"message 0"], [])
    assert journal.next_offset == 1
