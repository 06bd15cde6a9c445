"""Sessions of users who are logged in, and the throttle for those who guess passwords.

**A session** is a random token that the browser keeps in a cookie, and another that its scripts send along with
whatever changes something: a page of another site can make the browser send the first, but cannot know the second.

    Set-Cookie: nsqadmin-session=<token>; Path=/; Max-Age=…; HttpOnly; SameSite=Strict      (and Secure, over TLS)
    X-CSRF-Token: <the other>

Sessions live in memory: a restart logs all users out. They end when nothing was asked for a while. Kept are digests of
the tokens, so that a dump of memory or a timing does not give one away.

**The throttle.** After a few wrong passwords from one address further tries from there are refused for a while, right
ones too: a guesser must not learn which was right. The wait is short enough for a user who merely forgot. Many machines
may guess one name, so tries for a name are counted too; but far more are allowed, or any client could lock a user out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

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

MAX_FAILURES_OF_ADDRESS = 5
MAX_FAILURES_OF_NAME = 100
WINDOW_NS = 60 * NS_PER_SECOND
"""So much time must pass since the last wrong password."""
MAX_REMEMBERED = 10_000
"""Addresses and names; of more, those that failed longest ago are forgotten."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_ns: int


class LoginThrottle:
    """Counts failures, the newest at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def allows(self, *, address: str, name: str) -> bool:
        """Whether a try may be made from an address, for a name."""
        by_address, by_name = _keys(address, name)
        return self._count(by_address) < MAX_FAILURES_OF_ADDRESS and self._count(by_name) < MAX_FAILURES_OF_NAME

    def _count(self, key: str) -> int:
        failures = self._failures.get(key)
        if failures is None or self._clock.monotonic_ns() - failures.last_ns > WINDOW_NS:
            return 0
        return failures.count

    def failed(self, *, address: str, name: str) -> None:
        """A wrong password."""
        now_ns = self._clock.monotonic_ns()
        for key in _keys(address, name):
            count = self._count(key)
            self._failures.pop(key, None)
            self._failures[key] = _Failures(count + 1, now_ns)
        while len(self._failures) > MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, *, address: str, name: str) -> None:
        """A right password."""
        for key in _keys(address, name):
            self._failures.pop(key, None)


def _keys(address: str, name: str) -> tuple[str, str]:
    return f"address {address}", f"name {name}"
