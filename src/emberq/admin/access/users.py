"""The file of users.

    # name:role:hash
    ada:admin:scrypt$15$8$1$…$…
    tom:viewer:scrypt$15$8$1$…$…
    bot:operator:-                  no password: only a trusted proxy can say that it is `bot`

It is read at the start and again on SIGHUP; if it cannot be used then, the users stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from emberq.admin.access.password import PasswordHash, hash_password, parse_hash
from emberq.admin.access.role import Role
from emberq.base.printable import quoted

NO_PASSWORD = "-"  # noqa: S105 - it stands for none
MAX_NAME_LENGTH = 64
MAX_USERS = 10_000
"""A file with more is not one of users."""


class UserFileError(Exception):
    """A file of users that cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may come in."""

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
        raise UserFileError(f"failed to read --user-file ({path}) - there is nobody in it")
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
        self._nobody = hash_password("the password of nobody")

    def check(self, user: User | None, password: str) -> bool:
        """Whether it is the user's password. Takes long: to be called in a thread."""
        known = user.password if user is not None else None
        is_right = (known or self._nobody).matches(password)
        return is_right and known is not None
