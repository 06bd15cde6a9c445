"""What all sessions of one nsqlookupd share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberq.base.clock import Clock
from emberq.base.timers import Timers
from emberq.lookupd.registry import Registry

if TYPE_CHECKING:
    from emberq.lookupd.session import Session


class Service:
    """The registry and the clock, as a session needs them. Owned by the daemon."""

    def __init__(self, registry: Registry, *, clock: Clock, timers: Timers) -> None:
        self.registry = registry
        self.clock = clock
        self.timers = timers
        self.introduction = b""
        """How nsqlookupd answers an IDENTIFY: with who it is. Set before the first session, when ports are known."""
        self.sessions: set[Session] = set()
        """The connections that are open; each adds and removes itself."""
