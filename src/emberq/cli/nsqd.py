"""The `nsqd` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from emberq.base.process import Daemon
from emberq.cli.startup import run_daemon
from emberq.nsqd.options import SETTINGS, Options


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd until it is told to stop; the exit status."""
    return run_daemon(SETTINGS, Options, _load, argv)


def _load() -> tuple[Callable[[Options], Daemon], type[Exception]]:
    from emberq.nsqd.daemon import Nsqd, StartError

    return Nsqd, StartError


if __name__ == "__main__":
    sys.exit(main())
