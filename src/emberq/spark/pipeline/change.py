"""A pipeline that was changed between two runs: what may change, and what may not.

A checkpoint holds how far a query has read, and, for one with windows, joins of streams or dedupe, its state: the
groups and rows it remembers. Spark goes on with any SQL if there is no state. State belongs to the SQL that made it;
with another, Spark stops with an error about its innermost files, or, worse, goes on with numbers that mean something
else.

So the definitions of each query are kept beside its checkpoint, in `SINK.definition.json`, and compared when it starts:

    no state           it goes on where it was, with the new SQL, and says so
    state              refused, with the ways out
    state, accepted    Spark decides: it takes changes that leave groups and aggregates as they are
"""

from __future__ import annotations

import json

from emberq.spark.pipeline.build import Query
from emberq.spark.pipeline.file_system import FileSystem
from emberq.spark.pipeline.problem import Problem


def changes(query: Query, files: FileSystem) -> list[str]:
    """The paths of the definitions of a query that differ from those it began with."""
    kept = files.read_text(_file(query))
    if kept is None:
        return []
    before: dict[str, str] = json.loads(kept)
    return sorted(path for path in {*before, *query.definitions} if before.get(path) != query.definitions.get(path))


def refusal(query: Query, changed: list[str]) -> Problem:
    """Why a query that keeps state cannot go on."""
    return Problem(
        tuple(changed[0].split(".")),
        f"this has changed since sink {query.name} began, and the sink keeps state that belongs to what it was",
        f"go back to what {_file(query)} shows; or give the sink another name (and path), with which it begins anew "
        "from the start of its topics; or run with --accept-changes if groups and aggregates are the same as before",
    )


def keep(query: Query, files: FileSystem) -> None:
    """Remember the definitions of a query that is about to start."""
    files.write_text(_file(query), json.dumps(dict(query.definitions), indent=1, sort_keys=True))


def _file(query: Query) -> str:
    return f"{query.checkpoint}.definition.json"
