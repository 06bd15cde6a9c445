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

from emberq.spark.option import Use, parse_options
from emberq.spark.pipeline.check import access_for
from emberq.spark.pipeline.journal_lag import JournalLag, journal_offsets
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
    options = access_for(pipeline, {})
    lag = JournalLag(Access.of(parse_options(options, Use.SINK)) if options else None)
    try:
        return [_status(folder / query, lag) for query in queries]
    finally:
        lag.close()


def _status(folder: Path, lag: JournalLag) -> QueryStatus:
    done = max((int(path.name) for path in (folder / "commits").glob("[0-9]*")), default=None)
    if done is None:
        return QueryStatus(query=folder.name, batch=None, done_at="", offsets={}, lag=None)
    done_at = datetime.fromtimestamp((folder / "commits" / str(done)).stat().st_mtime, UTC)
    offsets = journal_offsets(_offsets(folder / "offsets" / str(done)))
    return QueryStatus(
        query=folder.name,
        batch=done,
        done_at=done_at.isoformat(timespec="milliseconds"),
        offsets={f"{place.topic}@{place.nsqd}": offset for place, offset in (offsets or {}).items()},
        lag=None if offsets is None else lag.behind(offsets),
    )


def _offsets(file: Path) -> list[Any]:
    lines = file.read_text(encoding="utf-8").splitlines()[_HEAD_LINES:]
    return [json.loads(line) for line in lines if line != "-"]
