"""Passwords as scrypt hashes.

    scrypt$15$8$1$<salt>$<key>
           |  | | base64, 16 and 32 bytes
           |  | parallelism
           |  block size
           log2 of the cost

What is costly about a hash stands in it, so that old ones stay valid when the cost is raised. A hash may not ask for
more than twice the memory of ours: whoever can write the file of users is trusted, but a slip there should not take
the machine down.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field, replace

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
    salt = os.urandom(SALT_BYTES)
    blank = PasswordHash(
        cost_log2=COST_LOG2, block_size=BLOCK_SIZE, parallelism=PARALLELISM, salt=salt, key=bytes(KEY_BYTES)
    )
    return replace(blank, key=blank.derive(password))


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
