"""The `nsq_to_file` command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from emberq.client.error import NsqError
from emberq.tools.program import run_tool
from emberq.tools.to_file.options import SETTINGS, Options


def main(argv: Sequence[str] | None = None) -> int:
    """Write topics to files until told to stop; the exit status."""
    return run_tool(SETTINGS, Options, _run, argv, takes_arguments=False, failures=(NsqError,))


async def _run(options: Options, stop_asked: asyncio.Event) -> None:
    from emberq.tools.to_file.archive import run  # late: --version, --help and mistakes are answered without it

    await run(options, stop_asked)


if __name__ == "__main__":
    sys.exit(main())
