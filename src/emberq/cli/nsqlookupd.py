"""The `nsqlookupd` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from emberq.base.process import Daemon
from emberq.cli.startup import run_daemon
from emberq.lookupd.options import SETTINGS, Options


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until it is told to stop; the exit status."""
    return run_daemon(SETTINGS, Options, _load, argv)


def _load() -> tuple[Callable[[Options], Daemon], type[Exception]]:
    from emberq.lookupd.daemon import Nsqlookupd, StartError

    return Nsqlookupd, StartError


if __name__ == "__main__":
    sys.exit(main())
