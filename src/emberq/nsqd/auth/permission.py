"""What an authorization server's answer allows: parsing, checking, deciding. No I/O.

    {"ttl": 3600, "identity": "user", "identity_url": "http://…",
     "authorizations": [{"topic": "regex", "channels": ["regex", …], "permissions": ["subscribe", "publish"]}]}

An entry allows something on a topic and channel if it has that permission, its topic expression is found in the topic's
name and one of its channel expressions is found in the channel's. To publish names no channel: the expressions are then
tried on the empty string, so that an entry for `c1` alone does not allow it, while `.*` does.

One wrong detail makes the whole answer invalid: a server that cannot be understood has not allowed anything. Fields
follow the rules of the reference's decoder: keys match whatever their case, an absent or null one means empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from emberq.base.clock import NS_PER_SECOND
from emberq.nsqd.auth.pattern import Pattern, PatternError, compile_pattern

MAX_TTL_SECONDS = 10 * 365 * 24 * 3600
"""Ten years: nothing lives longer, and due times stay small numbers."""
MAX_DECISIONS = 1024
"""Decisions remembered per authorization. A connection uses a few topics; whoever uses more pays for the match."""
MAX_REMEMBERED_LENGTH = 128
"""No topic and channel together are longer; what HTTP clients send may be, and is decided without being kept."""


class Permission(StrEnum):
    """What can be allowed, as servers spell it."""

    SUBSCRIBE = "subscribe"
    PUBLISH = "publish"


class InvalidAnswer(Exception):
    """The answer of an authorization server that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One element of `authorizations`."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[Permission]

    def permits(self, permission: Permission, *, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.found_in(topic)
            and any(pattern.found_in(channel) for pattern in self.channels)
        )

    @property
    def covers_everything(self) -> bool:
        """Whether it was written to allow everything: both permissions on `.*`."""
        return self.topic.text == ".*" and self.permissions == frozenset(Permission)


class Authorization:
    """What a server allowed, until `expires_ns` by the monotonic clock. Shared by whoever was allowed it."""

    __slots__ = ("_decisions", "entries", "expires_ns", "identity", "identity_url")

    def __init__(self, *, identity: str, identity_url: str, entries: tuple[Entry, ...], expires_ns: int) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self.entries = entries
        self.expires_ns = expires_ns
        self._decisions: dict[tuple[Permission, str, str], bool] = {}

    def __repr__(self) -> str:
        return f"<Authorization of {self.identity!r}, {len(self.entries)} entries>"

    def is_expired(self, now_ns: int) -> bool:
        return now_ns >= self.expires_ns

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether the topic may be published to or, with a channel, subscribed to."""
        return self.permits(Permission.SUBSCRIBE if channel else Permission.PUBLISH, topic=topic, channel=channel)

    def permits(self, permission: Permission, *, topic: str, channel: str) -> bool:
        """Whether any entry permits it; remembered, for the same is asked with every message."""
        question = (permission, topic, channel)
        decision = self._decisions.get(question)
        if decision is None:
            decision = any(entry.permits(permission, topic=topic, channel=channel) for entry in self.entries)
            if len(topic) + len(channel) <= MAX_REMEMBERED_LENGTH:
                self._remember(question, decision)
        return decision

    def _remember(self, question: tuple[Permission, str, str], decision: bool) -> None:
        if len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[question] = decision

    @property
    def covers_everything(self) -> bool:
        """Whether one entry was written to allow everything; then its holder may change the daemon itself."""
        return any(entry.covers_everything for entry in self.entries)


def parse_answer(body: bytes, *, now_ns: int) -> Authorization:
    """The authorization in a server's answer, or InvalidAnswer."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidAnswer("not JSON") from None  # the cause would carry the answer along
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


# Each of these says where something is wrong, never what stood there: an answer may echo the secret it is about.


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidAnswer(f"{where} is not an object")
    return {key.lower(): member for key, member in value.items()}


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidAnswer(f"{where} is not a list")
    return value


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidAnswer(f"{where} is not a string")
    # Half a surrogate pair, which JSON can spell, has no UTF-8: as in the reference it becomes U+FFFD.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ttl_seconds(value: Any) -> int:
    if value is not None and type(value) is not int:
        raise InvalidAnswer("ttl is not a whole number")
    seconds: int = value or 0
    if seconds <= 0:
        raise InvalidAnswer(f"invalid TTL {seconds} (must be >0)")
    return min(seconds, MAX_TTL_SECONDS)


def _pattern(value: Any, where: str) -> Pattern:
    try:
        return compile_pattern(_text(value, where))
    except PatternError:
        raise InvalidAnswer(f"{where} is not a regular expression of RE2") from None


def _permission(value: Any, where: str) -> Permission:
    try:
        return Permission(_text(value, where))
    except ValueError:
        raise InvalidAnswer(f"{where} has one that is neither subscribe nor publish") from None
