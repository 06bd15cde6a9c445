"""The `nsqlookupd` command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from emberq.base import process
from emberq.cli.startup import Finished, read_options, version_line
from emberq.lookupd.options import SETTINGS, Options, OptionsError

logger = logging.getLogger("emberq.cli.nsqlookupd")  # not __name__, which may be "__main__"


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd until it is told to stop; the exit status."""
    try:
        options = read_options(SETTINGS, Options, sys.argv[1:] if argv is None else argv).validated()
    except Finished as finished:
        return finished.status
    except OptionsError as error:
        return _refuse(error)
    return run(options)


def run(options: Options) -> int:
    """Run nsqlookupd with validated options; the exit status."""
    # Here and not above, so that --version, --help and mistakes are answered without loading the daemon.
    from emberq.lookupd.daemon import Nsqlookupd, StartError

    logger.info("%s", version_line(SETTINGS.program))
    process.prepare()
    try:
        stopped_by_signal = process.serve(lambda: Nsqlookupd(options))
    except StartError as error:
        return _refuse(error)
    return 0 if stopped_by_signal else 1


def _refuse(error: Exception) -> int:
    logger.critical("failed to instantiate nsqlookupd - %s", error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
