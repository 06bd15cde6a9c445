"""What is shown and kept: progress while it runs, then a table for people and JSON for machines.

The table can be kept as well, as a section of Markdown that says what was measured on what, to be put into a document.
"""

from __future__ import annotations

import json
import math
import os
import platform
from datetime import UTC, datetime
from typing import TextIO

from bench import machine
from bench.clients.contest import Contest, times_best_other
from bench.clients.plan import LIBRARIES
from bench.clients.queue_work import QUEUES, QueueWork
from bench.comparison import OURS, PEER, Outcome, Row
from bench.metric import Metric
from bench.options import Options

_CLEAR_LINE = "\r\x1b[K"
_QUIET_LOAD_AVERAGE = 0.5
_BUSY = 0.85
_NEAR_SHARE = 0.7  # a generator that spends this share of nsqd's CPU is part of what is measured


class Progress:
    """One line for each run; on a terminal the line of the run under way is shown while it lasts."""

    def __init__(self, stream: TextIO, *, rounds: int) -> None:
        self._stream = stream
        self._rounds = rounds
        self._is_terminal = stream.isatty()
        self._line = ""

    def gets_memory(self, share: float) -> None:
        """See `memory`: this takes half a minute where the host is slow."""
        if self._is_terminal:
            self._write(f"{_CLEAR_LINE}getting memory ready  {share:.0%}" if share < 1 else _CLEAR_LINE)

    def began(self, *, work: str, side: str, round_number: int) -> None:
        self._line = f"{work:<24}{side:<9}round {round_number}/{self._rounds}"
        if self._is_terminal:
            self._write(f"{_CLEAR_LINE}{self._line}  ...")

    def ended(self, metrics: list[Metric]) -> None:
        values = ", ".join(f"{m.measure} {quantity(m.value, m.unit)}" for m in metrics)
        self._write(f"{_CLEAR_LINE if self._is_terminal else ''}{self._line}  {values}\n")

    def close(self) -> None:
        """Leave no half line behind when a run was broken off."""
        if self._is_terminal:
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def quantity(value: float, unit: str) -> str:
    """A number with about three digits that matter, and its unit."""
    for limit, divisor, prefix in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{_three_digits(value / divisor)} {prefix} {unit}".rstrip()
    return f"{_three_digits(value)} {unit}".rstrip()


def _three_digits(value: float) -> str:
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}"


def table(outcome: Outcome, *, has_peer: bool) -> str:
    """The servers side by side."""
    head = ["work", "measure", OURS, *([PEER, "ratio"] if has_peer else [])]
    return _table([head, *(_cells(row, has_peer=has_peer) for row in outcome.rows)])


def contest_table(contest: Contest) -> str:
    """The client libraries side by side."""
    head = ["work", "measure", *LIBRARIES, "x best other"]
    return _table([head, *(_contest_cells(row) for row in contest.rows)])


def queue_table(contest: Contest) -> str:
    """The queues side by side: the median, and the lowest and the highest round."""
    queues = [queue for queue in QUEUES if any(queue in row.values for row in contest.queue_rows)]
    lines = [
        [row.work, row.measure, *(_spread(row, queue) for queue in queues), _times(times_best_other(row))]
        for row in contest.queue_rows
    ]
    return _table([["work", "measure", *queues, "x best other"], *lines])


def promises(contest: Contest, options: Options) -> list[str]:
    """What a confirmation means in each row of queues."""
    return [
        f"{work.name}, {queue}: {setting.confirmed}"
        for work in options.client_works
        if isinstance(work, QueueWork)
        for queue, setting in work.settings.items()
        if queue in contest.versions
    ]


def _table(lines: list[list[str]]) -> str:
    """Aligned Markdown, which reads well here and in a document. The first line is the head."""
    head, *others = lines
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(_aligned(line, widths) for line in [head, rule, *others])


def _cells(row: Row, *, has_peer: bool) -> list[str]:
    cells = [row.work, row.measure, _median(row, OURS)]
    if has_peer:
        cells += [_median(row, PEER), _times(row.ratio)]
    return cells


def _contest_cells(row: Row) -> list[str]:
    return [row.work, row.measure, *(_median(row, library) for library in LIBRARIES), _times(times_best_other(row))]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"


def _median(row: Row, side: str) -> str:
    value = row.median(side)
    return "" if value is None else quantity(value, row.unit)


def _spread(row: Row, side: str) -> str:
    values = row.values.get(side, [])
    if len(values) < 2:
        return _median(row, side)
    return f"{_median(row, side)} ({quantity(min(values), '')} to {quantity(max(values), '')})"


def _aligned(cells: list[str], widths: list[int]) -> str:
    # Names to the left, numbers to the right.
    padded = [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def cautions(outcome: Outcome) -> list[str]:
    """What makes the rates say less about the server: the machine, others on it, and a busy generator."""
    rows = {(row.work, row.measure): row for row in outcome.rows}
    found = []
    if outcome.load_average > _QUIET_LOAD_AVERAGE:
        found.append(f"the machine was busy before we began: load average {outcome.load_average:.2f}")
    if outcome.halts_at_once:
        found.append("this machine halts idle cores at once, so to wait for answers is dear (guest_halt_poll_ns is 0)")
    for (work, measure), generator in rows.items():
        part = measure.removesuffix("generator CPU")  # "", or "in: " and "out: " where a work has both
        nsqd, rate = rows.get((work, f"{part}nsqd CPU")), rows.get((work, f"{part}rate"))
        if part == measure or nsqd is None or rate is None:
            continue
        for side in generator.values:
            found += _cautions_about_load(f"{work}, {part}{side}", generator, nsqd, rate, side)
    return found


def _cautions_about_load(run: str, generator: Row, nsqd: Row, rate: Row, side: str) -> list[str]:
    spent_us = generator.median(side) or 0.0
    busy = spent_us * (rate.median(side) or 0.0) / 1e6  # of a core; two programs can use two
    if busy > _BUSY:
        return [f"{run}: the generator used {busy:.0%} of a core, and may be what limits the rate"]
    # No CPU at all means a run shorter than a clock tick, which cannot tell.
    share = spent_us / (nsqd.median(side) or math.inf)
    return [f"{run}: the generator spent {share:.1f} times the CPU of nsqd"] if share > _NEAR_SHARE else []


def section(outcome: Outcome, contest: Contest, options: Options) -> str:
    """The tables under a heading that names the command, and with all that a reader elsewhere needs to know."""
    rounds = "1 round" if options.rounds == 1 else f"the median of {options.rounds} rounds by turns"
    facts = [
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, {rounds}; above 1 x, ours is better.",
        f"Machine: {machine.description()}; the generator runs on Python {platform.python_version()}.",
        *(f"{side.capitalize()}: {version}." for side, version in outcome.servers.items()),
        *(f"{queue}: {version}." for queue, version in contest.versions.items()),
        *(f"Confirmed, {promise}." for promise in promises(contest, options)),
        *(f"{absence}." for absence in contest.absences),
        *(f"Caution: {caution}." for caution in (*cautions(outcome), *contest.cautions)),
        *(f"Failed: {failure}." for failure in (*outcome.failures, *contest.failures)),
    ]
    listed = "\n".join(f"- {fact}" for fact in facts)
    return "\n\n".join([f"## `{options.command}`", listed, *tables(outcome, contest, options)]) + "\n"


def tables(outcome: Outcome, contest: Contest, options: Options) -> list[str]:
    """One of servers, one of clients, one of queues: those that have anything in them."""
    servers = [table(outcome, has_peer=options.peer is not None)] if outcome.rows else []
    clients = [contest_table(contest)] if contest.rows else []
    queues = [queue_table(contest)] if contest.queue_rows else []
    return servers + clients + queues


def document(outcome: Outcome, contest: Contest, options: Options) -> str:
    """All numbers, round by round, with what is needed to read them later."""
    content = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.platform(),
            "processor": machine.processor(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": outcome.load_average,
        },
        "servers": outcome.servers,
        "rounds": options.rounds,
        "shuffled_fin": options.shuffled,
        "results": [_result(row, ratio=row.ratio) for row in outcome.rows],
        "clients": [_result(row, ratio=times_best_other(row)) for row in contest.rows],
        "queues": [_result(row, ratio=times_best_other(row)) for row in contest.queue_rows],
        "queue_versions": contest.versions,
        "failures": [*outcome.failures, *contest.failures],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _result(row: Row, *, ratio: float | None) -> dict[str, object]:
    sides = {side: {"median": row.median(side), "rounds": values} for side, values in row.values.items()}
    return {
        "work": row.work,
        "measure": row.measure,
        "unit": row.unit,
        "better": row.better,
        **sides,
        "ratio": ratio,
    }
