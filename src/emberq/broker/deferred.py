"""Messages that wait for their time, as a heap."""

from __future__ import annotations

import heapq
from itertools import count

from emberq.base.timers import NEVER
from emberq.broker.batch import Span


class Deferred:
    """The deferred messages of a channel, which owns it. Each span holds one message."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Span]] = []
        self._sequence = count()  # keeps spans that are due together in the order they came

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ns(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def add(self, span: Span, *, due_ns: int) -> None:
        """Hold the message until `due_ns`."""
        heapq.heappush(self._heap, (due_ns, next(self._sequence), span))

    def take_due(self, now_ns: int) -> list[Span]:
        """Remove the messages whose time has come."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def take_all(self) -> list[tuple[int, Span]]:
        """Remove everything, with the due times, earliest first."""
        everything = [(due_ns, span) for due_ns, _, span in sorted(self._heap)]
        self._heap.clear()
        return everything
