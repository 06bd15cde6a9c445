"""GET and PUT /config/<option>, as `live_config` says, for those whose address --allow-config-from-cidr allows.

Passwords in URLs are not shown. As in the reference being an admin is not needed. But where everybody has to log in, it
is: behind a proxy on the same machine every request comes from there.
"""

from __future__ import annotations

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.network import NetworkError, parse_network, parse_remote
from emberq.admin.access.role import Role
from emberq.admin.options import SETTINGS, Options
from emberq.admin.upstream import Cluster
from emberq.base.address import AddressError, parse_tcp_address
from emberq.base.secret import masked
from emberq.http.live_config import LiveConfig, Lookupds
from emberq.http.message import HttpError, Request, Response

MAX_VALUE_BYTES = 1024 * 1024


class ConfigApi:
    """The settings of nsqadmin, behind the gate."""

    def __init__(self, options: Options, cluster: Cluster, gate: Gate) -> None:
        self._gate = gate
        cidr = options.allow_config_from_cidr
        self._network = parse_network(cidr) if cidr else None
        self._config = LiveConfig(
            SETTINGS,
            options,
            lookupds=Lookupds(
                key="nsqlookupd_http_addresses",
                read=lambda: cluster.lookupds,
                change=cluster.ask_other_lookupds,
                accepts=_is_address,
            ),
            shown_as={"graphite_url": masked, "notification_http_endpoint": masked},
        )

    def get(self, request: Request, visitor: Visitor | None) -> Response:
        self._check(request, visitor)
        return self._config.show(request.params["option"])

    def put(self, request: Request, visitor: Visitor | None) -> Response:
        self._check(request, visitor)
        self._gate.check_source(request, visitor)
        return self._config.change(request.params["option"], request.body)

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


def _is_address(text: str) -> bool:
    try:
        return bool(parse_tcp_address(text).host)
    except AddressError:
        return False
