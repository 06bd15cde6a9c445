"""What is told of every action: a line of the audit log, a mark in the charts, and a notification.

**The audit log** says who did what, or tried to, and what came of it.

    {"time": "2024-05-17T07:30:00.123Z", "user": "ada", "is_known": true, "role": "admin", "remote": "10.0.0.7:51324",
     "action": "delete_topic", "topic": "orders", "count": 912, "outcome": "done", "message": ""}  (all on one line)

`outcome` is `done`, `failed` (the cluster could not be reached, or refused) or `refused` (the user may not). `is_known`
is false for a name that was merely claimed. `count` is the number of messages that the action was about: dropped by
`empty` and `delete`, moved by `redrive`, shown by `peek`. The lines go to --audit-log-file, which is opened anew for
each, so that it may be rotated at any time, or else to the log. Names come from outside: JSON keeps them from forging
lines. A file that is not there is made for its owner alone; one that is keeps the permissions that the operator gave
it.

**It is read back** for the page that shows it (`Audit.find`), the newest line first: from the end of the file, and then
of the one that it was rotated to (`FILE.1`), a bounded part of both. Without a file the last lines are kept in memory.

**A mark** in the charts (see `history_store`) is left by what changes how messages flow: not by what only adds to them.

**A notification** is a POST to --notification-http-endpoint.

    {"action": "create_channel", "topic": "t", "channel": "c", "timestamp": 1715931000, "user": "joe",
     "remote_ip": "10.0.0.7:51324", "user_agent": "curl/8", "url": "http://host/api/topics", "via": "<our hostname>"}

`channel`, `node` and `user` are left out when empty. Notifications are sent in the background, one at a time and in
order; no request waits for them, and one that fails is logged and forgotten. A peek changes nothing: it is in the audit
log alone.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import os
import socket
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from emberq.admin.access.gate import Visitor, basic_user, is_secure
from emberq.admin.history_store import HistoryMark, Marks
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.text import format_moment
from emberq.cluster.upstream import ClusterError
from emberq.http.client import HttpClient, HttpQueryError, public_url
from emberq.http.message import HttpError, Request, encode_json

_FIELD_LENGTH = 256
"""Names are shorter; what is longer was made up, and is cut."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ActionOutcome(enum.StrEnum):
    """What came of an action."""

    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedAction:
    """An action, as it is told."""

    action: str
    """As notifications call it: `delete_topic`."""
    topic: str = ""
    channel: str = ""
    node: str = ""
    detail: str = ""
    """What else there is to say about it."""
    count: int | None = None
    """Messages that it is about; None if that is not known, or makes no sense."""


class Recorder:
    """Tells of actions, to the audit log and the notifier. Owned by the daemon."""

    def __init__(self, audit: Audit, notifier: Notifier, marks: Marks, *, clock: Clock) -> None:
        self.audit = audit
        self._notifier = notifier
        self._marks = marks
        self._clock = clock

    async def carry_out(
        self,
        work: Awaitable[T],
        deeds: Sequence[AuditedAction],
        request: Request,
        visitor: Visitor,
        *,
        notify_of_failure: bool = False,
        count_in: Callable[[T], int] | None = None,
    ) -> T:
        """Await the work and tell of it. A failure goes to the audit log alone, unless `notify_of_failure`. `count_in`
        says of the result how many messages it is about, if that is not known before."""
        try:
            result = await work
        except (ClusterError, HttpError) as failure:
            for deed in deeds:
                await self.audit.record(request, visitor, deed, ActionOutcome.FAILED, str(failure))
                if notify_of_failure:
                    self._notifier.notify(request, visitor, deed)
            raise
        for deed in deeds:
            told = deed if count_in is None else replace(deed, count=count_in(result))
            await self.audit.record(request, visitor, told, ActionOutcome.DONE, str(getattr(result, "message", "")))
            if deed.action == PEEK:
                continue
            self._notifier.notify(request, visitor, deed)
            if not deed.action.startswith(_UNMARKED):
                self._marks.add(_mark(deed, visitor.name, self._clock.wall_ns()))
        return result

    async def refuse(self, request: Request, visitor: Visitor | None, deed: AuditedAction, reason: str) -> None:
        """Tell of an action that was not allowed."""
        await self.audit.record(request, visitor, deed, ActionOutcome.REFUSED, reason)


PEEK = "peek"
"""An action that only looks at messages."""
_UNMARKED = ("create_", "publish", "dismiss_", "mark", "change_rules", "silence_", "end_silence")
"""How actions begin that leave no mark, or are one."""


def _mark(deed: AuditedAction, user: str, time_ns: int) -> HistoryMark:
    verb = "cancel drain" if deed.action.startswith("cancel_drain") else deed.action.partition("_")[0]
    what = f"{deed.topic} / {deed.channel}" if deed.channel else deed.topic
    parts = (verb, what, f"on {deed.node}" if deed.node else "", f"by {user}" if user else "")
    text = " ".join(part for part in parts if part)
    return HistoryMark(time_ns, "action", text, topic=deed.topic, channel=deed.channel, node=deed.node)


# The audit log


MAX_RECENT = 1_000
"""Lines that are kept in memory where there is no file."""
MAX_FOUND = 5_000
"""Lines that are shown at once: some megabytes."""
MAX_READ_BYTES = 16 * 1024 * 1024
"""How far back the files are read: some fifty thousand lines, which take a fraction of a second."""
_BLOCK_BYTES = 256 * 1024
ROTATED_SUFFIX = ".1"
"""What logrotate calls the file before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines are meant. In the first five `*` stands for any characters, `?` for one, and no text for all."""

    user: str = ""
    action: str = ""
    topic: str = ""
    channel: str = ""
    outcome: str = ""
    since: str = ""
    """As in the lines, so that the texts can be compared; empty: no bound."""
    until: str = ""

    def admits(self, line: dict[str, Any]) -> bool:
        patterns = ((name, getattr(self, name)) for name in ("user", "action", "topic", "channel", "outcome"))
        if not all(_fits(str(line.get(name, "")), pattern) for name, pattern in patterns if pattern):
            return False
        time = str(line.get("time", ""))
        return self.since <= time and (not self.until or time < self.until)


def _fits(name: str, pattern: str) -> bool:
    """Brackets have no meaning, as in all patterns of names here."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


class AuditFindings(NamedTuple):
    """What was found, the newest first."""

    lines: list[dict[str, Any]]
    has_more: bool
    """Whether older lines may match, too."""


class Audit:
    """Writes the audit log, and reads it back. Owned by the daemon."""

    def __init__(self, path: str, *, clock: Clock) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._writing = asyncio.Lock()
        self._recent: deque[str] = deque(maxlen=MAX_RECENT)
        """The last lines, if there is no file."""

    @property
    def has_file(self) -> bool:
        return self._path is not None

    def check(self) -> None:
        """OSError if nothing can be written to the file."""
        if self._path is not None:
            os.close(_open(self._path))
            if self._path.stat().st_mode & stat.S_IROTH:
                _log.warning("the audit log %s can be read by every user of this machine", self._path)

    async def record(
        self, request: Request, visitor: Visitor | None, deed: AuditedAction, outcome: ActionOutcome, message: str = ""
    ) -> None:
        """Add a line, and return when it is written."""
        named = {"topic": deed.topic, "channel": deed.channel, "node": deed.node, "detail": deed.detail}
        fields = {
            "time": audit_time(self._clock.wall_ns()),
            "user": visitor.name if visitor is not None else "",
            "is_known": visitor is not None and visitor.is_known,
            "role": visitor.role if visitor is not None else "",
            "remote": request.remote_address,
            "action": deed.action,
            **{key: value for key, value in named.items() if value},
            **({} if deed.count is None else {"count": deed.count}),
            "outcome": outcome,
            "message": message,
        }
        line = json.dumps({key: _cut(value) for key, value in fields.items()})
        if self._path is None:
            self._recent.append(line)
            _log.info("audit: %s", line)
            return
        async with self._writing:
            try:
                await asyncio.to_thread(_append, self._path, line)
            except OSError as failure:
                _log.error("cannot write to %s (%s); audit: %s", self._path, failure.strerror, line)

    async def find(self, wanted: AuditFilter, *, count: int) -> AuditFindings:
        """The newest lines that are meant; OSError if the file cannot be read."""
        if self._path is None:
            return _chosen(list(reversed(self._recent)), wanted, count)
        return await asyncio.to_thread(_chosen, _read_back(self._path), wanted, count)


def audit_time(time_ns: int) -> str:
    """A moment as lines have it, to the millisecond: all are of one length, and sort as texts."""
    return format_moment(time_ns)[: -len("000000Z")] + "Z"


def _chosen(lines: Iterable[str | bytes], wanted: AuditFilter, count: int) -> AuditFindings:
    found: list[dict[str, Any]] = []
    for line in lines:
        if not line:  # the rest is not read
            return AuditFindings(found, has_more=True)
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # half a line, of a disk that was full
        if isinstance(entry, dict) and wanted.admits(entry):
            if len(found) == count:
                return AuditFindings(found, has_more=True)
            found.append(entry)
    return AuditFindings(found, has_more=False)


def _read_back(path: Path) -> Iterator[bytes]:
    """The lines of the file and of the one before it, the newest first; an empty one where it was read enough."""
    left = MAX_READ_BYTES
    for each in (path, path.with_name(path.name + ROTATED_SUFFIX)):
        try:
            file = each.open("rb")
        except FileNotFoundError:
            continue
        with file:
            place, rest = file.seek(0, os.SEEK_END), b""
            while place > 0:
                if left <= 0:
                    yield b""
                    return
                size = min(_BLOCK_BYTES, place)
                place, left = place - size, left - size
                file.seek(place)
                rest, *lines = (file.read(size) + rest).split(b"\n")
                yield from filter(None, reversed(lines))
            if rest:
                yield rest


def _cut(value: object) -> object:
    return value[:_FIELD_LENGTH] if isinstance(value, str) else value


def _append(path: Path, line: str) -> None:
    with os.fdopen(_open(path), "ab") as file:
        file.write(line.encode("ascii") + b"\n")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


# Notifications

MAX_WAITING = 1000
"""Notifications for an endpoint that is slow; those beyond are dropped."""
STOP_SECONDS = 5.0
"""How long those that wait may take when nsqadmin stops."""


class Notifier:
    """Sends notifications. Owned by the daemon."""

    def __init__(self, http: HttpClient, endpoint: str, *, clock: Clock) -> None:
        self._http = http
        self._endpoint = endpoint
        self._clock = clock
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send from here on, if there is an endpoint."""
        if self._endpoint:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        """Send what waits, for at most STOP_SECONDS."""
        if self._sender is None:
            return
        try:
            await asyncio.wait_for(self._waiting.join(), STOP_SECONDS)
        except TimeoutError:
            _log.warning("%d notifications were not sent", self._waiting.qsize())
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)

    def notify(self, request: Request, visitor: Visitor, deed: AuditedAction) -> None:
        """Tell of an action."""
        if self._sender is None:
            return
        try:
            self._waiting.put_nowait(self._message(request, visitor, deed))
        except asyncio.QueueFull:
            _log.error("notification of %s dropped: %d are waiting", deed.action, MAX_WAITING)

    def _message(self, request: Request, visitor: Visitor, deed: AuditedAction) -> bytes:
        scheme = "https" if is_secure(request) else "http"
        optional = {"channel": deed.channel, "node": deed.node}
        user = basic_user(request) or visitor.name
        return encode_json(
            {
                "action": deed.action,
                "topic": deed.topic,
                **{key: value for key, value in optional.items() if value},
                "timestamp": self._clock.wall_ns() // NS_PER_SECOND,
                **({"user": user} if user else {}),
                "remote_ip": request.remote_address,
                "user_agent": request.header("user-agent") or "",
                "url": f"{scheme}://{request.header('host') or ''}{request.target}",
                "via": socket.gethostname(),
            }
        )

    async def _send_all(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await self._http.post(self._endpoint, message, content_type="application/json")
            except HttpQueryError as failure:
                _log.error("notification to %s failed: %s", public_url(self._endpoint), failure)
            finally:
                self._waiting.task_done()
