"""Sessions of users who are logged in, and the throttle for those who guess passwords.

**A session** is a random token that the browser keeps in a cookie, and another that its scripts send along with
whatever changes something: a page of another site can make the browser send the first, but cannot know the second.

    Set-Cookie: nsqadmin-session=<token>; Path=/; Max-Age=…; HttpOnly; SameSite=Strict      (and Secure, over TLS)
    X-CSRF-Token: <the other>

Sessions live in memory: a restart logs all users out. They end when nothing was asked for a while. Kept are digests of
the tokens, so that a dump of memory or a timing does not give one away.

**The throttle.** After a few wrong passwords further tries are refused for a while, right ones too: a guesser must not
learn which was right. The wait is short enough for a user who merely forgot. Three counts are kept, so that a guesser
is stopped and no other user is:

    a name from an address   few: a user types a password again, and wrongly again
    an address               more: many users may share one, by a proxy that does not say who its clients are
    a name                   most: many machines may guess one name, but no client should lock a user out

Who has logged in from an address before is held up by the first count alone: the guesses of others do not concern
them. A right password clears that count and no other, or a guesser with an account could begin anew again and again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

from emberq.base.clock import NS_PER_SECOND, Clock

# Sessions

TOKEN_BYTES = 32
MAX_SESSIONS = 10_000
"""Of more, the one that was not used for longest ends."""
MAX_SESSIONS_OF_USER = 100
"""So that one user, logging in again and again, cannot log out all others."""


@dataclass(slots=True)
class LoginSession:
    """A user who is logged in, in one browser."""

    user: str
    csrf_token: str = field(repr=False)
    used_ns: int
    """When something was last asked with it, by the monotonic clock."""

    def knows(self, csrf_token: str) -> bool:
        """Whether this is its other token."""
        return hmac.compare_digest(self.csrf_token.encode(), csrf_token.encode("utf-8", "replace"))


class Sessions:
    """All open sessions, the one that was used last at the end."""

    def __init__(self, *, clock: Clock, lifetime_ns: int) -> None:
        self._clock = clock
        self.lifetime_ns = lifetime_ns
        self._sessions: dict[bytes, LoginSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, user: str) -> tuple[str, LoginSession]:
        """A new session and the token that stands for it."""
        self._drop_stale()
        mine = [digest for digest, session in self._sessions.items() if session.user == user]
        if len(mine) >= MAX_SESSIONS_OF_USER:
            del self._sessions[mine[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        session = LoginSession(user, secrets.token_urlsafe(TOKEN_BYTES), self._clock.monotonic_ns())
        self._sessions[_digest(token)] = session
        return token, session

    def find(self, token: str) -> LoginSession | None:
        """The session that a token stands for, which lives on from now."""
        digest = _digest(token)
        session = self._sessions.pop(digest, None)
        if session is None or self._is_stale(session):
            return None
        session.used_ns = self._clock.monotonic_ns()
        self._sessions[digest] = session
        return session

    def close(self, token: str) -> None:
        """End a session, if there is one."""
        self._sessions.pop(_digest(token), None)

    def close_all_of(self, user: str) -> None:
        """End all sessions of a user."""
        for digest in [digest for digest, session in self._sessions.items() if session.user == user]:
            del self._sessions[digest]

    def _drop_stale(self) -> None:
        for digest, session in list(self._sessions.items()):
            if not self._is_stale(session):
                return
            del self._sessions[digest]

    def _is_stale(self, session: LoginSession) -> bool:
        return self._clock.monotonic_ns() - session.used_ns > self.lifetime_ns


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


# The throttle

MAX_FAILURES = 5
"""Of a name from an address."""
MAX_FAILURES_OF_ADDRESS = 50
MAX_FAILURES_OF_NAME = 100
WINDOW_NS = 60 * NS_PER_SECOND
"""So much time must pass since the last wrong password."""
MAX_REMEMBERED = 10_000
"""Addresses, names and pairs of them; of more, those that failed longest ago are forgotten. As many pairs that did not
fail are remembered."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_ns: int


class LoginThrottle:
    """Counts failures, the newest at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}
        self._welcome: dict[str, None] = {}
        """Names with addresses from which they have logged in, the newest at the end."""

    def allows(self, *, address: str, name: str) -> bool:
        """Whether a try may be made from an address, for a name."""
        pair = _pair(address, name)
        if self._count(pair) >= MAX_FAILURES:
            return False
        if pair in self._welcome:
            return True
        is_quiet = self._count(_by_address(address)) < MAX_FAILURES_OF_ADDRESS
        return is_quiet and self._count(_by_name(name)) < MAX_FAILURES_OF_NAME

    def _count(self, key: str) -> int:
        failures = self._failures.get(key)
        if failures is None or self._clock.monotonic_ns() - failures.last_ns > WINDOW_NS:
            return 0
        return failures.count

    def failed(self, *, address: str, name: str) -> None:
        """A wrong password."""
        now_ns = self._clock.monotonic_ns()
        for key in (_pair(address, name), _by_address(address), _by_name(name)):
            count = self._count(key)
            self._failures.pop(key, None)
            self._failures[key] = _Failures(count + 1, now_ns)
        _shorten(self._failures)

    def succeeded(self, *, address: str, name: str) -> None:
        """A right password."""
        pair = _pair(address, name)
        self._failures.pop(pair, None)
        self._welcome.pop(pair, None)
        self._welcome[pair] = None
        _shorten(self._welcome)


def _pair(address: str, name: str) -> str:
    return f"pair {address} {name}"


def _by_address(address: str) -> str:
    return f"address {address}"


def _by_name(name: str) -> str:
    return f"name {name}"


def _shorten(remembered: dict[str, Any]) -> None:
    while len(remembered) > MAX_REMEMBERED:
        del remembered[next(iter(remembered))]
