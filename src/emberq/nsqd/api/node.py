"""The node itself: what the API needs of the daemon (`Node`), /ping, /info, /drain, /config and /debug.

    GET  /ping                    is it well?
    GET  /ping?ready=true         and does it take messages? For load balancers of publishers, and readiness probes
    GET  /drain                   is it being drained, and what does it still hold?
    POST /drain                   take nothing new, and stop when consumers have emptied it
    DELETE /drain                 go on as before
    GET  /info                    who is it: versions, ports, what may be negotiated
    GET  /config                  every option, as a JSON object
    GET  /config/<option>         as `emberq.http.live_config` says; passwords in addresses of authorization servers
    PUT  /config/<option>         are not shown, and any string passes for the address of an nsqlookupd
    POST /debug/freememory        collect garbage and give free memory back to the system
    PUT  /debug/setblockrate      accepted for compatibility: there is no such sampling here

Numbers are written as NSQ's JSON encoder writes them.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import parse_qs

import emberq
from emberq.base import memory
from emberq.base.clock import Clock
from emberq.base.text import masked
from emberq.broker.broker import Broker
from emberq.broker.stats import ClientStats
from emberq.http.live_config import LiveConfig, Lookupds
from emberq.http.message import HttpError, Request, Response, json, plain
from emberq.nsqd.api.argument import TRUE_WORDS, parse_integer
from emberq.nsqd.drain import Drain
from emberq.nsqd.metrics import Memory
from emberq.nsqd.options import SETTINGS, NsqdOptions
from emberq.nsqd.publishing import PublishBatcher


class Node(Protocol):
    """A running nsqd, as the API needs it."""

    @property
    def options(self) -> NsqdOptions: ...

    @property
    def broker(self) -> Broker: ...

    @property
    def batcher(self) -> PublishBatcher: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def start_time_s(self) -> int:
        """When it started, seconds since the Unix epoch."""
        ...

    @property
    def tcp_port(self) -> int:
        """The port listened on; -1 for a Unix socket."""
        ...

    @property
    def http_port(self) -> int:
        """The port listened on; -1 for a Unix socket."""
        ...

    @property
    def lookupd_tcp_addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that nsqd registers with now."""
        ...

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """From here on, register with these."""
        ...

    def log_level_changed(self) -> None:
        """The log shows more from here on, or less."""
        ...

    async def metadata_saved(self) -> None:
        """Return when nsqd.dat is on disk with all that has happened so far; StorageError if it cannot be."""
        ...

    async def files_removed(self) -> None:
        """Return when the files of all that was deleted or emptied so far are gone; StorageError if some are not."""
        ...

    def producers(self) -> Iterator[ClientStats]:
        """The connections that have published, one by one."""
        ...

    def health(self) -> str:
        """`OK`, or `NOK - ` and what is wrong."""
        ...

    @property
    def draining(self) -> Drain:
        """Empties it, when asked to."""
        ...


# /ping and /info.


_WELL = plain("OK")


class InfoApi:
    """/ping and /info."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def ping(self, request: Request) -> Response:
        """For load balancers: 200 while messages can be stored; if it is to be ready, while they are taken, too."""
        health = self._node.health()
        if health != "OK":
            return plain(health, status=500)
        if self._node.draining.is_on and request.query().get("ready") in TRUE_WORDS:
            return plain("NOK - draining", status=503)
        return _WELL

    def info(self, _request: Request) -> Response:
        """For nsqadmin and clients: versions, ports and what may be negotiated."""
        node, options = self._node, self._node.options
        try:
            hostname = socket.gethostname()
        except OSError as failure:
            raise HttpError(500, str(failure)) from failure
        return json(
            {
                "version": emberq.NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": hostname,
                "http_port": node.http_port,
                "tcp_port": node.tcp_port,
                "start_time": node.start_time_s,
                "max_heartbeat_interval": options.max_heartbeat_interval_ns,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
                "emberq_version": emberq.__version__,
            }
        )


# /drain.


class DrainApi:
    """/drain."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def get(self, _request: Request) -> Response:
        return self._answer()

    def post(self, _request: Request) -> Response:
        self._node.draining.begin()
        return self._answer()

    def delete(self, _request: Request) -> Response:
        self._node.draining.cancel()
        return self._answer()

    def _answer(self) -> Response:
        report = self._node.draining.report()
        if report is None:
            return json({"draining": False})
        return json(
            {
                "draining": True,
                "since": report.since_s,
                "topic_count": report.topic_count,
                "message_count": report.message_count,
                "topics": [
                    {
                        "topic_name": held.topic,
                        "depth": held.depth,
                        "in_flight_count": held.in_flight,
                        "deferred_count": held.deferred,
                        "waits_for": held.waits_for,
                    }
                    for held in report.topics
                ],
            }
        )


# /config.


class ConfigApi:
    """/config/<option>."""

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
            on_log_level=node.log_level_changed,
        )

    def get(self, request: Request) -> Response:
        return self._config.show(request.params["option"])

    def get_all(self, _request: Request) -> Response:
        return self._config.show_all()

    def put(self, request: Request) -> Response:
        return self._config.change(request.params["option"], request.body)


def _masked_all(addresses: tuple[str, ...]) -> list[str]:
    return [masked(address) for address in addresses]


def _shortest_all(numbers: tuple[float, ...]) -> list[float]:
    return [shortest(number) for number in numbers]


def shortest(value: float) -> float:
    """A whole number without a fraction: 1, where Python would write 1.0."""
    return int(value) if value.is_integer() else value


# /debug.

MAX_SWEPT_BLOCKS = 1_000_000
"""With more blocks in use a full collection would stop the daemon for longer than a tenth of a second."""
MAX_FORM_BYTES = 1024
"""The one parameter of /debug/setblockrate may come as a form."""


async def free_memory(_request: Request) -> Response:
    """Free what can be freed without stopping the daemon for long."""
    if sys.getallocatedblocks() <= MAX_SWEPT_BLOCKS:
        gc.collect()
    await asyncio.to_thread(memory.give_back)
    return plain("OK")


def set_block_rate(request: Request) -> Response:
    """Check the parameter, as the reference does."""
    rate = _form_value(request, "rate")
    if parse_integer(rate) is None:
        return plain(f'invalid block rate : parsing "{rate}": invalid syntax', status=400)
    return plain("OK")


def _form_value(request: Request, name: str) -> str:
    """A parameter from the body or the query, empty if it is in neither."""
    form = parse_qs(request.body.decode("latin-1"))
    return form[name][0] if name in form else request.query().get(name) or ""
