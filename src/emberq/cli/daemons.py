"""The commands `nsqd`, `nsqlookupd` and `nsqadmin`.

Each imports what it needs when it is called, so none loads the settings of the others.
"""

from __future__ import annotations

import functools
import getpass
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ParamSpec

from emberq.base.program import run_daemon
from emberq.cli.main import INTERRUPTED, ended_at_once, without_posix

CHECK = "emberq.cli.check_config"
P = ParamSpec("P")


def load(module: str, name: str) -> Any:
    """A daemon's class. Ctrl-C while it is being imported ends the process without a traceback."""
    with ended_at_once():
        return getattr(import_module(module), name)


def needing_posix(daemon: Callable[P, int]) -> Callable[P, int]:
    """A daemon that says so where the system is none that it runs on."""

    @functools.wraps(daemon)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return daemon(*args, **kwargs)
        except ModuleNotFoundError as missing:
            return without_posix(daemon.__name__, missing)

    return run


@needing_posix
def nsqd(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; the exit status."""
    from emberq.nsqd.options import SETTINGS, NsqdOptions

    return run_daemon(
        SETTINGS,
        NsqdOptions,
        lambda: load("emberq.nsqd.daemon", "Nsqd"),
        argv,
        describe=lambda options: import_module(CHECK).nsqd_report(options),
    )


@needing_posix
def nsqlookupd(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until it is told to stop; the exit status."""
    from emberq.lookupd.options import SETTINGS, LookupdOptions

    return run_daemon(
        SETTINGS,
        LookupdOptions,
        lambda: load("emberq.lookupd.daemon", "Nsqlookupd"),
        argv,
        describe=lambda options: import_module(CHECK).lookupd_report(options),
    )


@needing_posix
def nsqadmin(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin until it is told to stop, or print the hash of a password for its user file; the exit status."""
    from emberq.admin.options import HASH_PASSWORD, SETTINGS, AdminOptions

    words = sys.argv[1:] if argv is None else argv
    if any(word.lstrip("-") == HASH_PASSWORD.flag and word.startswith("-") for word in words):
        return _print_hash()
    return run_daemon(
        SETTINGS,
        AdminOptions,
        lambda: load("emberq.admin.daemon", "Nsqadmin"),
        words,
        describe=lambda options: import_module(CHECK).admin_report(options),
    )


def _print_hash() -> int:
    """Ask for a password, twice on a terminal, and print its hash for the --user-file."""
    from emberq.admin.access.user import PasswordError, hash_password

    if sys.stdin.isatty():
        try:
            password = getpass.getpass("Password: ")
            is_repeated = getpass.getpass("Again: ") == password
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return INTERRUPTED
        if not is_repeated:
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
