"""The settings of `emberq up`."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.kinds import LOG_LEVEL
from emberq.base.log import LogFormat, LogLevel
from emberq.base.settings import GENERAL, Group, SettingTable

MAX_NSQDS = 32
SECOND_NSQD_SHIFT = 100
NEXT_NSQD_SHIFT = 10
"""The first nsqd has 4150 and 4151, the second 4250 and 4251, the third 4260 and 4261: none has nsqlookupd's."""

_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # noqa: S104 - only if the user asks for it
_GENERAL = Group(GENERAL)
_STACK = Group("What to start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to start, and where."""

    log_level: LogLevel = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_LEVEL, LogLevel.WARN, "least grave log lines to show: debug, info, warn, error or fatal"
    )
    log_prefix: str = _GENERAL.text("[emberq] ", "start of every log line")
    nsqd: int = _STACK.integer(
        1, "how many nsqds; several run as processes of their own", at_least=1, at_most=MAX_NSQDS
    )
    host: str = _STACK.text(
        "127.0.0.1", "address to listen on; only a loopback address keeps others out", placeholder="address"
    )
    data_path: str = _STACK.text(
        "emberq-data", "directory for messages; made if it is not there", placeholder="directory"
    )
    no_journal: bool = _STACK.boolean(
        "keep new topics as NSQ does: in memory and, beyond that, in disk queues; without it they are journaled",
        default=False,
    )
    nsqd_tcp_port: int = _STACK.integer(4150, "TCP port of nsqd; 0 means a free one", at_least=0, at_most=MAX_PORT)
    nsqd_http_port: int = _STACK.integer(4151, "HTTP port of nsqd; 0 means a free one", at_least=0, at_most=MAX_PORT)
    lookupd_tcp_port: int = _STACK.integer(
        4160, "TCP port of nsqlookupd; 0 means a free one", at_least=0, at_most=MAX_PORT
    )
    lookupd_http_port: int = _STACK.integer(
        4161, "HTTP port of nsqlookupd; 0 means a free one", at_least=0, at_most=MAX_PORT
    )

    admin_http_port: int = _STACK.integer(
        4171, "HTTP port of nsqadmin; 0 means a free one", at_least=0, at_most=MAX_PORT
    )

    @property
    def log_format(self) -> LogFormat:
        """What is shown on a terminal is for people."""
        return LogFormat.TEXT

    @property
    def journal(self) -> bool:
        """Whether new topics are journaled."""
        return not self.no_journal

    def address(self, port: int) -> str:
        """Where to listen, with this port."""
        return str(TcpAddress(self.host, port))

    @property
    def broadcast_address(self) -> str:
        """What others are told to connect to."""
        return socket.gethostname() if self.host in _EVERY_INTERFACE else self.host

    def nsqd_ports(self, number: int) -> tuple[int, int]:
        """TCP and HTTP port of nsqd `number`, counted from 0."""
        shift = SECOND_NSQD_SHIFT + (number - 1) * NEXT_NSQD_SHIFT if number else 0
        tcp_port, http_port = self.nsqd_tcp_port, self.nsqd_http_port
        return (tcp_port + shift if tcp_port else 0), (http_port + shift if http_port else 0)


SETTINGS = SettingTable("emberq up", options_class=Options, command=())
