"""What each role may do."""

from __future__ import annotations

from emberq.admin.access.user import Permission, Role


def test_each_role_may_do_all_that_those_before_it_may() -> None:
    viewer, operator, admin = (role.permissions for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN))
    assert viewer < operator < admin
    assert viewer == frozenset()
    assert admin == frozenset(Permission)


def test_what_cannot_be_undone_and_the_audit_log_are_for_admins() -> None:
    assert Role.ADMIN.permissions - Role.OPERATOR.permissions == {
        Permission.EMPTY,
        Permission.DELETE,
        Permission.TOMBSTONE,
        Permission.DRAIN,
        Permission.AUDIT,
    }
