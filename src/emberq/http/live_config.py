"""/config/<option>: what it shows and changes, in nsqd and nsqadmin.

Every setting that a config file can hold can be read by its key. Two can be changed while the daemon runs, until its
next start: the log level and the nsqlookupds.

    shown            a string as it is, everything else as JSON: durations in nanoseconds, levels and versions as NSQ
                     numbers them
    log level        given as a bare word
    nsqlookupds      given as a JSON list of strings

    400 INVALID_OPTION   no such key, or one that cannot be changed
    400 INVALID_VALUE    a value that does not fit the key
    413 INVALID_VALUE    no value, or one that is too long (which the server refuses before)
"""

from __future__ import annotations

import json as json_parser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from emberq.base import log
from emberq.base.flag import LOG_LEVEL
from emberq.base.settings import SettingTable
from emberq.http.message import HttpError, Response, json, text

_LOG_LEVEL = "log_level"
"""The key of every daemon's log level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookupds:
    """How to read and change the nsqlookupds of a daemon."""

    key: str
    read: Callable[[], tuple[str, ...]]
    change: Callable[[tuple[str, ...]], None]
    accepts: Callable[[str], bool]
    """Whether a string is an address that the daemon could use."""


class LiveConfig:
    """The settings of a running daemon, its log level included."""

    def __init__(
        self,
        table: SettingTable,
        options: Any,
        *,
        lookupds: Lookupds,
        shown_as: Mapping[str, Callable[[Any], Any]],
        on_log_level: Callable[[], None] | None = None,
    ) -> None:
        """`options` are what `table` describes. `shown_as` converts values for display, by key.

        `on_log_level` is called when the log level was changed.
        """
        values = {setting.key: getattr(options, setting.attribute) for setting in table.options if setting.key}
        self._values = values | {key: show(values[key]) for key, show in shown_as.items()}
        self._lookupds = lookupds
        self._on_log_level = on_log_level

    def show(self, key: str) -> Response:
        """The answer to a GET; HttpError."""
        if key not in self._values:
            raise HttpError(400, "INVALID_OPTION")
        value = self._lookupds.read() if key == self._lookupds.key else self._values[key]
        return text(value) if isinstance(value, str) else json(value)

    def show_all(self) -> Response:
        """Every key with its value, as JSON."""
        return json(self._values | {self._lookupds.key: list(self._lookupds.read())})

    def change(self, key: str, body: bytes) -> Response:
        """The answer to a PUT; HttpError."""
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        if key == _LOG_LEVEL:
            self._values[key] = level = _parse_log_level(body)
            log.set_level(level)
            if self._on_log_level is not None:
                self._on_log_level()
        elif key == self._lookupds.key:
            self._lookupds.change(self._parse_addresses(body))
        else:
            raise HttpError(400, "INVALID_OPTION")
        return self.show(key)

    def _parse_addresses(self, body: bytes) -> tuple[str, ...]:
        try:
            value = json_parser.loads(body)
        except (ValueError, RecursionError) as wrong:
            raise HttpError(400, "INVALID_VALUE") from wrong
        accepts = self._lookupds.accepts
        if not isinstance(value, list) or not all(isinstance(item, str) and accepts(item) for item in value):
            raise HttpError(400, "INVALID_VALUE")
        return tuple(value)


def _parse_log_level(body: bytes) -> log.LogLevel:
    try:
        return LOG_LEVEL.from_text(body.decode("ascii"))
    except ValueError as wrong:  # no such level, or not even ASCII
        raise HttpError(400, "INVALID_VALUE") from wrong
