"""What an authorization server's answer allows: parsing, checking, deciding. No I/O.

    {"ttl": 3600, "identity": "user", "identity_url": "http://…",
     "authorizations": [{"topic": "regex", "channels": ["regex", …], "permissions": ["subscribe", "publish"]}]}

An entry allows something on a topic and channel if it has that permission, its topic expression is found in the topic's
name and one of its channel expressions is found in the channel's. To publish names no channel: the expressions are then
tried on the empty string, so that an entry for `c1` alone does not allow it, while `.*` does.

One wrong detail makes the whole answer invalid: a server that cannot be understood has not allowed anything. Fields
follow the rules of the reference's decoder: keys match whatever their case, an absent or null one means empty.

Regular expressions are RE2's, for which the servers are written, through Google's binding. What RE2 refuses
(look-around, references back) must be refused here too. Its time is linear in the text whatever the expression, so that
an unlucky one cannot stop the daemon. Each expression is compiled once for all connections: the clients of one service
share a few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from emberq.base.clock import NS_PER_SECOND

try:
    import re2
except ImportError:  # without the extra `auth`; `Authorizer` says so at the start
    re2 = None
IS_AVAILABLE = re2 is not None
MAX_TTL_SECONDS = 10 * 365 * 24 * 3600
"""Ten years: longer than any connection, and due times stay small numbers."""
MAX_DECISIONS = 1024
"""Decisions remembered per authorization. A connection uses a few topics; with more, some are matched again."""
MAX_REMEMBERED_LENGTH = 128
"""No topic and channel together are longer. HTTP clients may send longer names; those decisions are not kept."""


class AuthPermission(StrEnum):
    """What can be allowed, as servers spell it."""

    SUBSCRIBE = "subscribe"
    PUBLISH = "publish"


class InvalidAnswerError(Exception):
    """The answer of an authorization server that cannot be used; the text says why."""


class Authorization:
    """What a server allowed, until `expires_ns` by the monotonic clock. Shared by the connections it was given to."""

    __slots__ = ("_decisions", "entries", "expires_ns", "identity", "identity_url")

    def __init__(self, *, identity: str, identity_url: str, entries: tuple[Entry, ...], expires_ns: int) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.entries = entries
        self.expires_ns = expires_ns
        self._decisions: dict[tuple[AuthPermission, str, str], bool] = {}

    def __repr__(self) -> str:
        return f"<Authorization of {self.identity!r}, {len(self.entries)} entries>"

    def is_expired(self, now_ns: int) -> bool:
        return now_ns >= self.expires_ns

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether the topic may be published to or, with a channel, subscribed to."""
        return self.permits(
            AuthPermission.SUBSCRIBE if channel else AuthPermission.PUBLISH, topic=topic, channel=channel
        )

    def permits(self, permission: AuthPermission, *, topic: str, channel: str) -> bool:
        """Whether any entry permits it. Remembered, because every message asks the same."""
        question = (permission, topic, channel)
        decision = self._decisions.get(question)
        if decision is None:
            decision = any(entry.permits(permission, topic=topic, channel=channel) for entry in self.entries)
            if len(topic) + len(channel) <= MAX_REMEMBERED_LENGTH:
                self._remember(question, decision)
        return decision

    def _remember(self, question: tuple[AuthPermission, str, str], decision: bool) -> None:
        if len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[question] = decision

    @property
    def covers_everything(self) -> bool:
        """Whether one entry was written to allow everything. Then its holder may change the daemon itself."""
        return any(entry.covers_everything for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of `authorizations`."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[AuthPermission]

    def permits(self, permission: AuthPermission, *, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.found_in(topic)
            and any(pattern.found_in(channel) for pattern in self.channels)
        )

    @property
    def covers_everything(self) -> bool:
        """Whether it was written to allow everything: both permissions on `.*`."""
        return self.topic.text == ".*" and self.permissions == frozenset(AuthPermission)


# Regular expressions of RE2.

MAX_COMPILED = 1024
"""Distinct expressions kept compiled: a kilobyte or so each. If there are more, some are compiled again."""


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False  # RE2 would write them to standard error
    options.never_capture = True  # only whether it matches is asked, which is faster
    return options


_OPTIONS = _options() if IS_AVAILABLE else None


class PermissionPatternError(ValueError):
    """Not a regular expression."""


class Pattern:
    """A compiled expression, found anywhere in a text unless it anchors itself."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = re2.compile(text, _OPTIONS)
        except re2.error as wrong:
            raise PermissionPatternError("not a regular expression of RE2") from wrong

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def found_in(self, text: str) -> bool:
        return self._compiled.search(text) is not None


compile_pattern = lru_cache(maxsize=MAX_COMPILED)(Pattern)
"""The pattern of a text, or PermissionPatternError."""


# Reading an answer.


def parse_answer(body: bytes, *, now_ns: int) -> Authorization:
    """The authorization in a server's answer, or InvalidAnswerError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidAnswerError("not JSON") from None  # the cause would carry the answer along
    fields = _object(document, "the answer")
    ttl_seconds = _ttl_seconds(fields.get("ttl"))
    entries = _list(fields.get("authorizations"), "authorizations")
    return Authorization(
        identity=_text(fields.get("identity"), "identity"),
        identity_url=_text(fields.get("identity_url"), "identity_url"),
        entries=tuple(_entry(value, f"authorizations[{index}]") for index, value in enumerate(entries)),
        expires_ns=now_ns + ttl_seconds * NS_PER_SECOND,
    )


def _entry(value: Any, where: str) -> Entry:
    fields = _object(value, where)
    channels = _list(fields.get("channels"), f"{where}.channels")
    permissions = _list(fields.get("permissions"), f"{where}.permissions")
    return Entry(
        topic=_pattern(fields.get("topic"), f"{where}.topic"),
        channels=tuple(_pattern(channel, f"{where}.channels") for channel in channels),
        permissions=frozenset(_permission(name, f"{where}.permissions") for name in permissions),
    )


# Reading fields. Errors say where something is wrong, never what stood there: an answer may echo the secret.


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidAnswerError(f"{where} is not an object")
    return {key.lower(): member for key, member in value.items()}


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidAnswerError(f"{where} is not a list")
    return value


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidAnswerError(f"{where} is not a string")
    # Half a surrogate pair, which JSON can spell, has no UTF-8: as in the reference it becomes U+FFFD.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ttl_seconds(value: Any) -> int:
    if value is not None and type(value) is not int:
        raise InvalidAnswerError("ttl is not a whole number")
    seconds: int = value or 0
    if seconds <= 0:
        raise InvalidAnswerError(f"invalid TTL {seconds} (must be >0)")
    return min(seconds, MAX_TTL_SECONDS)


def _pattern(value: Any, where: str) -> Pattern:
    try:
        return compile_pattern(_text(value, where))
    except PermissionPatternError:
        raise InvalidAnswerError(f"{where} is not a regular expression of RE2") from None


def _permission(value: Any, where: str) -> AuthPermission:
    try:
        return AuthPermission(_text(value, where))
    except ValueError:
        raise InvalidAnswerError(f"{where} has one that is neither subscribe nor publish") from None
