"""What each role may do.

    viewer     look at figures, nodes and pipelines
    operator   and look into messages, publish, create, pause and unpause, seek, redrive, set policies
    admin      and what cannot be undone: empty, delete, tombstone

Each role may do all that those before it may.
"""

from __future__ import annotations

import enum


class Permission(enum.StrEnum):
    """Something that not everybody may do; the words are shown to the browser."""

    PEEK = "peek"
    PUBLISH = "publish"
    CREATE = "create"
    PAUSE = "pause"
    """Pause and unpause."""
    SEEK = "seek"
    REDRIVE = "redrive"
    POLICY = "policy"
    """Say when a message is given up, and where it goes."""
    EMPTY = "empty"
    DELETE = "delete"
    TOMBSTONE = "tombstone"


_OPERATOR = frozenset(
    {
        Permission.PEEK,
        Permission.PUBLISH,
        Permission.CREATE,
        Permission.PAUSE,
        Permission.SEEK,
        Permission.REDRIVE,
        Permission.POLICY,
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
