"""nsq_stat: the figures of a channel over the whole cluster, one row per interval, as vmstat does it for a machine.

    ------rate------+----------------depth----------------+--------------metadata---------------
    ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
         12      10 |       3       3       0     1     0 |       0       0           42       1

`ingress` is how many messages per second came, `egress` how many left the queue. Both need two looks at the cluster, so
the first look gives no row. The header is repeated every HEADER_INTERVAL looks, for those who scroll. Figures of a part
of the cluster would be wrong without looking wrong, so one daemon that does not answer ends the tool.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import INT64_MAX
from emberq.base.program import HANG_UP_SIGNALS, STOP_SIGNALS, ToolError, run_tool
from emberq.base.settings import VERSION, Group, OptionsError, SettingTable, read_secret
from emberq.base.text import forget_output
from emberq.base.tls import TlsFileError, client_context
from emberq.client.error import NsqError
from emberq.cluster.cluster import Cluster
from emberq.cluster.stats import ChannelFigures, total_channel
from emberq.cluster.topology import ClusterAddresses
from emberq.cluster.upstream import Findings, UpstreamsFailedError
from emberq.tools.client_flags import LOOKUPD_SECRET_FILE_MEANING, SECRET_FILE_MEANING, read_lookupd_secret

TOOL = "nsq_stat"
HEADER_INTERVAL = 25
UNLIMITED = INT64_MAX
"""More reports than a run can ever make."""

HEADER = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"
)

T = TypeVar("T")

_WHERE = Group("Where to look")
_WHAT = Group("What to report")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatOptions:
    """The flags of nsq_stat."""

    topic: str = _WHAT.text("", "topic to report on", placeholder="topic")
    channel: str = _WHAT.text("", "channel to report on", placeholder="channel")
    interval_ns: int = _WHAT.duration("2s", "time between reports")
    count: int = _WHAT.integer(UNLIMITED, "number of reports", default_text="unlimited")
    nsqd_http_address: tuple[str, ...] = _WHERE.strings("HTTP address of an nsqd", placeholder="address")
    lookupd_http_address: tuple[str, ...] = _WHERE.strings("HTTP address of an nsqlookupd", placeholder="address")
    http_client_connect_timeout_ns: int = _WHERE.duration("2s", "longest wait for a connection")
    http_client_request_timeout_ns: int = _WHERE.duration("5s", "longest wait for an answer")
    http_client_tls_root_ca_file: str = _WHERE.text(
        "", "authorities to verify the certificates of daemons with", placeholder="file"
    )
    http_client_tls_cert: str = _WHERE.text("", "certificate to show to daemons", placeholder="file")
    http_client_tls_key: str = _WHERE.text("", "key of that certificate", placeholder="file")
    auth_secret_file: str = _WHERE.text("", SECRET_FILE_MEANING, placeholder="file")
    lookupd_secret_file: str = _WHERE.text("", LOOKUPD_SECRET_FILE_MEANING, placeholder="file")

    def validated(self) -> StatOptions:
        """These options. OptionsError if they cannot work."""
        if not self.topic or not self.channel:
            raise OptionsError("--topic and --channel are required")
        for flag, value in (
            ("interval", self.interval_ns),
            ("http-client-connect-timeout", self.http_client_connect_timeout_ns),
            ("http-client-request-timeout", self.http_client_request_timeout_ns),
            ("count", self.count),
        ):
            if value <= 0:
                raise OptionsError(f"--{flag} should be positive")
        self._check_addresses()
        return self

    def _check_addresses(self) -> None:
        if not self.nsqd_http_address and not self.lookupd_http_address:
            raise OptionsError("--nsqd-http-address or --lookupd-http-address required")
        if self.nsqd_http_address and self.lookupd_http_address:
            raise OptionsError("use --nsqd-http-address or --lookupd-http-address not both")
        for flag, addresses in (("nsqd", self.nsqd_http_address), ("lookupd", self.lookupd_http_address)):
            if any(address.startswith("http") and not address.startswith("https://") for address in addresses):
                raise OptionsError(f"--{flag}-http-address error - address should not contain scheme")


SETTINGS = SettingTable(TOOL, options_class=StatOptions, command=(VERSION,))


def row(before: ChannelFigures, now: ChannelFigures, *, interval_ns: int) -> str:
    """One report, from two looks that lie an interval apart."""
    came = now.message_count - before.message_count
    left = came - (now.depth - before.depth)
    return (
        f"{_rate(came, interval_ns):7} {_rate(left, interval_ns):7} |"
        f" {now.depth:7} {now.memory_depth:7} {now.backend_depth:7} {now.in_flight_count:5} {now.deferred_count:5} |"
        f" {now.requeue_count:7} {now.timeout_count:7} {now.message_count:12} {now.client_count:7}"
    )


def _rate(count: int, interval_ns: int) -> int:
    return int(count * NS_PER_SECOND / interval_ns)


async def run(options: StatOptions, stop_asked: asyncio.Event) -> None:
    """Report until there were enough reports, or the stop is asked for."""
    reporting = asyncio.ensure_future(_Reporter(options).run())
    stopping = asyncio.ensure_future(stop_asked.wait())
    await asyncio.wait([reporting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if reporting.done():
        reporting.result()
    else:
        reporting.cancel()


def _tls(options: StatOptions) -> ssl.SSLContext | None:
    """How to speak TLS with daemons; None: by the authorities of the system. OptionsError."""
    files = options.http_client_tls_root_ca_file, options.http_client_tls_cert, options.http_client_tls_key
    if not any(files):
        return None
    ca_file, cert_file, key_file = files
    try:
        return client_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    except TlsFileError as failure:
        raise OptionsError(f"--http-client-tls-root-ca-file, -cert, -key: {failure}") from failure


class _Reporter:
    """Looks at the cluster every interval, and prints a row."""

    def __init__(self, options: StatOptions) -> None:
        self._options = options
        secret = read_secret(options.auth_secret_file)
        self._cluster = Cluster(
            ClusterAddresses(lookupds=options.lookupd_http_address, nsqds=options.nsqd_http_address),
            connect_timeout_ns=options.http_client_connect_timeout_ns,
            request_timeout_ns=options.http_client_request_timeout_ns,
            tls=_tls(options),
            secret=secret,
            lookupd_secret=read_lookupd_secret(options.lookupd_secret_file) or secret,
        )

    async def run(self) -> None:
        interval_ns = self._options.interval_ns
        loop = asyncio.get_running_loop()
        look_at_s = loop.time()
        before: ChannelFigures | None = None
        for look in range(self._options.count + 1):
            # From the start of one look to the next: the time that asking takes would make rates wrong.
            await asyncio.sleep(look_at_s - loop.time())
            now = await self._look()
            look_at_s = max(look_at_s + interval_ns / NS_PER_SECOND, loop.time())
            if look % HEADER_INTERVAL == 0:
                _print(HEADER)
            if before is not None:
                _print(row(before, now, interval_ns=interval_ns))
            before = now

    async def _look(self) -> ChannelFigures:
        topic, channel = self._options.topic, self._options.channel
        producers = await _whole("topic producers", self._cluster.topology.topic_producers(topic))
        asking = self._cluster.observer.of_producers(producers, topic=topic, channel=channel)
        topics = await _whole("nsqd stats", asking)
        parts = [part for of_topic in topics for part in of_topic.channels if part.channel_name == channel]
        if not parts:
            raise ToolError(f"ERROR: failed to find channel({channel}) in stats metadata for topic({topic})")
        return total_channel(parts)


async def _whole(what: str, asking: Awaitable[Findings[T]]) -> T:
    """The answer, if every daemon answered. ToolError if not."""
    try:
        found = await asking
    except UpstreamsFailedError as failure:
        raise ToolError(f"ERROR: failed to get {what} - {failure}") from failure
    if found.warnings:
        raise ToolError(f"ERROR: failed to get {what} - {'; '.join(found.warnings)}")
    return found.value


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as failure:
        forget_output()
        raise ToolError(f"failed to write to stdout - {failure.strerror}") from failure


def main(argv: Sequence[str] | None = None) -> int:
    """Report on a channel until there were enough reports or it is told to stop; the exit status."""
    return run_tool(
        SETTINGS, StatOptions, run, argv, stop_signals=(*STOP_SIGNALS, *HANG_UP_SIGNALS), failures=(NsqError,)
    )
