"""Keeping a consumer connected to every nsqd it should have.

Wanted are the addresses that were given and those that nsqlookupd named at any time; an nsqd that nsqlookupd no longer
names is kept as long as the connection lives, and not connected to again.

When a connection is lost or cannot be made, everything that is missing is tried again after a pause. The pause begins
with a fraction of a second and doubles while there is trouble; when there was none for as long as the longest pause,
the next one is short again. All of them are random parts of their length, so that the consumers of an nsqd that was
restarted do not come back all at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable

from emberq.client.backoff import exponential_s
from emberq.client.discovery import Discovery
from emberq.client.error import NsqError, cause_of
from emberq.client.reminder import RECONNECT_INTERVAL_S, Reminder

FIRST_PAUSE_S = 0.1

log = logging.getLogger(__name__)


class Connector:
    """Decides when to connect where. Its consumer says how, and tells it what was lost."""

    def __init__(
        self,
        connect: Callable[[str], Awaitable[None]],
        *,
        direct_addresses: Iterable[str],
        discovery: Discovery | None,
        max_delay_s: float,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._connect = connect
        self._direct = frozenset(direct_addresses)
        self._discovery = discovery
        if not self._direct and discovery is None:
            raise ValueError("neither nsqd nor nsqlookupd addresses were given")
        self._max_delay_s = max_delay_s
        self._random_fraction = random_fraction
        self._connected: set[str] = set()
        self._has_lost = asyncio.Event()
        self.is_complete = False
        """Whether the last round left nothing to be tried again."""
        self._unreachable = Reminder(RECONNECT_INTERVAL_S)
        self._failures = 0
        """Rounds with trouble in a row."""

    async def connect_all(self) -> None:
        """Connect to what is wanted and missing, as far as it can be reached now."""
        self._has_lost.clear()
        found = await self._discovery.poll() if self._discovery is not None else []
        missing = sorted((self._direct | set(found)) - self._connected)
        self._unreachable.keep(missing)
        self.is_complete = all(await asyncio.gather(*map(self._try, missing)))

    def lost(self, address: str) -> None:
        """A connection has ended."""
        self._connected.discard(address)
        self._has_lost.set()

    async def run(self) -> None:
        """Go on for ever, after a first `connect_all`."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            if self.is_complete and not await self._trouble():
                self._failures = 0
            else:
                if loop.time() - began_s > self._max_delay_s:
                    self._failures = 0
                await asyncio.sleep(self._pause_s())
                self._failures += 1
            try:
                await self.connect_all()
            except Exception:
                # No fault of ours, or of the system, may end what keeps a consumer connected.
                self.is_complete = False
                log.exception("cannot connect; trying again")

    async def _trouble(self) -> bool:
        """Wait until a connection is lost, or until the next poll is due (False)."""
        try:
            async with asyncio.timeout(None if self._discovery is None else self._discovery.delay_s):
                await self._has_lost.wait()
        except TimeoutError:
            return False
        return True

    def _pause_s(self) -> float:
        pause_s = min(exponential_s(self._failures, unit_s=FIRST_PAUSE_S), self._max_delay_s)
        return pause_s * (1 + self._random_fraction()) / 2

    async def _try(self, address: str) -> bool:
        self._connected.add(address)  # at once: it may be lost again before `connect` returns
        try:
            await self._connect(address)
        except NsqError as failure:
            self._connected.discard(address)
            if self._unreachable.is_due(address):
                log.warning("cannot consume from nsqd %s: %s; trying again", address, cause_of(failure))
            return False
        except BaseException:
            self._connected.discard(address)
            raise
        self._unreachable.forget(address)
        return True
