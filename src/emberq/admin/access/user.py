"""The users of nsqadmin: their file, their roles, their passwords.

**The file of users** has a line for each.

    # name:role:hash
    ada:admin:scrypt$15$8$1$…$…
    tom:viewer:scrypt$15$8$1$…$…
    bot:operator:-                  no password: only a trusted proxy can say that it is `bot`

It is read at the start and again on SIGHUP; if it cannot be used then, the users stay as they are.

**Roles.** Each may do all that those before it may.

    viewer     look at figures, nodes and pipelines
    operator   and look into messages, publish, create, pause and unpause, seek, redrive, set policies, change rules,
               silence alerts
    admin      and what cannot be undone: empty, delete, tombstone, drain; and look at the audit log

**Passwords** are kept as scrypt hashes.

    scrypt$15$8$1$<salt>$<key>
           |  | | base64, 16 and 32 bytes
           |  | parallelism
           |  block size
           log2 of the cost

What is costly about a hash stands in it, so that old ones stay valid when the cost is raised. A hash may not ask for
more than twice the memory of ours: an operator who can write the file of users is trusted, but a slip there should not
take the machine down.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from emberq.base.text import quoted

# Roles


class Permission(enum.StrEnum):
    """Something that needs a role; the words are shown to the browser."""

    PEEK = "peek"
    PUBLISH = "publish"
    CREATE = "create"
    PAUSE = "pause"
    """Pause and unpause."""
    SEEK = "seek"
    REDRIVE = "redrive"
    POLICY = "policy"
    """Say when a message is given up, and where it goes."""
    DISMISS = "dismiss"
    """Take a node that is gone off the pages."""
    MARK = "mark"
    """Leave a mark in the charts."""
    RULES = "rules"
    """Change the rules that say when something is wrong."""
    SILENCE = "silence"
    """Keep alerts from the webhook for a while."""
    EMPTY = "empty"
    DELETE = "delete"
    TOMBSTONE = "tombstone"
    DRAIN = "drain"
    """Have a node emptied and stopped, or go on."""
    AUDIT = "audit"
    """Look at the audit log, which tells of addresses, and of names that were typed by mistake."""


_OPERATOR = frozenset(
    {
        Permission.PEEK,
        Permission.PUBLISH,
        Permission.CREATE,
        Permission.PAUSE,
        Permission.SEEK,
        Permission.REDRIVE,
        Permission.POLICY,
        Permission.DISMISS,
        Permission.MARK,
        Permission.RULES,
        Permission.SILENCE,
    }
)


class Role(enum.StrEnum):
    """The roles, as a file of users spells them."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def permissions(self) -> frozenset[Permission]:
        """All that it may do besides looking at figures."""
        return _PERMISSIONS[self]


_PERMISSIONS = {
    Role.VIEWER: frozenset[Permission](),
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: frozenset(Permission),
}


# Passwords

COST_LOG2 = 15
BLOCK_SIZE = 8
PARALLELISM = 1
"""32 MiB and some 80 ms: unnoticed once, hopeless for a list of a million guesses."""
SALT_BYTES = 16
KEY_BYTES = 32
MAX_PASSWORD_BYTES = 1024
"""Longer ones are refused, not hashed."""

_MAX_MEMORY_BYTES = 96 * 1024 * 1024
_FORM = re.compile(r"scrypt\$(\d{1,2})\$(\d{1,2})\$(\d)\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)")


class PasswordError(ValueError):
    """Not a hash of ours, or not a password that can be hashed; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """What is kept of a password."""

    cost_log2: int
    block_size: int
    parallelism: int
    salt: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def memory_bytes(self) -> int:
        """What it takes to check a password."""
        return 128 * self.block_size * ((1 << self.cost_log2) + self.parallelism + 2)

    def matches(self, password: str) -> bool:
        """Whether this is the password. Takes long, so not to be called in the event loop's thread."""
        if len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
            return False
        return hmac.compare_digest(self.derive(password), self.key)

    def derive(self, password: str) -> bytes:
        """The key that this salt makes of a password."""
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"),
            salt=self.salt,
            n=1 << self.cost_log2,
            r=self.block_size,
            p=self.parallelism,
            maxmem=_MAX_MEMORY_BYTES,
            dklen=len(self.key),
        )

    def __str__(self) -> str:
        salt, key = (base64.b64encode(part).decode("ascii") for part in (self.salt, self.key))
        return f"scrypt${self.cost_log2}${self.block_size}${self.parallelism}${salt}${key}"


def hash_password(password: str) -> PasswordHash:
    """The hash of a new password; PasswordError if it cannot be one."""
    if not password:
        raise PasswordError("a password cannot be empty")
    if len(password.encode("utf-8", "surrogatepass")) > MAX_PASSWORD_BYTES:
        raise PasswordError(f"a password cannot be longer than {MAX_PASSWORD_BYTES} bytes")
    blank = _salted(bytes(KEY_BYTES))
    return replace(blank, key=blank.derive(password))


def _salted(key: bytes) -> PasswordHash:
    return PasswordHash(
        cost_log2=COST_LOG2, block_size=BLOCK_SIZE, parallelism=PARALLELISM, salt=os.urandom(SALT_BYTES), key=key
    )


def parse_hash(text: str) -> PasswordHash:
    """A hash as it stands in the file of users; PasswordError."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise PasswordError("not a hash that `nsqadmin --hash-password` makes")
    cost_log2, block_size, parallelism, salt, key = found.groups()
    try:
        parsed = PasswordHash(
            cost_log2=int(cost_log2),
            block_size=int(block_size),
            parallelism=int(parallelism),
            salt=base64.b64decode(salt, validate=True),
            key=base64.b64decode(key, validate=True),
        )
    except binascii.Error as error:
        raise PasswordError("its salt or key is not base64") from error
    if not (parsed.cost_log2 and parsed.block_size and parsed.parallelism and parsed.key):
        raise PasswordError("its cost is zero")
    if parsed.memory_bytes > _MAX_MEMORY_BYTES:
        raise PasswordError("it takes too much memory to check")
    return parsed


# The file of users

NO_PASSWORD = "-"  # noqa: S105 - it stands for none
MAX_NAME_LENGTH = 64
MAX_USERS = 10_000
"""A file with more is not one of users."""


class UserFileError(Exception):
    """A file of users that cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class User:
    """A line of the file of users."""

    name: str
    role: Role
    password: PasswordHash | None
    """None if they cannot log in with one."""


def read_users(path: str) -> Mapping[str, User]:
    """The users in a file, by name; UserFileError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserFileError(f"failed to read --user-file ({path}) - {reason}") from error
    users: dict[str, User] = {}
    for number, line in _entries(text):
        try:
            user = _parse(line)
        except ValueError as error:
            raise UserFileError(f"failed to read --user-file ({path}) - line {number}: {error}") from error
        if user.name in users:
            raise UserFileError(f"failed to read --user-file ({path}) - line {number}: {quoted(user.name)} again")
        users[user.name] = user
    if not users:
        raise UserFileError(f"failed to read --user-file ({path}) - there is no user in it")
    return users


def _entries(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if number > MAX_USERS:
            return
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _parse(line: str) -> User:
    name, first_colon, rest = line.partition(":")
    role, second_colon, password = rest.partition(":")
    if not (first_colon and second_colon):
        raise ValueError("it is not of the form name:role:hash")
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"{quoted(name)} cannot be a name")
    if role not in set(Role):
        raise ValueError(f"{quoted(role)} is not a role; there are {', '.join(Role)}")
    return User(name, Role(role), None if password == NO_PASSWORD else parse_hash(password))


class Passwords:
    """Checks names with passwords. An unknown name takes as long as a known one, so that names cannot be probed."""

    def __init__(self) -> None:
        self._stand_in = _salted(os.urandom(KEY_BYTES))  # of no password that anybody knows

    def check(self, user: User | None, password: str) -> bool:
        """Whether it is the user's password. Takes long: to be called in a thread."""
        known = user.password if user is not None else None
        is_right = (known or self._stand_in).matches(password)
        return is_right and known is not None
