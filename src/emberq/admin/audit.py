"""A line for every action: who did what, or tried to, and what came of it.

    {"time": "2024-05-17T07:30:00.123Z", "user": "ada", "is_known": true, "role": "admin", "remote": "10.0.0.7:51324",
     "action": "delete_topic", "topic": "orders", "outcome": "done", "message": ""}                (all on one line)

`outcome` is `done`, `failed` (the cluster could not be reached, or refused) or `refused` (they may not). `is_known` is
false for a name that was merely claimed. The lines go to --audit-log-file, which is opened anew for each, so that it
may be rotated at any time, or else to the log. Names come from outside: JSON keeps them from forging lines.
"""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from emberq.admin.access.gate import Visitor
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.http.message import Request

_FIELD_LENGTH = 256
"""Names are shorter; what is longer was made up, and is cut."""

_log = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    """What came of an action."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What somebody does."""

    action: str
    """As notifications call it: `delete_topic`."""
    topic: str = ""
    channel: str = ""
    node: str = ""
    detail: str = ""
    """What else there is to say about it."""


class Audit:
    """Owned by the daemon."""

    def __init__(self, path: str, *, clock: Clock) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._writing = asyncio.Lock()

    def check(self) -> None:
        """OSError if nothing can be written to the file."""
        if self._path is not None:
            with self._path.open("ab"):
                pass

    async def record(
        self, request: Request, visitor: Visitor | None, deed: Deed, outcome: Outcome, message: str = ""
    ) -> None:
        """Add a line, and return when it is written."""
        line = self._line(request, visitor, deed, outcome, message)
        if self._path is None:
            _log.info("audit: %s", line)
            return
        async with self._writing:
            try:
                await asyncio.to_thread(_append, self._path, line)
            except OSError as failure:
                _log.error("cannot write to %s (%s); audit: %s", self._path, failure.strerror, line)

    def _line(self, request: Request, visitor: Visitor | None, deed: Deed, outcome: Outcome, message: str) -> str:
        now = datetime.datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_SECOND, datetime.UTC)
        named = {"topic": deed.topic, "channel": deed.channel, "node": deed.node, "detail": deed.detail}
        fields = {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": visitor.name if visitor is not None else "",
            "is_known": visitor is not None and visitor.is_known,
            "role": visitor.role if visitor is not None else "",
            "remote": request.remote_address,
            "action": deed.action,
            **{key: value for key, value in named.items() if value},
            "outcome": outcome,
            "message": message,
        }
        return json.dumps({key: _cut(value) for key, value in fields.items()})


def _cut(value: object) -> object:
    return value[:_FIELD_LENGTH] if isinstance(value, str) else value


def _append(path: Path, line: str) -> None:
    with path.open("ab") as file:
        file.write(line.encode("ascii") + b"\n")
