"""GET and PUT /config/<option>, as `live_config` says.

Passwords in the addresses of authorization servers are not shown. Any string passes for the address of an nsqlookupd.
"""

from __future__ import annotations

from emberq.base.secret import masked
from emberq.http.live_config import LiveConfig, Lookupds
from emberq.http.message import Request, Response
from emberq.nsqd.api.node import Node
from emberq.nsqd.api.number import shortest
from emberq.nsqd.options import SETTINGS


class ConfigApi:
    """The settings of the node."""

    def __init__(self, node: Node) -> None:
        self._config = LiveConfig(
            SETTINGS,
            node.options,
            lookupds=Lookupds(
                key="nsqlookupd_tcp_addresses",
                read=lambda: node.lookupd_tcp_addresses,
                change=node.set_lookupd_tcp_addresses,
                accepts=lambda _address: True,
            ),
            shown_as={
                "auth_http_addresses": _masked_all,
                "e2e_processing_latency_percentiles": _shortest_all,
            },
        )

    def get(self, request: Request) -> Response:
        return self._config.show(request.params["option"])

    def put(self, request: Request) -> Response:
        return self._config.change(request.params["option"], request.body)


def _masked_all(addresses: tuple[str, ...]) -> list[str]:
    return [masked(address) for address in addresses]


def _shortest_all(numbers: tuple[float, ...]) -> list[float]:
    return [shortest(number) for number in numbers]
