"""How often a trouble that lasts is worth a line in the log: at once, and then once in a while.

Retries come several times a second at first, and go on for days if need be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

RECONNECT_INTERVAL_S = 60.0
"""Between two lines about an nsqd or nsqlookupd that cannot be reached: a trouble that an operator should look at."""
WAITING_INTERVAL_S = 600.0
"""Between two lines about a topic that no nsqd has yet: it may simply be early."""


class Reminder:
    """Used within an event loop, whose time it takes."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._told_s: dict[str, float] = {}
        """When each trouble was told last."""

    def is_due(self, trouble: str) -> bool:
        """Whether to tell of it now; if so, it is taken as told."""
        now_s = asyncio.get_running_loop().time()
        told_s = self._told_s.get(trouble)
        if told_s is not None and now_s - told_s < self._interval_s:
            return False
        self._told_s[trouble] = now_s
        return True

    def forget(self, trouble: str) -> bool:
        """It is over; whether it had been told."""
        return self._told_s.pop(trouble, None) is not None

    def keep(self, troubles: Collection[str]) -> None:
        """Forget all others."""
        self._told_s = {trouble: told_s for trouble, told_s in self._told_s.items() if trouble in troubles}
