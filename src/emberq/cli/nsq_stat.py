"""The `nsq_stat` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from emberq.base.process import STOP_SIGNALS
from emberq.client.error import NsqError
from emberq.tools.program import run_tool
from emberq.tools.stat import SETTINGS, Options, run


def main(argv: Sequence[str] | None = None) -> int:
    """Report on a channel until there were enough reports or it is told to stop; the exit status."""
    return run_tool(SETTINGS, Options, run, argv, stop_signals=(*STOP_SIGNALS, signal.SIGHUP), failures=(NsqError,))


if __name__ == "__main__":
    sys.exit(main())
