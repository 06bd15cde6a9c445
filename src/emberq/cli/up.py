"""The `emberq up` command: a whole NSQ on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from emberq.base import process
from emberq.base.kinds import SettingError
from emberq.cli.banner import banner
from emberq.cli.startup import Finished, read_options
from emberq.cli.up_options import SETTINGS, Options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stack until it is told to stop; the exit status."""
    try:
        options = read_options(SETTINGS, Options, sys.argv[1:] if argv is None else argv)
        SETTINGS.check_ranges(options)
    except Finished as finished:
        return finished.status
    except SettingError as wrong:
        print(f"emberq up: {wrong}", file=sys.stderr)
        return 1
    return run(options)


def run(options: Options) -> int:
    """Run the stack; the exit status."""
    # Here and not above, so that --help and mistakes are answered without loading the daemons.
    from emberq.cli.stack import Stack, StackError

    def announce(stack: Stack) -> None:
        print(
            banner(lookupd=stack.lookupd, nsqds=stack.nsqds, admin=stack.admin, data_path=options.data_path),
            flush=True,
        )

    process.prepare()
    try:
        stopped_by_signal = process.serve(lambda: Stack(options, on_start=announce))
    except StackError as failure:
        print(f"emberq up: {failure}", file=sys.stderr)
        return 1
    print(f"Stopped. Messages are in {options.data_path}." if stopped_by_signal else "Stopped after a failure.")
    return 0 if stopped_by_signal else 1


if __name__ == "__main__":
    sys.exit(main())
