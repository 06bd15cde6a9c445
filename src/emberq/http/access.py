"""Secrets that open an HTTP API: --http-secret-file, with one meaning for nsqd, nsqlookupd and nsqadmin.

**The file** holds one secret a line. Empty lines and those that begin with `#` do not count. It is read at the start,
and again on SIGHUP; if it cannot be used then, the secrets stay as they are. Several secrets at once let an operator
change one without a break: add the new one, have the clients show it, take the old one out.

**A request** shows its secret as `Authorization: Bearer <secret>`, or as the password of `Basic`, whose user name does
not matter: that is what browsers and `curl -u` send. A secret belongs to an operator, and opens everything. Without one
every request is refused before its body is read and before it is routed, so that not even the paths can be told:

    401 UNAUTHORIZED, with `WWW-Authenticate`

except /ping, which load balancers ask. Other guards decide on some requests in place of the file: nsqd's, which asks
authorization servers (`nsqd.auth.guard`), and nsqadmin's, where users log in (`admin.access.gate`).

**Guessing.** Tries are not counted: a secret should be long enough that no number of them helps. Of the secrets only
digests are kept, all of equal length, and what is shown is compared with each of them, in a time that tells nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from emberq.base.flag import SettingError
from emberq.base.program import StartError
from emberq.base.settings import read_secret, read_secrets
from emberq.http.message import JSON, V1_HEADERS, Request, Response, encode_json

FLAG = "http-secret-file"
OPEN_PATH = "/ping"
MIN_SECRET_BYTES = 16
"""A shorter secret can be guessed, and the log says so. `openssl rand -hex 32` makes one of 64."""

_log = logging.getLogger(__name__)


class SecretFile:
    """The secrets of a file. Owned by the daemon, which has it read again on SIGHUP."""

    def __init__(self, path: str) -> None:
        """SettingError if the file holds no secret, or cannot be read."""
        self._path = path
        self._key = os.urandom(hashlib.blake2b.MAX_KEY_SIZE)
        self._digests = self._read()

    def reload(self) -> None:
        """Read the file again."""
        try:
            self._digests = self._read()
        except SettingError as failure:
            _log.error("the secrets stay as they are: %s", failure)
            return
        _log.info("read %d secrets of --%s", len(self._digests), FLAG)

    def is_shown_by(self, request: Request) -> bool:
        """Whether the request shows one of the secrets."""
        shown = shown_secret(request)
        if not shown:
            return False
        digest = self._digest(shown)
        matches = [hmac.compare_digest(digest, each) for each in self._digests]  # all of them, whichever is right
        return any(matches)

    def _read(self) -> tuple[bytes, ...]:
        secrets = read_secrets(self._path, flag=FLAG)
        if _mode(self._path) & (stat.S_IROTH | stat.S_IWOTH):
            _log.warning("--%s: %s can be read or written by every user of this machine", FLAG, self._path)
        if min(map(len, secrets)) < MIN_SECRET_BYTES:
            _log.warning("--%s: %s holds a secret of less than %d characters", FLAG, self._path, MIN_SECRET_BYTES)
        return tuple(map(self._digest, secrets))

    def _digest(self, secret: bytes) -> bytes:
        return hashlib.blake2b(secret, key=self._key, digest_size=32).digest()


def _mode(path: str) -> int:
    try:
        return Path(path).stat().st_mode
    except OSError:  # it was read a moment ago
        return 0


def open_secrets(path: str) -> SecretFile | None:
    """The secrets of the file that a daemon was given; None if it was given none. StartError."""
    try:
        return SecretFile(path) if path else None
    except SettingError as wrong:
        raise StartError(str(wrong)) from wrong


class OwnSecret:
    """The secret that a daemon shows to other daemons. Owned by the daemon, which has it read again on SIGHUP."""

    def __init__(self, path: str, *, flag: str) -> None:
        """Without a path there is none. StartError if the file cannot be used."""
        self._path = path
        self._flag = flag
        try:
            self.value = self._read()
        except SettingError as wrong:
            raise StartError(str(wrong)) from wrong

    def reload(self) -> None:
        """Read the file again."""
        try:
            self.value = self._read()
        except SettingError as failure:
            _log.error("the secret stays as it is: %s", failure)

    def _read(self) -> bytes:
        return read_secret(self._path, flag=self._flag, variable="")


class AccessGuard:
    """Refuses requests that show no secret. Owned by the daemon; a `Guard` that its servers ask about every request."""

    def __init__(
        self,
        secrets: SecretFile,
        *,
        realm: str,
        open_path: str = OPEN_PATH,
        is_decided_elsewhere: Callable[[Request], bool] | None = None,
    ) -> None:
        """`realm` is what a browser calls us when it asks its user for a password.

        A request that `is_decided_elsewhere` goes on without a secret, to another guard.
        """
        self._secrets = secrets
        self._open_path = open_path
        self._is_decided_elsewhere = is_decided_elsewhere
        self._refusal = unauthorized(realm)

    def __call__(self, request: Request) -> Response | None:
        """The refusal, or None for a request that may go on."""
        if request.path == self._open_path or self._secrets.is_shown_by(request):
            return None
        if self._is_decided_elsewhere is not None and self._is_decided_elsewhere(request):
            return None
        return self._refusal


def unauthorized(realm: str) -> Response:
    """The answer to a request that shows no secret, or a wrong one."""
    challenge = f'Bearer realm="{realm}", Basic realm="{realm}"'
    return Response(
        401,
        encode_json({"message": "UNAUTHORIZED"}),
        content_type=JSON,
        headers=(*V1_HEADERS, ("WWW-Authenticate", challenge)),
    )


def shown_secret(request: Request) -> bytes:
    """The secret in the Authorization header; empty if there is none."""
    scheme, _, credentials = (request.raw_header(b"authorization") or b"").strip().partition(b" ")
    shown = credentials.strip()
    if scheme.lower() == b"bearer":
        return shown
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(shown, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
