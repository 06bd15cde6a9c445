"""One look at the cluster, ready to be shown."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.node_figures import FIGURES
from emberq.cluster.observer import Observer
from emberq.cluster.survey import Survey
from emberq.cluster.upstream import ClusterError
from emberq.tools.top.row import Row, rows_of

_RATE_DIGITS = 1
_SHOWN_FIGURES = (*FIGURES, "node_count", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What was seen, or what was seen last and why there is nothing newer."""

    taken_ns: int = 0
    """By the wall clock; 0 if nothing was ever seen."""
    nodes: tuple[str, ...] = ()
    topic_count: int = 0
    rows: tuple[Row, ...] = ()
    came_per_s: float | None = None
    """Messages published, over all topics; None until there are two looks to compare."""
    left_per_s: float | None = None
    """Messages finished, over all channels."""
    warnings: tuple[str, ...] = ()
    failure: str = ""
    """Why nothing could be seen this time; all else then is from the look before."""

    @property
    def taken_at(self) -> datetime.datetime:
        """When it was seen, in local time."""
        return datetime.datetime.fromtimestamp(self.taken_ns / NS_PER_SECOND).astimezone()


class Watcher:
    """Looks again and again."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock
        self._seen: Survey | None = None
        self._last = Frame()

    async def look(self) -> Frame:
        """What is to be seen now. A cluster that does not answer is a frame that says so."""
        try:
            found = await self._observer.survey(self._clock, self._seen)
        except ClusterError as failure:
            self._last = replace(self._last, failure=str(failure), warnings=())
            return self._last
        self._seen = seen = found.value
        rates = seen.total_rates()
        self._last = Frame(
            taken_ns=self._clock.wall_ns(),
            nodes=tuple(producer.node for producer in seen.producers),
            topic_count=len(seen.channels),
            rows=tuple(rows_of(seen)),
            came_per_s=None if rates is None else rates.came,
            left_per_s=None if rates is None else rates.left,
            warnings=found.warnings,
        )
        return self._last


def frame_document(frame: Frame, rows: Iterable[Row]) -> dict[str, Any]:
    """The frame as JSON, with the rows that are to be seen of it."""
    if frame.failure:
        return {"error": frame.failure}
    return {
        "time": frame.taken_at.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "nodes": list(frame.nodes),
        "topic_count": frame.topic_count,
        "came_per_s": _rounded(frame.came_per_s),
        "left_per_s": _rounded(frame.left_per_s),
        "rows": [_row_document(row) for row in rows],
        "warnings": list(frame.warnings),
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "channel": row.channel or None,
        **{name: getattr(row.total, name) for name in _SHOWN_FIGURES},
        "came_per_s": _rounded(row.came_per_s),
        "left_per_s": _rounded(row.left_per_s),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, _RATE_DIGITS)
