"""Messages that one consumer holds: delivered, not yet answered.

Messages are delivered in runs, and most consumers answer in the order of delivery. So a run is kept as it was sent, and
FINs that come in its order are checked by comparing their bytes with the FIN lines of the batch: nothing is done per
message. The first answer out of order breaks the runs up into a dictionary of ids, in which any order is as good.

Deadlines: entries are not sorted by deadline (TOUCH moves some). `next_deadline_ns` is a lower bound of them all; when
it passes, one look at everything (never more than the consumer's RDY count) finds what is overdue and the next bound.
"""

from __future__ import annotations

from collections import deque

from emberq.base.timers import NEVER
from emberq.broker.batch import Batch, Span
from emberq.broker.finish import FinishListener
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX

_ID_START, _ID_END = len(FIN_PREFIX), FIN_LINE_BYTES - 1
"""Where the id stands in a FIN line."""
_MIN_RUN = 4
"""Shorter runs go to the dictionary at once: comparing bytes would not pay."""


class Run:
    """Messages of one batch that were sent together and share a deadline."""

    __slots__ = ("attempts", "batch", "deadline_ns", "delivered_ns", "start", "stop")

    def __init__(
        self, batch: Batch, start: int, stop: int, attempts: int, *, delivered_ns: int, deadline_ns: int
    ) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.attempts = attempts
        self.delivered_ns = delivered_ns
        self.deadline_ns = deadline_ns

    def span_of(self, message_id: bytes) -> Span:
        """The one message of this run that has the id."""
        index = self.batch.index_of(message_id)
        return Span(self.batch, index, index + 1, self.attempts)


class InFlight:
    """What one consumer holds. Owned by its subscriber; by the channel once the consumer is gone."""

    __slots__ = ("_runs", "_singles", "count", "next_deadline_ns")

    def __init__(self) -> None:
        self.count = 0
        """How many messages are in flight."""
        self.next_deadline_ns = NEVER
        """No message is overdue before this time."""
        self._runs: deque[Run] = deque()
        """Runs of which no message was answered out of order, oldest first."""
        self._singles: dict[bytes, Run] = {}
        """Messages on their own, by id, with the run they were sent in."""

    def __contains__(self, message_id: bytes) -> bool:
        self._break_up()
        return message_id in self._singles

    def add(self, run: Run) -> None:
        """These messages were sent."""
        count = run.stop - run.start
        self.count += count
        if run.deadline_ns < self.next_deadline_ns:
            self.next_deadline_ns = run.deadline_ns
        if count >= _MIN_RUN:
            self._runs.append(run)
        else:
            self._add_singly(run)

    def finish(self, lines: bytes, listener: FinishListener | None = None) -> list[bytes]:
        """Forget the messages that these FIN lines name; the ids that are not in flight here.

        If there is a listener, it is told of those that are.
        """
        position = self._finish_in_order(lines, listener)
        if position == len(lines):
            self.count -= position // FIN_LINE_BYTES
            return []
        singles, unknown = self._singles, []
        for start in range(position, len(lines), FIN_LINE_BYTES):
            message_id = lines[start + _ID_START : start + _ID_END]
            run = singles.pop(message_id, None)
            if run is None and self._runs:
                self._break_up()
                run = singles.pop(message_id, None)
            if run is None:
                unknown.append(message_id)
            elif listener is not None:
                index = run.batch.index_of(message_id)
                listener.finished(run.batch, index, index + 1)
        self.count -= len(lines) // FIN_LINE_BYTES - len(unknown)
        return unknown

    def _finish_in_order(self, lines: bytes, listener: FinishListener | None) -> int:
        """Finish from the oldest run on as long as the lines come in its order; how far that went."""
        runs = self._runs
        position, end = 0, len(lines)
        while runs and position < end:
            run = runs[0]
            start = run.start * FIN_LINE_BYTES
            length = min(end - position, run.stop * FIN_LINE_BYTES - start)
            if lines[position : position + length] != run.batch.fin_lines()[start : start + length]:
                break
            position += length
            stop = run.start + length // FIN_LINE_BYTES
            if listener is not None:
                listener.finished(run.batch, run.start, stop)
            run.start = stop
            if stop == run.stop:
                runs.popleft()
        return position

    def _break_up(self) -> None:
        """From now on every message stands on its own."""
        for run in self._runs:
            self._add_singly(run)
        self._runs.clear()

    def _add_singly(self, run: Run) -> None:
        before = len(self._singles)
        self._singles.update(dict.fromkeys(run.batch.ids(run.start, run.stop), run))
        # A crash may leave a message on disk twice; both are one here, and one answer settles it.
        self.count -= run.stop - run.start - (len(self._singles) - before)

    def take(self, message_id: bytes) -> Span | None:
        """Remove one message; None when it is not in flight here."""
        self._break_up()
        run = self._singles.pop(message_id, None)
        if run is None:
            return None
        self.count -= 1
        return run.span_of(message_id)

    def touch(self, message_id: bytes, *, deadline_ns: int, max_held_ns: int) -> bool:
        """Give one message until `deadline_ns`, but never beyond `max_held_ns` after its delivery."""
        self._break_up()
        run = self._singles.get(message_id)
        if run is None:
            return False
        self._singles[message_id] = Run(
            run.batch,
            run.start,
            run.stop,
            run.attempts,
            delivered_ns=run.delivered_ns,
            deadline_ns=min(deadline_ns, run.delivered_ns + max_held_ns),
        )
        self.next_deadline_ns = min(self.next_deadline_ns, self._singles[message_id].deadline_ns)
        return True

    def take_overdue(self, now_ns: int) -> list[Span]:
        """Remove what should have been answered by now."""
        overdue: list[Span] = []
        kept: deque[Run] = deque()
        next_ns = NEVER
        for run in self._runs:
            if run.deadline_ns <= now_ns:
                overdue.append(Span(run.batch, run.start, run.stop, run.attempts))
            else:
                kept.append(run)
                next_ns = min(next_ns, run.deadline_ns)
        self._runs = kept
        late = [(message_id, run) for message_id, run in self._singles.items() if run.deadline_ns <= now_ns]
        for message_id, run in late:
            del self._singles[message_id]
            overdue.append(run.span_of(message_id))
        for run in self._singles.values():
            next_ns = min(next_ns, run.deadline_ns)
        self.next_deadline_ns = next_ns
        self.count -= sum(span.count for span in overdue)
        return overdue

    def take_all(self) -> list[Span]:
        """Remove everything."""
        return self.take_overdue(NEVER)

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._singles.clear()
        self.count = 0
        self.next_deadline_ns = NEVER
