"""How far the queries of a pipeline have come, as their checkpoints tell. Needs neither Spark nor a run of it.

Spark keeps, in the folder of each query, `offsets/N` with what batch N reads, and `commits/N` when it is done. The
former has three parts, each on a line: a version, facts of Spark, and the offsets of each source, or `-`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqSparkError
from emberq.spark.journal_offset import Place, from_document
from emberq.spark.option import Use, parse_options
from emberq.spark.pipeline.check import access_for
from emberq.spark.pipeline.model import Pipeline
from emberq.spark.setting import Access

_HEAD_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """How far a query has come."""

    query: str
    batch: int | None
    """The last that is done; None: it has never finished one."""
    done_at: str
    """When; in RFC 3339."""
    offsets: Mapping[str, int]
    """Of the next message to be read, by topic and nsqd: `clicks@127.0.0.1:4151`."""
    lag: int | None
    """How many messages it has still to read; None if nsqd does not tell."""


def pipeline_status(pipeline: Pipeline) -> list[QueryStatus]:
    """The queries of a pipeline that have ever run, by name."""
    folder = Path(pipeline.checkpoint)
    queries = sorted(path.name for path in folder.glob("*/") if (path / "offsets").is_dir())
    ends = _Ends(pipeline)
    return [_status(folder / query, ends) for query in queries]


class _Ends:
    """How far the journals reach."""

    def __init__(self, pipeline: Pipeline) -> None:
        options = access_for(pipeline, {})
        self._book = AddressBook(Access.of(parse_options(options, Use.SINK))) if options else None
        self._known: dict[Place, int | None] = {}

    def end_of(self, place: Place) -> int | None:
        if place not in self._known:
            self._known[place] = self._ask(place)
        return self._known[place]

    def _ask(self, place: Place) -> int | None:
        if self._book is None:
            return None
        try:
            return int(self._book.peer(place.nsqd).get_json("/journal", topic=place.topic)["next_offset"])
        except NsqSparkError:
            return None


def _status(folder: Path, ends: _Ends) -> QueryStatus:
    done = max((int(path.name) for path in (folder / "commits").glob("[0-9]*")), default=None)
    if done is None:
        return QueryStatus(query=folder.name, batch=None, done_at="", offsets={}, lag=None)
    documents = _offsets(folder / "offsets" / str(done))
    journals = [document for document in documents if "spool" not in document]  # channels have no offsets to compare
    positions = {place: position.offset for document in journals for place, position in from_document(document).items()}
    lags = [None if (end := ends.end_of(place)) is None else end - offset for place, offset in positions.items()]
    is_known = None not in lags and len(journals) == len(documents)
    done_at = datetime.fromtimestamp((folder / "commits" / str(done)).stat().st_mtime, UTC)
    return QueryStatus(
        query=folder.name,
        batch=done,
        done_at=done_at.isoformat(timespec="milliseconds"),
        offsets={f"{place.topic}@{place.nsqd}": offset for place, offset in positions.items()},
        lag=sum(lag for lag in lags if lag is not None) if is_known else None,
    )


def _offsets(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines()[_HEAD_LINES:]
    documents = [json.loads(line) for line in lines if line != "-"]
    return [document for document in documents if isinstance(document, dict)]
