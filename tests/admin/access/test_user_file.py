"""The file of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.admin.access.user import Passwords, Role, User, UserFileError, read_users
from tests.support.admin_rig import cheap_hash


def write(folder: Path, text: str) -> str:
    path = folder / "users"
    path.write_text(text)
    return str(path)


def test_users_have_a_role_and_perhaps_a_password(tmp_path: Path) -> None:
    path = write(tmp_path, f"# comment\n\nada:admin:{cheap_hash('a')}\n  bot:operator:-  \n")
    users = read_users(path)
    assert set(users) == {"ada", "bot"}
    assert users["ada"].role is Role.ADMIN
    assert users["bot"] == User("bot", Role.OPERATOR, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ada", "line 1: it is not of the form name:role:hash"),
        ("ada:admin", "line 1: it is not of the form name:role:hash"),
        (":admin:-", 'line 1: "" cannot be a name'),
        ("a\tb:admin:-", 'line 1: "a\\tb" cannot be a name'),
        ("ada:king:-", 'line 1: "king" is not a role; there are viewer, operator, admin'),
        ("ada:admin:secret", "line 1: not a hash that `nsqadmin --hash-password` makes"),
        ("ada:admin:-\nada:viewer:-", 'line 2: "ada" again'),
        ("# nobody", "there is no user in it"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserFileError) as refusal:
        read_users(path)
    assert str(refusal.value) == f"failed to read --user-file ({path}) - {reason}"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="No such file or directory"):
        read_users(str(tmp_path / "none"))
    (tmp_path / "latin").write_bytes(b"\xe4:admin:-")
    with pytest.raises(UserFileError, match="it is not UTF-8"):
        read_users(str(tmp_path / "latin"))


def test_only_the_right_password_of_a_user_who_has_one_is_right() -> None:
    passwords = Passwords()
    ada, bot = User("ada", Role.ADMIN, cheap_hash("a")), User("bot", Role.OPERATOR, None)
    assert passwords.check(ada, "a")
    assert not passwords.check(ada, "b")
    assert not passwords.check(bot, "-")
    assert not passwords.check(None, "the password of nobody")
