"""What a journal is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from emberq.base.clock import NS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """The settings of one journal."""

    segment_bytes: int = 128 * 1024 * 1024
    """A segment is sealed before a batch that would make it longer; a larger batch gets a segment of its own."""
    retention_bytes: int | None = None
    """The oldest segments go when all of them together are larger than this; None: not for their size."""
    retention_ns: int | None = 24 * 3600 * NS_PER_SECOND
    """A segment goes when its newest message is older than this; None: not for its age."""
    fsync: bool = True
    """False leaves it to the operating system when data reaches the disk: appended then counts as synced."""
    index_interval_bytes: int = 64 * 1024
    """One index entry for so many bytes. What lies between two entries is walked, batch header by batch header."""
    max_producers: int = 10_000
    """So many producers are remembered; of more, those that were silent longest may store a repeated batch twice."""
