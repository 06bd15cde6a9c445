"""When a run is over: after so many messages, or when its time is up, whichever comes first."""

from __future__ import annotations

import time
from collections.abc import Callable


class Quota:
    """Counts the messages of one run. The driver sets a timer of its library's event loop that calls `end`.

    `on_over` is called once, within the call that ends it.
    """

    def __init__(self, messages: int, *, on_over: Callable[[], object]) -> None:
        self._messages = messages
        self._on_over = on_over
        self.count = 0
        """Messages done in time, and how long their bodies were together."""
        self.body_bytes = 0
        self.is_over = False
        self.began_s = 0.0
        """When it began, on the clock that all processes share, if the driver had to prepare something before."""
        self.ended_s = 0.0
        """When it was over, on the same clock."""

    def begin(self) -> None:
        """All is prepared: the time counts from here."""
        self.began_s = time.monotonic()

    def add(self, body_bytes: int, count: int = 1) -> None:
        """One more message is done, or `count` of them; those that come too late do not count."""
        if not self.is_over:
            self.count += count
            self.body_bytes += body_bytes
            if self.count >= self._messages:
                self.end()

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended_s = time.monotonic()
            self._on_over()
