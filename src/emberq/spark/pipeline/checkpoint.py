"""How far the queries of a pipeline have come, and their lag, without Spark.

Spark keeps, in the folder of each query, `offsets/N` with what batch N reads, and `commits/N` when it is done. The
former has three parts, each on a line: a version, facts of Spark, and the offsets of each source, or `-`.

The lag of a query is how far its journals reach, less how far it has come. A channel that is read through a spool has
no offsets to compare: the lag of such a query is its channel's depth, which every NSQ tool shows. Here it is unknown,
as is that of a journal whose nsqd does not answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emberq.spark.error import NsqdUnavailableError, NsqSparkError
from emberq.spark.journal_offset import Place, from_document
from emberq.spark.nsqd_http import Access, AddressBook
from emberq.spark.option import access_of
from emberq.spark.pipeline.model import Pipeline

PAUSE_S = 10.0
"""How long an nsqd that did not answer is not asked again: a caller waits for its timeout only once."""


# Lag.


class JournalLag:
    """Asks nsqds how far journals reach. Owned by one thread."""

    def __init__(self, access: Access | None, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Without `access` no nsqd is known, and neither is the lag."""
        self._book = AddressBook(access) if access is not None else None
        self._monotonic_s = monotonic_s
        self._silent_until_s: dict[str, float] = {}

    def behind(self, offsets: Mapping[Place, int]) -> int | None:
        """How many messages there are from these offsets on; None if an nsqd does not tell."""
        total = 0
        for place, offset in offsets.items():
            end = self._end_of(place)
            if end is None:
                return None
            total += max(end - offset, 0)
        return total

    def close(self) -> None:
        """Close the connections."""
        if self._book is not None:
            self._book.close()

    def _end_of(self, place: Place) -> int | None:
        if self._book is None or self._monotonic_s() < self._silent_until_s.get(place.nsqd, 0.0):
            return None
        try:
            return int(self._book.peer(place.nsqd).get_json("/journal", topic=place.topic)["next_offset"])
        except NsqdUnavailableError:
            self._silent_until_s[place.nsqd] = self._monotonic_s() + PAUSE_S
        except NsqSparkError:
            pass  # the topic is gone, or its journal
        return None


def journal_offsets(documents: Iterable[Any]) -> dict[Place, int] | None:
    """The offsets of a query's sources, from what Spark keeps of them; None if one of them reads no journal."""
    offsets: dict[Place, int] = {}
    for document in documents:
        if not isinstance(document, Mapping) or "spool" in document:
            return None
        try:
            positions = from_document(document)
        except NsqSparkError:
            return None
        offsets |= {place: position.offset for place, position in positions.items()}
    return offsets


# Status.

_HEAD_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """How far a query has come."""

    query: str
    batch: int | None
    """The last batch that is done; None if there is none yet."""
    done_at: str
    """When that batch was done, in RFC 3339."""
    offsets: Mapping[str, int]
    """The offset of the next message to be read, by topic and nsqd: `clicks@127.0.0.1:4151`."""
    lag: int | None
    """How many messages it has still to read; None if unknown."""


def pipeline_status(pipeline: Pipeline) -> list[QueryStatus]:
    """The queries of a pipeline that have ever run, by name."""
    folder = Path(pipeline.checkpoint)
    queries = sorted(path.name for path in folder.glob("*/") if (path / "offsets").is_dir())
    options = pipeline.access_options
    with closing(JournalLag(access_of(options) if options else None)) as lag:
        return [_status(folder / query, lag) for query in queries]


def _status(folder: Path, lag: JournalLag) -> QueryStatus:
    done = max((int(path.name) for path in (folder / "commits").glob("[0-9]*")), default=None)
    if done is None:
        return QueryStatus(query=folder.name, batch=None, done_at="", offsets={}, lag=None)
    done_at = datetime.fromtimestamp((folder / "commits" / str(done)).stat().st_mtime, UTC)
    offsets = journal_offsets(source_offsets((folder / "offsets" / str(done)).read_text(encoding="utf-8")))
    return QueryStatus(
        query=folder.name,
        batch=done,
        done_at=done_at.isoformat(timespec="milliseconds"),
        offsets={f"{place.topic}@{place.nsqd}": offset for place, offset in (offsets or {}).items()},
        lag=None if offsets is None else lag.behind(offsets),
    )


def source_offsets(text: str) -> list[Any]:
    """The offsets of each source, from the text of a file in `offsets`."""
    return [json.loads(line) for line in text.splitlines()[_HEAD_LINES:] if line != "-"]
