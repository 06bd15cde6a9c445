"""The messages of a channel that are in flight: delivered, and not yet answered.

Messages are delivered in runs, and most consumers answer in the order of delivery. So a run is kept whole, as it was
sent, and FINs that come in its order are checked by comparing their bytes with the FIN lines of the batch, without any
work per message. A REQ that comes in this order leaves the run whole, too. The first answer out of order breaks the
consumer's runs up. Their messages are then found by their ids, in one index for the whole channel (`run_index`), where
every order costs the same. It names the run; the run names the consumer.

    FIN, REQ, TOUCH of an id     the consumer's oldest whole run, or the index
    who holds another's id       the index, or the whole runs whose ids begin with the same digits
    what is overdue              lanes: the runs of one timeout, in the order of delivery, which is that of deadlines
    what a consumer held         all runs, once for all consumers that left in the same turn of the event loop

A run that lost most of its messages lets go of its batch: what is left is copied out of it. That waits for a moment, in
which a consumer that only mixes its answers has given the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Final

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import NEVER, Alarm, Timers
from emberq.broker.batch import NO_MESSAGES, Batch, Span, is_mostly_gone
from emberq.broker.layout import FRAME_ID_START, FRAME_ID_STOP, NO_ID
from emberq.broker.run_index import RunIndex
from emberq.broker.stats import LatencyWindow
from emberq.broker.subscriber import Run, Subscriber
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX


class FinishListener(ABC):
    """Told of finished messages; those of one batch that were finished together are one call."""

    @abstractmethod
    def finished(self, batch: Batch, start: int, stop: int) -> None:
        """Messages `start` to `stop` of `batch` are done with."""


class LatencyListener(FinishListener):
    """Records how long finished messages took."""

    def __init__(self, window: LatencyWindow) -> None:
        self._window = window

    def finished(self, batch: Batch, start: int, stop: int) -> None:
        batch.report_finished(start, stop, self._window)


_ID_START: Final = 4
_ID_END: Final = 20
"""Where the id stands in a FIN line."""
_MIN_WHOLE: Final = 4
"""Shorter runs go to the index at once, which is faster for them."""
_MIN_SWEPT: Final = 64
"""A shorter lane is not worth sweeping."""
THINNED_NS: Final = 20 * NS_PER_MS
"""How long a run that lost most of its messages keeps its batch."""
MAX_THINNED_COUNT: Final = 10_000
"""How many messages such runs may have had that are seen to in one turn of the event loop; that takes a millisecond."""
MAX_OVERDUE_COUNT: Final = 1000
"""How many messages of a lane time out in one turn of the event loop."""


class _TimeoutLane:
    """The runs that share a timeout. They come in the order of their deadlines."""

    __slots__ = ("_swept_beyond", "alarm", "runs")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self.runs: deque[Run] = deque()
        self._swept_beyond = _MIN_SWEPT
        self.alarm = timers.alarm(ring)

    def add(self, run: Run) -> None:
        if self.alarm.due_ns == NEVER:
            self.alarm.set(run.deadline_ns)
        if len(self.runs) > self._swept_beyond:
            self.sweep()
        self.runs.append(run)

    def sweep(self) -> None:
        """Forget the runs that are done with: some may stand behind one that is not."""
        alive = [run for run in self.runs if run.left]
        self.runs.clear()
        self.runs.extend(alive)
        self._swept_beyond = max(_MIN_SWEPT, 2 * len(alive))


class InFlight:
    """The registry of one channel, which owns it.

    `timed_out` is called with messages whose deadline has passed and the consumer that held them; `given_back` with
    those of a consumer that has left; `settled` after the last of them.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        timed_out: Callable[[Subscriber, Span], None],
        given_back: Callable[[Span], None],
        settled: Callable[[], None],
    ) -> None:
        self.count = 0
        """How many messages are in flight."""
        self._clock = clock
        self._timers = timers
        self._timed_out = timed_out
        self._given_back = given_back
        self._settled = settled
        self._by_id = RunIndex()
        """The runs of the messages that are not in whole ones."""
        self._whole: dict[int, dict[Run, None]] = {}
        """The whole runs, by the leading digits that the ids of a batch share; those of other batches under NO_ID."""
        self._lanes: dict[int, _TimeoutLane] = {}
        """By timeout; a message whose deadline is nearer than that has a lane of its own, under minus its deadline."""
        self._thinned: dict[Run, None] = {}
        """Runs that lost most of their messages lately; nothing is left of some by now."""
        self._thinned_alarm: Alarm | None = None
        self._has_departed = False
        """Whether a consumer has left whose messages are to be given back and were not looked for yet."""
        self._orphans: deque[Run] = deque()
        """Those that were found; some may be done with."""
        self._departure_alarm: Alarm | None = None

    # Out.

    def add(self, holder: Subscriber, span: Span, frames: bytes | memoryview, now_ns: int) -> None:
        """These messages were sent, in `frames` or, if it is one message, in a frame that begins with these bytes."""
        batch, start, stop = span.batch, span.start, span.stop
        if stop - start == 1 < batch.count and not span.attempts:
            assert isinstance(frames, bytes)  # noqa: S101 - for the type checker
            batch = batch.alone(start, frames)  # it may be answered long after the others
            start, stop = 0, 1
        timeout_ns = holder.msg_timeout_ns
        run = Run(holder, batch, start, stop, span.attempts + 1, now_ns, now_ns + timeout_ns)
        count = stop - start
        self.count += count
        holder.in_flight_count += count
        lane = self._lanes.get(timeout_ns)
        if lane is None:
            lane = self._open_lane(timeout_ns)
        lane.add(run)
        if count == 1:
            assert isinstance(frames, bytes)  # noqa: S101 - as above
            self._add_by_id(frames[FRAME_ID_START:FRAME_ID_STOP], run)
        elif count < _MIN_WHOLE:
            for message_id in batch.ids(start, stop):
                self._add_by_id(message_id, run)
        else:
            run.is_whole = True
            holder.runs.append(run)
            key = _key_of(batch)
            alike = self._whole.get(key)
            if alike is None:
                alike = self._whole[key] = {}
            alike[run] = None

    def _open_lane(self, key: int) -> _TimeoutLane:
        lane = self._lanes[key] = _TimeoutLane(self._timers, lambda: self._on_time(key))
        return lane

    def _add_by_id(self, message_id: bytes, run: Run) -> None:
        before = self._by_id.add(message_id, run)
        if before is not None:  # a crash may leave a message on disk twice: from here on both are one
            self._left_one(before)

    # Answers.

    def finish(self, holder: Subscriber, lines: bytes, listener: FinishListener | None = None) -> list[bytes]:
        """Drop the messages that these FIN lines name; returns the ids that this consumer does not hold.

        The listener is told of those that it does.
        """
        position, end = 0, len(lines)
        if holder.runs:
            position = self._finish_in_order(holder, lines, position, listener)
            if position == end:
                return []
        unknown: list[bytes] = []
        while position < end:
            taken: list[Run] = []
            reached = self._by_id.take_lines(holder, lines, position, taken)
            if taken:
                if listener is not None:
                    _tell(listener, lines, position, taken)
                self._left_one_each(holder, taken)
            if reached < end and holder.runs:
                position = self._finish_in_order(holder, lines, reached, listener)
                if position == reached:
                    self._break_up(holder)
            elif reached < end:
                unknown.append(lines[reached + _ID_START : reached + _ID_END])
                position = reached + FIN_LINE_BYTES
            else:
                position = end
        return unknown

    def _finish_in_order(self, holder: Subscriber, lines: bytes, position: int, listener: FinishListener | None) -> int:
        """Finish from the oldest run on, as long as the lines come in its order; how far in `lines` that went."""
        runs = holder.runs
        end = len(lines)
        while runs and position < end:
            run = runs[0]
            count = min((end - position) // FIN_LINE_BYTES, run.stop - run.start)
            stop = run.start + count
            expected = run.batch.fin_lines(run.start, stop)
            if lines[position : position + len(expected)] != expected:
                break
            position += len(expected)
            if listener is not None:
                listener.finished(run.batch, run.start, stop)
            self._left_in_order(run, count)
        return position

    def _left_in_order(self, run: Run, count: int) -> None:
        """The first messages of a consumer's oldest whole run are in flight no more."""
        run.start += count
        self._left(run, count)
        if run.start == run.stop:
            run.holder.runs.popleft()

    def take(self, holder: Subscriber, message_id: bytes) -> Span | None:
        """Remove one message; None when this consumer does not hold it."""
        run = holder.runs[0] if holder.runs else None
        if run is not None and run.batch.fin_lines(run.start, run.start + 1)[_ID_START:_ID_END] == message_id:
            span = Span(run.batch, run.start, run.start + 1, run.attempts).compact()
            self._left_in_order(run, 1)
            return span
        run = self._take_by_id(holder, message_id)
        if run is None:
            return None
        batch = run.batch
        index = batch.index_of(message_id, run.start, run.stop)
        span = Span(batch, index, index + 1, run.attempts).compact()
        self._left_one(run)
        return span

    def touch(self, holder: Subscriber, message_id: bytes, *, timeout_ns: int, max_held_ns: int) -> bool:
        """Give one message this time from now on, but never more than `max_held_ns` since its delivery."""
        run = self._take_by_id(holder, message_id)
        if run is None:
            return False
        deadline_ns = self._clock.monotonic_ns() + timeout_ns
        last_ns = run.delivered_ns + max_held_ns
        key = timeout_ns if deadline_ns <= last_ns else -last_ns
        index = run.batch.index_of(message_id, run.start, run.stop)
        span = Span(run.batch, index, index + 1).compact()  # it may stay long after the others
        until_ns = min(deadline_ns, last_ns)
        touched = Run(holder, span.batch, span.start, span.stop, run.attempts, run.delivered_ns, until_ns)
        self._by_id.add(message_id, touched)
        self._left_one(run)
        self.count += 1
        holder.in_flight_count += 1
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._open_lane(key)
        lane.add(touched)
        return True

    def is_held(self, message_id: bytes) -> bool:
        """Whether any consumer holds this message."""
        if self._by_id.find(message_id) is not None:
            return True
        if not self._whole:
            return False
        try:
            number = int(message_id, 16)
        except ValueError:
            return False
        for run in self._whole.get(number >> 12, ()):
            first_id = run.batch.first_id()
            if first_id + run.start <= number < first_id + run.stop:
                return True
        line = FIN_PREFIX + message_id
        return any(line in run.batch.fin_lines(run.start, run.stop) for run in self._whole.get(NO_ID, ()))

    def _take_by_id(self, holder: Subscriber, message_id: bytes) -> Run | None:
        run = self._by_id.take(holder, message_id)
        if run is None and holder.runs:
            self._break_up(holder)
            run = self._by_id.take(holder, message_id)
        return run

    def _break_up(self, holder: Subscriber) -> None:
        """Let every message of the consumer's whole runs be found by its id."""
        for run in holder.runs:
            self._forget_whole(run)
            first_id = run.batch.first_id()
            if first_id != NO_ID:
                lines = run.batch.fin_lines(run.start, run.stop)
                for before in self._by_id.add_consecutive(lines, first_id + run.start, run):
                    self._left_one(before)
            else:
                for message_id in run.batch.ids(run.start, run.stop):
                    self._add_by_id(message_id, run)
            self._let_go_later_of_most(run)
        holder.runs.clear()

    def _forget_whole(self, run: Run) -> None:
        run.is_whole = False
        key = _key_of(run.batch)
        alike = self._whole[key]
        del alike[run]
        if not alike:
            del self._whole[key]

    def _left_one_each(self, holder: Subscriber, runs: list[Run]) -> None:
        """One message of each of these runs, none of them whole, is in flight no more. A run may come several times."""
        self.count -= len(runs)
        holder.in_flight_count -= len(runs)
        for run in runs:
            left = run.left - 1
            run.left = left
            if is_mostly_gone(left, run.count):
                self._lost_most(run)

    def _left_one(self, run: Run) -> None:
        """One message of a run that is not whole is in flight no more."""
        self._left_one_each(run.holder, [run])

    def _left(self, run: Run, count: int) -> None:
        run.left -= count
        self.count -= count
        run.holder.in_flight_count -= count
        if not run.left:
            self._lost_all(run)

    def _lost_all(self, run: Run) -> None:
        if run.is_whole:
            self._forget_whole(run)
        elif run.pages is not None:
            self._by_id.forget_pages(run)
        run.batch = NO_MESSAGES  # its lane may know the run for a while

    def _lost_most(self, run: Run) -> None:
        if run.left:
            self._let_go_later_of_most(run)
        else:
            self._lost_all(run)

    # Runs that lost most of their messages.

    def _let_go_later_of_most(self, run: Run) -> None:
        """If the run lost most of its messages, see soon what is left: of most such runs that is nothing."""
        if not run.left or not is_mostly_gone(run.left, run.count):
            return
        self._thinned[run] = None
        if self._thinned_alarm is None:
            self._thinned_alarm = self._timers.alarm(self._on_thinned)
        if self._thinned_alarm.due_ns == NEVER:
            self._thinned_alarm.set(self._clock.monotonic_ns() + THINNED_NS)

    def _on_thinned(self) -> None:
        """Copy what is left out of the batches, a portion of it in each turn of the event loop."""
        portion = 0
        while self._thinned and portion < MAX_THINNED_COUNT:
            run, _ = self._thinned.popitem()
            if run.left:
                portion += run.count
                self._let_go_of_most(run)
        if self._thinned and self._thinned_alarm is not None:
            self._thinned_alarm.set(self._clock.monotonic_ns())

    def _let_go_of_most(self, run: Run) -> None:
        indexes = self._indexes_left(run)
        if run.pages is not None:
            self._by_id.leave_pages(run, [run.batch.ids(index, index + 1)[0] for index in indexes])
        batch = run.batch.picked(indexes)
        if batch is not run.batch:
            run.batch, run.start, run.stop, run.count = batch, 0, len(indexes), run.left

    def _forget_thinned(self) -> None:
        self._thinned.clear()
        if self._thinned_alarm is not None:
            self._thinned_alarm.discard()
            self._thinned_alarm = None

    def _indexes_left(self, run: Run) -> list[int]:
        """Which messages of a broken run are in flight."""
        ids = run.batch.ids(run.start, run.stop)
        return [index for index, message_id in enumerate(ids, run.start) if self._by_id.find(message_id) is run]

    # Time.

    def _on_time(self, key: int) -> None:
        """Give back what is overdue in a lane, a portion of it in each turn of the event loop."""
        now_ns = self._clock.monotonic_ns()
        lane = self._lanes[key]
        portion = 0
        while lane.runs and lane.runs[0].deadline_ns <= now_ns and portion < MAX_OVERDUE_COUNT:
            run = lane.runs.popleft()
            portion += run.left
            for span in self._take_rest(run):
                self._timed_out(run.holder, span)
        lane.sweep()
        if lane.runs:
            lane.alarm.set(lane.runs[0].deadline_ns)
        else:
            self._close_lane(key)
        if portion:
            self._settled()

    def _close_lane(self, key: int) -> None:
        self._lanes.pop(key).alarm.discard()

    def _take_rest(self, run: Run) -> list[Span]:
        """Remove all messages of a run."""
        if not run.left:
            return []
        batch, attempts = run.batch, run.attempts
        if run.is_whole:
            spans = [Span(batch, run.start, run.stop, attempts)]
            run.holder.runs.remove(run)
        else:
            indexes = self._indexes_left(run)
            for index in indexes:
                self._by_id.take(run.holder, batch.ids(index, index + 1)[0])
            spans = [Span(batch, start, stop, attempts) for start, stop in _stretches(indexes)]
        self._left(run, run.left)
        return spans

    # Consumers that have left.

    def give_back(self, holder: Subscriber) -> None:
        """Give back what the consumer holds, which has left, in the next turns of the event loop."""
        if holder.in_flight_count:
            self._has_departed = True
            if self._departure_alarm is None:
                self._departure_alarm = self._timers.alarm(self._on_departure)
            self._departure_alarm.set_earlier(self._clock.monotonic_ns())

    def _on_departure(self) -> None:
        if self._has_departed:
            self._has_departed = False
            for lane in self._lanes.values():
                self._orphans.extend(run for run in lane.runs if run.left and run.holder.sink is None)
        portion = 0
        while self._orphans and portion < MAX_OVERDUE_COUNT:
            run = self._orphans.popleft()
            portion += run.left
            for span in self._take_rest(run):
                self._given_back(span)
        if not self._orphans:
            self._forget_departures()
        elif self._departure_alarm is not None:
            self._departure_alarm.set(self._clock.monotonic_ns())
        if portion:
            self._settled()

    def _forget_departures(self) -> None:
        self._has_departed = False
        self._orphans.clear()
        if self._departure_alarm is not None:
            self._departure_alarm.discard()
            self._departure_alarm = None

    # As a whole.

    def take_all(self) -> list[Span]:
        """Remove everything."""
        spans: list[Span] = []
        for key, lane in list(self._lanes.items()):
            for run in lane.runs:
                spans += self._take_rest(run)
            self._close_lane(key)
        self._forget_thinned()
        self._forget_departures()
        return spans

    def clear(self) -> None:
        """Forget everything."""
        for key, lane in list(self._lanes.items()):
            for run in lane.runs:
                run.holder.in_flight_count = 0
                run.holder.runs.clear()
            self._close_lane(key)
        self._forget_thinned()
        self._forget_departures()
        self._by_id.clear()
        self._whole.clear()
        self.count = 0


def _tell(listener: FinishListener, lines: bytes, position: int, runs: list[Run]) -> None:
    """Tell of the messages that these FIN lines name from `position` on; there is a run for each of them."""
    for run in runs:
        message_id = lines[position + _ID_START : position + _ID_END]
        index = run.batch.index_of(message_id, run.start, run.stop)
        listener.finished(run.batch, index, index + 1)
        position += FIN_LINE_BYTES


def _key_of(batch: Batch) -> int:
    first_id = batch.first_id()
    return NO_ID if first_id == NO_ID else first_id >> 12


def _stretches(indexes: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as ranges from a start up to a stop."""
    stretches: list[tuple[int, int]] = []
    for _, group in groupby(enumerate(indexes), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in group]
        stretches.append((members[0], members[-1] + 1))
    return stretches
