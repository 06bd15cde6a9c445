"""How long messages took from publishing to their FIN: the percentiles of one nsqd, and of several together.

An nsqd reports, over the recent past, how many messages it counted and the value of each percentile it was told to
track. Percentiles cannot be added up. So for several nsqds each quantile keeps the largest and the smallest of their
values, and the average weighted by their counts.

The reference takes for the smallest value that of whichever nsqd comes last. Here it is the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from emberq.cluster.document import Document, integer, number, objects

EVERY_HOST = "*"


class Percentile(NamedTuple):
    """One quantile; the values are nanoseconds."""

    quantile: float
    average: float
    min: float
    max: float
    message_count: int
    """Messages behind it."""
    value: float | None = None
    """What the nsqd said; None for several together."""


class Latency(NamedTuple):
    """The percentiles of a topic or a channel."""

    message_count: int
    """Messages that were counted."""
    percentiles: tuple[Percentile, ...] | None
    """From the largest to the smallest quantile, as nsqd tracks them; None if it tracks none."""
    topic: str = ""
    """Named only for several nsqds together, like the channel and the host."""
    channel: str = ""
    host: str = ""


UNTRACKED = Latency(message_count=0, percentiles=None)
UNTRACKED_DOCUMENT: Document = {"count": 0, "percentiles": None}
"""What an nsqd says that tracks none."""


def latency_of(document: Document | None) -> Latency:
    """What an nsqd says under `e2e_processing_latency`; an old one says nothing."""
    if not document or document == UNTRACKED_DOCUMENT:  # nearly always, and cheaper than to read it
        return UNTRACKED
    count = integer(document, "count")
    entries = objects(document, "percentiles")
    if not entries:
        return Latency(message_count=count, percentiles=None)
    return Latency(message_count=count, percentiles=tuple(_percentile(entry, count) for entry in entries))


def _percentile(entry: Document, count: int) -> Percentile:
    value = number(entry, "value")
    return Percentile(
        quantile=number(entry, "quantile"), average=value, min=value, max=value, message_count=count, value=value
    )


def combined(latencies: Iterable[Latency], *, topic: str, channel: str = "") -> Latency:
    """The percentiles of several nsqds together."""
    count = 0
    by_quantile: dict[float, list[Percentile]] = {}
    for latency in latencies:
        count += latency.message_count
        for percentile in latency.percentiles or ():
            by_quantile.setdefault(percentile.quantile, []).append(percentile)
    percentiles = tuple(_combined(by_quantile[quantile]) for quantile in sorted(by_quantile, reverse=True))
    return Latency(message_count=count, percentiles=percentiles or None, topic=topic, channel=channel, host=EVERY_HOST)


def _combined(parts: list[Percentile]) -> Percentile:
    count = sum(part.message_count for part in parts)
    weighted = sum(part.average * part.message_count for part in parts)
    return Percentile(
        quantile=parts[0].quantile,
        average=weighted / count if count else 0.0,
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        message_count=count,
    )
