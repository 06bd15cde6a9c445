"""GET and PUT /config/<option>, for those whose address --allow-config-from-cidr allows.

Every setting that a config file can hold can be read by its key there. Two can be changed while nsqadmin runs, until
its next start: its nsqlookupds and its log level. A string is shown as it is, everything else as JSON: durations in
nanoseconds, levels as NSQ numbers them. Passwords in URLs are not shown.

As in the reference being an admin is not needed. But where everybody has to log in, it is: behind a proxy on the same
machine every request comes from there.
"""

from __future__ import annotations

import json as json_parser
from typing import Any

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.network import NetworkError, parse_network, parse_remote
from emberq.admin.access.role import Role
from emberq.admin.options import SETTINGS, Options
from emberq.admin.upstream import Cluster
from emberq.base import log
from emberq.base.address import AddressError, parse_tcp_address
from emberq.base.kinds import LOG_LEVEL
from emberq.base.secret import masked
from emberq.http.message import HttpError, Request, Response, json, text

MAX_VALUE_BYTES = 1024 * 1024

_LOG_LEVEL = "log_level"
_LOOKUPD_ADDRESSES = "nsqlookupd_http_addresses"
_URLS = ("graphite_url", "notification_http_endpoint")

_ATTRIBUTES = {setting.key: setting.attribute for setting in SETTINGS.options if setting.key}
"""Where the value of each key stands in the options."""


class ConfigApi:
    """Owns the log level from the start on; the nsqlookupds are the cluster's."""

    def __init__(self, options: Options, cluster: Cluster, gate: Gate) -> None:
        self._options = options
        self._cluster = cluster
        self._gate = gate
        self._log_level = options.log_level
        cidr = options.allow_config_from_cidr
        self._network = parse_network(cidr) if cidr else None

    def get(self, request: Request, visitor: Visitor | None) -> Response:
        self._check(request, visitor)
        return self._show(request.params["option"])

    def put(self, request: Request, visitor: Visitor | None) -> Response:
        """The server has seen to it that the body is not too big."""
        self._check(request, visitor)
        self._gate.check_source(request, visitor)
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        key = request.params["option"]
        if key == _LOG_LEVEL:
            self._log_level = _parse_log_level(request.body)
            log.set_level(self._log_level)
        elif key == _LOOKUPD_ADDRESSES:
            self._cluster.ask_other_lookupds(_parse_addresses(request.body))
        else:
            raise HttpError(400, "INVALID_OPTION")
        return self._show(key)

    def _check(self, request: Request, visitor: Visitor | None) -> None:
        if self._network is not None:
            try:
                address = parse_remote(request.remote_address)
            except NetworkError as wrong:
                raise HttpError(400, "INVALID_REMOTE_ADDR") from wrong
            if address not in self._network:
                raise HttpError(403, "FORBIDDEN")
        if not self._gate.is_open and (visitor is None or visitor.role is not Role.ADMIN):
            raise HttpError(403, "FORBIDDEN")

    def _show(self, key: str) -> Response:
        value = self._value(key)
        return text(value) if isinstance(value, str) else json(value)

    def _value(self, key: str) -> Any:
        if key == _LOG_LEVEL:
            return self._log_level
        if key == _LOOKUPD_ADDRESSES:
            return self._cluster.lookupds
        if key not in _ATTRIBUTES:
            raise HttpError(400, "INVALID_OPTION")
        value = getattr(self._options, _ATTRIBUTES[key])
        return masked(value) if key in _URLS else value


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
    if not isinstance(value, list) or not all(map(_is_address, value)):
        raise HttpError(400, "INVALID_VALUE")
    return tuple(value)


def _is_address(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_tcp_address(value).host)
    except AddressError:
        return False
