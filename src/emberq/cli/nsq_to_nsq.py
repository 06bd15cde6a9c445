"""The `nsq_to_nsq` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emberq.client.error import NsqError
from emberq.tools.nsq_to_nsq import SETTINGS, Options, run
from emberq.tools.program import run_tool


def main(argv: Sequence[str] | None = None) -> int:
    """Copy messages until it is told to stop; the exit status."""
    return run_tool(SETTINGS, Options, run, argv, failures=(NsqError,))


if __name__ == "__main__":
    sys.exit(main())
