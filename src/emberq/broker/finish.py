"""Who hears of messages that are done with."""

from __future__ import annotations

from abc import ABC, abstractmethod

from emberq.broker.batch import Batch
from emberq.broker.latency import LatencyWindow


class FinishListener(ABC):
    """Told of finished messages, as many at a time as were finished together."""

    @abstractmethod
    def finished(self, batch: Batch, start: int, stop: int) -> None:
        """Messages `start` to `stop` of `batch` are done with."""


class LatencyListener(FinishListener):
    """Records how long they took."""

    def __init__(self, window: LatencyWindow) -> None:
        self._window = window

    def finished(self, batch: Batch, start: int, stop: int) -> None:
        batch.report_finished(start, stop, self._window)
