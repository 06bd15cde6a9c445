"""Journals on disk for the tests of `emberq journal`, made by the storage alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.storage.journal.cursor import Cursor, save_cursor, to_bytes
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies

START_NS = 1_700_000_000 * NS_PER_SECOND


def make_journal(
    data_path: Path, topic: str, *batches: Sequence[bytes], channels: dict[str, int] | None = None
) -> Path:
    """A journal whose batches came a second after each other; `channels` are low-water marks. Returns its folder."""
    folder = data_path / f"{topic}.journal"
    folder.mkdir(parents=True)
    journal = Journal.open(folder, JournalConfig(fsync=False), clock=ManualClock(wall_ns=START_NS))
    for number, bodies in enumerate(batches):
        journal.append(Bodies.of(bodies), timestamp_ns=START_NS + number * NS_PER_SECOND)
    (folder / "cursors").mkdir()
    for channel, low_water in (channels or {}).items():
        cursor = Cursor(journal.uuid, low_water=low_water)
        save_cursor(folder / "cursors" / f"{channel}.cursor", to_bytes(cursor))
    journal.close()
    return folder


def damage(folder: Path, body: bytes) -> None:
    """Change a bit of a body."""
    (segment,) = folder.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(body)] ^= 1
    segment.write_bytes(content)
