"""Which segments may go: whole ones, the oldest first, once everybody has read them.

A segment goes when its newest message is older than the retention time, or when all segments together are larger than
the retention size. The active segment never goes; one in which everything is too old is sealed first (see `Journal`).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from emberq.storage.atomic import sync_directory
from emberq.storage.journal.config import JournalConfig
from emberq.storage.journal.segment import Segment
from emberq.storage.journal.segments import Segments

log = logging.getLogger("emberq.storage")


def is_too_old(segment: Segment, segments: Segments, *, config: JournalConfig, now_ns: int) -> bool:
    """Whether even the newest message of a segment is older than the retention time; not if there is none."""
    if config.retention_ns is None or segment.is_empty:
        return False
    return segments.latest_ns(segment) < now_ns - config.retention_ns


def removable(segments: Segments, *, config: JournalConfig, before_offset: int, now_ns: int) -> list[Segment]:
    """The segments that should go and hold nothing that is not before `before_offset`."""
    kept_bytes = segments.total_bytes
    found: list[Segment] = []
    for segment in list(segments)[:-1]:
        are_too_many = config.retention_bytes is not None and kept_bytes > config.retention_bytes
        if segments.end_offset(segment) > before_offset:
            break
        if not are_too_many and not is_too_old(segment, segments, config=config, now_ns=now_ns):
            break
        kept_bytes -= segment.size_bytes
        found.append(segment)
    return found


def remove(oldest: list[Segment], segments: Segments, *, directory: Path) -> int:
    """Remove these segments, which are the oldest ones; return how many bytes that freed. A failure is only logged."""
    if not oldest:
        return 0
    freed_bytes = 0
    try:
        # Were these gone and the rest lost, nothing would tell which offsets had been given, and who the producers are.
        _sync_if_there(list(segments)[len(oldest)].summary_path)
        sync_directory(directory)
        for segment in oldest:
            segment.summary_path.unlink(missing_ok=True)
            segment.path.unlink(missing_ok=True)
            segments.remove_first()
            freed_bytes += segment.size_bytes
    except OSError as error:
        log.warning("journal %s: old segments were not removed - %s", directory, error)
    return freed_bytes


def _sync_if_there(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
