"""Silences: for a while the webhook is not told of some alerts, because an operator is on it, or expects them.

    {"rule": "Deep queue", "topic": "orders*", "for": "2h", "reason": "I am on it"}

A silence covers the alerts whose rule, topic, channel and node fit its patterns, also those that begin later; what it
does not name may be anything. It hides nothing: these alerts stay on the pages, with the reason and the end of the
silence, and leave their marks in the charts. It ends by itself, or when an operator ends it; `alert` says what the
webhook is told then.

With --history-path silences are kept over a restart of nsqadmin.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from emberq.admin.document import Document
from emberq.admin.history_store import HistoryStore, KeptKind
from emberq.admin.rule import ANY, MAX_PATTERN_LENGTH, RuleError, duration_in, text_in
from emberq.admin.webhook import ToldKey
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.text import format_duration, glob_expression, quoted

MAX_SILENCES = 100
"""Each is compared with every alert at every look."""
MAX_SILENCE_NS = 30 * 24 * 3600 * NS_PER_SECOND
"""What is to be quiet for longer needs no silence, but another rule."""
MAX_REASON_LENGTH = 200

_PATTERNS = ("rule", "topic", "channel", "node")
_KEYS = frozenset({*_PATTERNS, "for", "reason"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Which alerts are silenced, until when, by whom and why."""

    id: str
    rule: str
    topic: str
    channel: str
    node: str
    reason: str
    user: str
    """Who asked for it; empty where users do not log in."""
    since_ns: int
    """By the wall clock, as is the end."""
    until_ns: int

    @classmethod
    def parse(cls, said: Mapping[str, Any], *, user: str, now_ns: int) -> Silence:
        """A silence that begins now, as a page asks for it; RuleError."""
        unknown = sorted(set(said) - _KEYS)
        if unknown:
            raise RuleError(f"a silence has no {quoted(unknown[0])}; there are {', '.join(sorted(_KEYS))}")
        if not set(said) & set(_PATTERNS):  # or a slip would silence everything
            raise RuleError(f"a silence needs one of {', '.join(_PATTERNS)}; * stands for any characters")
        duration_ns = duration_in("for", said.get("for"))
        if not 0 < duration_ns <= MAX_SILENCE_NS:
            raise RuleError(f"for must be more than 0s, and at most {format_duration(MAX_SILENCE_NS)}")
        reason = " ".join(text_in(said, "reason", "").split())
        if not 0 < len(reason) <= MAX_REASON_LENGTH:
            raise RuleError(f"a silence needs a reason of 1 to {MAX_REASON_LENGTH} characters")
        return cls(
            id=secrets.token_hex(6),
            **{key: _pattern(said, key) for key in _PATTERNS},
            reason=reason,
            user=user,
            since_ns=now_ns,
            until_ns=now_ns + duration_ns,
        )

    def covers(self, key: ToldKey) -> bool:
        """Whether the alert is silenced by it."""
        return all(
            pattern is None or pattern.fullmatch(name) for pattern, name in zip(self._patterns, key, strict=True)
        )

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, ...]:
        """In the order of a key; None where any will do."""
        chosen = (getattr(self, key) for key in _PATTERNS)
        return tuple(None if each == ANY else re.compile(glob_expression(each)) for each in chosen)

    def document(self) -> Document:
        """The silence as pages are told of it."""
        patterns = {key: getattr(self, key) for key in _PATTERNS}
        times = {"since": self.since_ns // NS_PER_MS / 1000, "until": self.until_ns // NS_PER_MS / 1000}
        return {"id": self.id, **patterns, "reason": self.reason, "user": self.user, **times}

    def __str__(self) -> str:
        """What the audit log says of it."""
        named = [f"{key} {quoted(pattern)}" for key in _PATTERNS if (pattern := getattr(self, key)) != ANY]
        duration = format_duration(self.until_ns - self.since_ns)
        return f"{', '.join(named) or 'all alerts'} for {duration}: {self.reason}"


def _pattern(said: Mapping[str, Any], key: str) -> str:
    pattern = text_in(said, key, ANY)
    if not 0 < len(pattern) <= MAX_PATTERN_LENGTH or not pattern.isprintable():
        raise RuleError(f"{key} must be a pattern of 1 to {MAX_PATTERN_LENGTH} characters")
    return pattern


class Silences:
    """Those that have not ended. Owned by the alerts."""

    def __init__(self, *, clock: Clock, store: HistoryStore | None) -> None:
        self._clock = clock
        self._store = store
        self._by_id: dict[str, Silence] = {}

    @property
    def is_kept(self) -> bool:
        """Whether they outlive a restart."""
        return self._store is not None

    async def load(self) -> None:
        """Go on with those that were kept when nsqadmin ran last."""
        for kept in await self._store.kept(KeptKind.SILENCES) if self._store is not None else []:
            try:
                silence = Silence(**json.loads(kept))
            except (ValueError, TypeError):
                _log.warning("a silence that was kept cannot be read: %s", kept)
            else:
                self._by_id[silence.id] = silence

    def current(self) -> list[Silence]:
        """Those that hold now; the one that ends first is the first."""
        now_ns = self._clock.wall_ns()
        ended = [each.id for each in self._by_id.values() if each.until_ns <= now_ns]
        for each in ended:
            del self._by_id[each]
        if ended:
            self._keep()
        return sorted(self._by_id.values(), key=lambda silence: (silence.until_ns, silence.id))

    def add(self, silence: Silence) -> None:
        """RuleError if there are too many."""
        if len(self.current()) >= MAX_SILENCES:
            raise RuleError(f"there are {MAX_SILENCES} silences already")
        self._by_id[silence.id] = silence
        self._keep()

    def find(self, id_: str) -> Silence | None:
        return next((each for each in self.current() if each.id == id_), None)

    def end(self, silence: Silence) -> None:
        """It holds no more."""
        if self._by_id.pop(silence.id, None) is not None:
            self._keep()

    def _keep(self) -> None:
        if self._store is not None:
            self._store.keep(KeptKind.SILENCES, [json.dumps(asdict(each)) for each in self._by_id.values()])
