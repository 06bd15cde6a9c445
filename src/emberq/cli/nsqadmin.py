"""The `nsqadmin` command."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Sequence

from emberq.admin.options import HASH_PASSWORD, SETTINGS, Options
from emberq.base.process import Daemon
from emberq.cli.startup import run_daemon


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin until it is told to stop; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if any(word.lstrip("-") == HASH_PASSWORD.flag and word.startswith("-") for word in words):
        return _print_hash()
    return run_daemon(SETTINGS, Options, _load, words)


def _load() -> tuple[Callable[[Options], Daemon], type[Exception]]:
    from emberq.admin.daemon import Nsqadmin, StartError

    return Nsqadmin, StartError


def _print_hash() -> int:
    """Ask for a password, twice on a terminal, and print what --user-file wants to see of it."""
    from emberq.admin.access.password import PasswordError, hash_password

    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            print("These are not the same.", file=sys.stderr)
            return 1
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    try:
        print(hash_password(password))
    except PasswordError as wrong:
        print(wrong, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
