"""GET and PUT /config/<option>.

Every setting that a config file can hold can be read by its key there. Two can be changed while nsqd runs, until its
next start: its nsqlookupds and its log level.

A string is shown as it is, everything else as JSON: durations in nanoseconds, levels and versions as NSQ numbers them.
"""

from __future__ import annotations

import json as json_parser
from typing import Any

from emberq.base import log
from emberq.base.kinds import LOG_LEVEL
from emberq.base.secret import masked
from emberq.http.message import HttpError, Request, Response, json, text
from emberq.nsqd.api.node import Node
from emberq.nsqd.api.number import shortest
from emberq.nsqd.options import SETTINGS

_LOG_LEVEL = "log_level"
_LOOKUPD_ADDRESSES = "nsqlookupd_tcp_addresses"
_AUTH_ADDRESSES = "auth_http_addresses"

_ATTRIBUTES = {setting.key: setting.attribute for setting in SETTINGS.options if setting.key}
"""Where the value of each key stands in the options."""


class ConfigApi:
    """Owns the log level from the start on; the nsqlookupds are the node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log_level = node.options.log_level

    def get(self, request: Request) -> Response:
        return self._show(request.params["option"])

    def put(self, request: Request) -> Response:
        """The server has seen to it that the body is not too big."""
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        key = request.params["option"]
        if key == _LOG_LEVEL:
            self._log_level = _parse_log_level(request.body)
            log.set_level(self._log_level)
        elif key == _LOOKUPD_ADDRESSES:
            self._node.set_lookupd_tcp_addresses(_parse_addresses(request.body))
        else:
            raise HttpError(400, "INVALID_OPTION")
        return self._show(key)

    def _show(self, key: str) -> Response:
        value = self._value(key)
        if isinstance(value, str):
            return text(value)
        if isinstance(value, tuple):
            return json([shortest(item) if isinstance(item, float) else item for item in value])
        return json(value)

    def _value(self, key: str) -> Any:
        if key == _LOG_LEVEL:
            return self._log_level
        if key == _LOOKUPD_ADDRESSES:
            return self._node.lookupd_tcp_addresses
        if key not in _ATTRIBUTES:
            raise HttpError(400, "INVALID_OPTION")
        value = getattr(self._node.options, _ATTRIBUTES[key])
        if key == _AUTH_ADDRESSES:
            return tuple(map(masked, value))
        return value


def _parse_log_level(body: bytes) -> log.LogLevel:
    try:
        return LOG_LEVEL.from_text(body.decode("ascii"))
    except ValueError as wrong:  # no such level, or not even ASCII
        raise HttpError(400, "INVALID_VALUE") from wrong


def _parse_addresses(body: bytes) -> tuple[str, ...]:
    try:
        value = json_parser.loads(body)
    except (ValueError, RecursionError) as wrong:
        raise HttpError(400, "INVALID_VALUE") from wrong
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise HttpError(400, "INVALID_VALUE")
    return tuple(value)
