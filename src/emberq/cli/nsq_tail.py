"""The `nsq_tail` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emberq.client.error import NsqError
from emberq.tools.program import run_tool
from emberq.tools.tail import SETTINGS, Options, run


def main(argv: Sequence[str] | None = None) -> int:
    """Print messages until there are enough or it is told to stop; the exit status."""
    return run_tool(SETTINGS, Options, run, argv, failures=(NsqError,))


if __name__ == "__main__":
    sys.exit(main())
