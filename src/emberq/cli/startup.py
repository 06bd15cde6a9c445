"""From a daemon's command line to its options, or to the exit that the command line called for.

0  --help, --version
1  a config file or a setting that cannot be used: one FATAL log line
2  a mistake on the command line: the mistake and the usage on standard error
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from emberq.base import log, process
from emberq.base.goflag import FlagError, HelpRequested
from emberq.base.kinds import SettingError
from emberq.base.settings import OptionsError, SettingTable
from emberq.base.usage import print_usage, version_line

logger = logging.getLogger(__name__)


class DaemonOptions(Protocol):
    """What the options of every daemon have."""

    @property
    def log_prefix(self) -> str: ...

    @property
    def log_level(self) -> log.LogLevel: ...

    @property
    def log_format(self) -> log.LogFormat: ...


class ValidatedOptions(DaemonOptions, Protocol):
    """Options that can tell whether they can work."""

    def validated(self) -> Self:
        """The options to run with; OptionsError for what cannot work."""
        ...


OptionsT = TypeVar("OptionsT", bound=DaemonOptions)
ValidatedT = TypeVar("ValidatedT", bound=ValidatedOptions)


class Finished(Exception):
    """There is nothing to run: the process ends with `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def read_options(table: SettingTable, options_class: type[OptionsT], argv: Sequence[str]) -> OptionsT:
    """The options that flags and config file ask for, with logging set up as they say; or `Finished`."""
    try:
        given = table.load(argv)
    except HelpRequested:
        print_usage(table)
        raise Finished(0) from None
    except FlagError as error:
        print(error, file=sys.stderr)
        print_usage(table)
        raise Finished(2) from error
    except SettingError as error:
        log.configure(prefix=f"[{table.program}] ", level=log.LogLevel.INFO)
        logger.critical("%s", error)
        raise Finished(1) from error
    if given.version_asked:
        print(version_line(table.program))
        raise Finished(0)
    options = options_class(**given.options)
    log.configure(
        prefix=options.log_prefix,
        level=options.log_level,
        log_format=options.log_format,
        program=table.program,
    )
    for key in given.unknown_keys:
        logger.warning("config file: %s is not a setting of %s, ignored", key, table.program)
    return options


def run_daemon(
    table: SettingTable,
    options_class: type[ValidatedT],
    load: Callable[[], Callable[[ValidatedT], process.Daemon]],
    argv: Sequence[str] | None,
) -> int:
    """Run a daemon until it is told to stop; the exit status.

    `load` imports it and gives its class. It is called late, because --version, --help and mistakes should be answered
    without it.
    """
    try:
        options = read_options(table, options_class, sys.argv[1:] if argv is None else argv).validated()
    except Finished as finished:
        return finished.status
    except OptionsError as error:
        return _refuse(table.program, error)
    logger.info("%s", version_line(table.program))
    make_daemon = load()
    process.prepare()
    try:
        stopped_by_signal = process.serve(lambda: make_daemon(options))
    except process.StartError as error:
        return _refuse(table.program, error)
    return 0 if stopped_by_signal else 1


def _refuse(program: str, error: Exception) -> int:
    logger.critical("failed to instantiate %s - %s", program, error)
    return 1
