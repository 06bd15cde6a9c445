"""Runs an `emberq` subcommand that stops, in good order, when the process that started it is gone.

A process that is killed cannot stop its children. But it holds the other end of their standard input, and the kernel
closes that, so the children notice.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from emberq.cli import main as emberq

STDIN = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names; the exit status."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    return emberq.main(sys.argv[1:] if argv is None else argv)


def _stop_with_parent() -> None:
    while os.read(STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
