"""GET /ping and GET /info: is it well, and who is it?"""

from __future__ import annotations

import socket

import emberq
from emberq.http.message import HttpError, Request, Response, json, plain
from emberq.nsqd.api.node import Node


class InfoApi:
    """Answers for the node as a whole."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def ping(self, _request: Request) -> Response:
        """What load balancers ask: 200 while messages can be stored."""
        health = self._node.health()
        return plain(health, status=200 if health == "OK" else 500)

    def info(self, _request: Request) -> Response:
        """What nsqadmin and clients ask: versions, ports and what may be negotiated."""
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
