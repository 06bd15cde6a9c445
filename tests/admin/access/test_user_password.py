"""Passwords and their hashes."""

from __future__ import annotations

import pytest

from emberq.admin.access.user import MAX_PASSWORD_BYTES, PasswordError, hash_password, parse_hash
from tests.support.admin_rig import cheap_hash


def test_a_password_matches_its_own_hash_only() -> None:
    made = hash_password("correct horse")
    read = parse_hash(str(made))
    assert read == made
    assert read.matches("correct horse")
    assert not read.matches("correct horse ")
    assert not read.matches("")


def test_the_same_password_never_has_the_same_hash_twice() -> None:
    assert str(hash_password("same")) != str(hash_password("same"))


def test_what_is_secret_is_not_shown() -> None:
    assert "key" not in repr(cheap_hash("secret"))


@pytest.mark.parametrize("password", ["", "x" * (MAX_PASSWORD_BYTES + 1)])
def test_what_cannot_be_a_password_is_not_hashed(password: str) -> None:
    with pytest.raises(PasswordError):
        hash_password(password)
    assert not cheap_hash("x").matches(password)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "scrypt$15$8$1$only-four",
        "scrypt$15$8$1$c2FsdA$a2V5",  # base64 that is cut off
        "scrypt$0$8$1$c2FsdA==$a2V5",
        "scrypt$20$8$1$c2FsdA==$a2V5",  # a gigabyte
        "scrypt$99$99$9$c2FsdA==$a2V5",
        "bcrypt$15$8$1$c2FsdA==$a2V5",
    ],
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(PasswordError):
        parse_hash(text)
