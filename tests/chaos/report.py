"""The report of a run: text for a terminal, and one HTML page with plots and no other files.

Each nsqd has three plots over the same time axis: how many messages were confirmed and delivered in each second, how
long that took, and its memory. Faults are shaded, with their names.
"""

from __future__ import annotations

import html
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.checking import Verdict
from tests.chaos.history import Event, Kind

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1080, 130, 64, 16, 22
"""Of one plot, in pixels: in all, and of the room for what stands beside the axes."""
COLOURS = ("#1f6f8b", "#c0562f", "#5b7f3a")
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1120px; color: #222; padding: 0 1rem }
h1 { font-size: 1.4rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .2rem }
pre { white-space: pre-wrap; background: #f6f6f4; padding: .8rem; border-radius: 4px }
svg { display: block; width: 100%; height: auto; margin: .3rem 0 }
text { font: 11px system-ui, sans-serif }
td, th { text-align: left; padding: .1rem .8rem .1rem 0 }
.kept { color: #2c6e2f }
.broken { color: #b3261e }
"""


@dataclass
class Span:
    """A fault on the time axis."""

    name: str
    begun_s: float
    ended_s: float


@dataclass
class NodeSeries:
    """What one nsqd did, second by second."""

    confirmed: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)
    publish_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From a publish to its OK."""
    delivery_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From the publish to the first delivery in each channel."""
    memory_bytes: dict[int, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)


class Measurements:
    """Takes in a history, and sums it up for each nsqd."""

    def __init__(self, nodes: Mapping[str, str], *, backlogs: Container[str] = ()) -> None:
        """`nodes` says for each topic which nsqd has it. How long `backlogs` wait says nothing."""
        self.end_s = 0.0
        self.series: dict[str, NodeSeries] = {}
        self._nodes = nodes
        self._backlogs = backlogs
        self._published: dict[tuple[str, str], float] = {}
        self._delivered: set[tuple[str, str, str]] = set()
        self._open: dict[tuple[str, str], float] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            node = self._nodes.get(event.topic, event.topic)
            self.end_s = max(self.end_s, event.time_s)
            self._take(event, self.series.setdefault(node, NodeSeries()))
        for (node, name), begun_s in self._open.items():
            self.series[node].spans.append(Span(name, begun_s, self.end_s))

    def _take(self, event: Event, series: NodeSeries) -> None:
        time_s, second = event.time_s, int(event.time_s)
        message = (event.topic, event.key)
        match event.kind:
            case Kind.PUBLISH:
                self._published[message] = time_s
            case Kind.OK:
                series.confirmed[second] += 1
                series.publish_ms[second].append(1000 * (time_s - self._published.get(message, time_s)))
            case Kind.DELIVER:
                series.delivered[second] += 1
                delivery = (*message, event.channel)
                if delivery not in self._delivered and event.topic not in self._backlogs:
                    self._delivered.add(delivery)
                    series.delivery_ms[second].append(1000 * (time_s - self._published.get(message, time_s)))
            case Kind.MEMORY:
                series.memory_bytes[second] = int(event.detail)
            case Kind.KILL:
                series.kills.append(time_s)
            case Kind.FAULT:
                self._open[event.topic, event.detail] = time_s
            case Kind.HEALED:
                begun_s = self._open.pop((event.topic, event.detail), time_s)
                series.spans.append(Span(event.detail, begun_s, time_s))

    @property
    def fault_counts(self) -> Counter[str]:
        return Counter(span.name for series in self.series.values() for span in series.spans)


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that so many of all values do not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(fraction * len(values)) - 1)]


# Text.


def text_report(
    title: str, verdict: Verdict, measured: Measurements, *, incidents: Sequence[str], notes: Sequence[str]
) -> str:
    """Everything in words."""
    lines = [title, "", *verdict.lines()]
    lines += ["", f"{measured.fault_counts.total()} faults: " + _counted(measured.fault_counts)]
    for name, series in measured.series.items():
        if series.confirmed:
            lines.append(_summary(name, series))
    lines += ["", f"incidents: {len(incidents) or 'none'}", *(f"  {incident}" for incident in incidents)]
    lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _summary(name: str, series: NodeSeries) -> str:
    publishing = [value for values in series.publish_ms.values() for value in values]
    delivering = [value for values in series.delivery_ms.values() for value in values] or [0.0]
    memory = max(series.memory_bytes.values(), default=0) / 1e6
    return (
        f"{name}: publish to OK {percentile(publishing, 0.5):.1f} ms (p99 {percentile(publishing, 0.99):.0f}), "
        f"to delivery {percentile(delivering, 0.5):.1f} ms (p99 {percentile(delivering, 0.99):.0f}), "
        f"at most {memory:.0f} MB"
    )


# HTML.


def html_report(
    title: str, verdict: Verdict, measured: Measurements, *, incidents: Sequence[str], notes: Sequence[str]
) -> str:
    """The same with plots, on one page."""
    is_clean = verdict.is_clean and not incidents
    words = text_report(title, verdict, measured, incidents=incidents, notes=notes)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(title)}: <span class={'kept' if is_clean else 'broken'}>",
        f"{'every promise was kept' if is_clean else 'promises were broken'}</span></h1>",
        f"<pre>{html.escape(words)}</pre>",
    ]
    for name, series in measured.series.items():
        if series.confirmed or series.memory_bytes:
            parts += [f"<h2>nsqd {html.escape(name)}</h2>", *_plots(series, measured.end_s)]
    parts += ["<h2>Faults</h2><table><tr><th>from<th>to<th>nsqd<th>fault", *_fault_rows(measured), "</table></html>"]
    return "\n".join(parts)


def _fault_rows(measured: Measurements) -> list[str]:
    spans = [(span, name) for name, series in measured.series.items() for span in series.spans]
    return [
        f"<tr><td>{span.begun_s:.1f} s<td>{span.ended_s:.1f} s<td>{html.escape(name)}<td>{html.escape(span.name)}"
        for span, name in sorted(spans, key=lambda each: each[0].begun_s)
    ]


def _plots(series: NodeSeries, end_s: float) -> list[str]:
    seconds = range(int(end_s) + 1)
    rates = {
        "confirmed": {second: float(series.confirmed[second]) for second in seconds},
        "delivered": {second: float(series.delivered[second]) for second in seconds},
    }
    latencies = {
        "publish to OK, p99": {second: percentile(values, 0.99) for second, values in series.publish_ms.items()},
        "publish to delivery, p99": {second: percentile(values, 0.99) for second, values in series.delivery_ms.items()},
    }
    memory = {"resident": {second: size / 1e6 for second, size in series.memory_bytes.items()}}
    return [
        plot("messages a second", rates, series, end_s),
        plot("milliseconds", latencies, series, end_s, is_logarithmic=True),
        plot("MB", memory, series, end_s),
    ]


def plot(
    unit: str,
    lines: Mapping[str, Mapping[int, float]],
    series: NodeSeries,
    end_s: float,
    *,
    is_logarithmic: bool = False,
) -> str:
    """One plot as SVG: lines of values by second, faults shaded, kills as strokes."""
    top = max((value for points in lines.values() for value in points.values()), default=0.0) or 1.0

    def across(time_s: float) -> float:
        return LEFT + (WIDTH - LEFT) * time_s / max(end_s, 1.0)

    def up(value: float) -> float:
        share = math.log10(1 + value) / math.log10(1 + top) if is_logarithmic else value / top
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(unit)}">']
    for span in series.spans:
        x, width = across(span.begun_s), max(1.5, across(span.ended_s) - across(span.begun_s))
        label = f"{span.name}, {span.begun_s:.1f} to {span.ended_s:.1f} s"
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}" fill="#e9c46a" '
            f'opacity=".45"><title>{html.escape(label)}</title></rect>'
        )
    for kill_s in series.kills:
        x = across(kill_s)
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#b3261e" stroke-width=".8"><title>kill</title></path>'
        )
    bottom = HEIGHT - BOTTOM
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH}" fill="none" stroke="#999"/>')
    parts.append(f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{top:,.0f}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>')
    step_s = max(10, 10 * round(end_s / 100))
    parts += [
        f'<text x="{across(second):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{second} s</text>'
        for second in range(0, int(end_s) + 1, step_s)
    ]
    x = float(LEFT)
    for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
        path = " ".join(
            f"{'M' if second - 1 not in points else 'L'}{across(second):.1f} {up(points[second]):.1f}"
            for second in sorted(points)
        )
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        parts.append(f'<text x="{x:.0f}" y="11" fill="{colour}">{html.escape(name)} ({html.escape(unit)})</text>')
        x += 8.0 * (len(name) + len(unit)) + 20
    return "".join([*parts, "</svg>"])
