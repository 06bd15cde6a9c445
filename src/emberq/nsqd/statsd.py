r"""Pushing statistics to a statsd daemon.

A push is a set of lines, each a metric, packed into as few UDP datagrams as the size limit allows:

    nsq.my_host_4151.topic.orders.message_count:17|c\n      c: counted since the previous push
    nsq.my_host_4151.topic.orders.depth:3|g\n               g: as it is now
    ^prefix          ^metric                ^value

The datagrams of a push are spread evenly over the interval less a second, so that thousands of topics do not come as
one burst that the receiver drops. An interval of a second or less leaves no room for that; then they leave at once.

The lines (`Report`), their packing (`pack`) and the time between datagrams (`gap_ns`) are decided without I/O;
`StatsdPusher` does the I/O. The address is looked up for each push, because statsd daemons move. If that takes longer
than a second the push is left out, and its counts go into the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from emberq.base.address import AddressError, TcpAddress, parse_tcp_address
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.stats import ChannelStats, LatencySummary, TopicStats
from emberq.http.body import Assembly
from emberq.nsqd.metrics import MemoryStats
from emberq.wire.parameter import is_ephemeral

CONNECT_TIMEOUT_S = 1.0
SLACK_NS = NS_PER_SECOND
"""The last datagram of a push leaves so long before the next push."""

_log = logging.getLogger(__name__)


# The lines of a push.


def expand_prefix(prefix: str, *, host: str, http_port: int) -> str:
    """`--statsd-prefix` with `%s` replaced by this nsqd's host and port; it ends in a dot unless it is empty."""
    identity = str(TcpAddress(host, http_port)).replace(".", "_").replace(":", "_")
    expanded = prefix.replace("%s", identity)
    return expanded if not expanded or expanded.endswith(".") else f"{expanded}."


class Report:
    """Writes the lines of each push. Owned by the pusher; remembers the counters of the last push."""

    def __init__(self, *, prefix: str, with_ephemeral: bool = True) -> None:
        self._prefix = prefix
        self._with_ephemeral = with_ephemeral
        self._counted: dict[str, int] = {}
        """The value of each counter at the last push, by metric. A counter that no longer exists drops out."""
        self._counting: dict[str, int] = {}
        """The same, of the push being written."""

    def lines(self, topics: Iterable[TopicStats], memory: MemoryStats | None) -> Iterator[bytes]:
        """All lines of a push; none about memory if `memory` is None."""
        self._counting = {}
        for topic in topics:
            if self._includes(topic.name):
                yield from self._topic(topic)
        if memory is not None:
            yield from self._memory(memory)
        self._counted = self._counting

    def _includes(self, name: str) -> bool:
        return self._with_ephemeral or not is_ephemeral(name)

    def _topic(self, topic: TopicStats) -> Iterator[bytes]:
        key = f"topic.{topic.name}."
        yield self._counter(f"{key}message_count", topic.message_count)
        yield self._counter(f"{key}message_bytes", topic.message_bytes)
        yield self._gauge(f"{key}depth", topic.depth)
        yield self._gauge(f"{key}backend_depth", topic.backend_depth)
        yield from self._latency(key, topic.e2e)
        for channel in topic.channels:
            if self._includes(channel.name):
                yield from self._channel(f"{key}channel.{channel.name}.", channel)

    def _channel(self, key: str, channel: ChannelStats) -> Iterator[bytes]:
        yield self._counter(f"{key}message_count", channel.message_count)
        yield self._gauge(f"{key}depth", channel.depth)
        yield self._gauge(f"{key}backend_depth", channel.backend_depth)
        yield self._gauge(f"{key}in_flight_count", channel.in_flight_count)
        yield self._gauge(f"{key}deferred_count", channel.deferred_count)
        yield self._counter(f"{key}requeue_count", channel.requeue_count)
        yield self._counter(f"{key}timeout_count", channel.timeout_count)
        yield self._gauge(f"{key}clients", channel.client_count)
        yield from self._latency(key, channel.e2e)

    def _latency(self, key: str, summary: LatencySummary) -> Iterator[bytes]:
        for percentile in summary.percentiles or ():
            # Rounded to whole percent as in the reference, so that 0.999 and 1.0 have one name.
            yield self._gauge(f"{key}e2e_processing_latency_{percentile.quantile * 100:.0f}", percentile.value_ns)

    def _memory(self, memory: MemoryStats) -> Iterator[bytes]:
        yield self._gauge("mem.heap_objects", memory.heap_objects)
        yield self._gauge("mem.heap_idle_bytes", memory.heap_idle_bytes)
        yield self._gauge("mem.heap_in_use_bytes", memory.heap_in_use_bytes)
        yield self._gauge("mem.heap_released_bytes", memory.heap_released_bytes)
        yield self._gauge("mem.gc_pause_usec_100", memory.gc_pause_usec_100)
        yield self._gauge("mem.gc_pause_usec_99", memory.gc_pause_usec_99)
        yield self._gauge("mem.gc_pause_usec_95", memory.gc_pause_usec_95)
        yield self._gauge("mem.next_gc_bytes", memory.next_gc_bytes)
        yield self._counter("mem.gc_runs", memory.gc_total_runs)

    def _gauge(self, metric: str, value: int) -> bytes:
        return f"{self._prefix}{metric}:{value}|g\n".encode()

    def _counter(self, metric: str, total: int) -> bytes:
        counted = self._counted.get(metric, 0)
        self._counting[metric] = total
        # A total below the last one: the topic or channel was deleted and created again.
        increase = total - counted if total >= counted else total
        return f"{self._prefix}{metric}:{increase}|c\n".encode()


# Packing and pacing.


def pack(lines: Iterable[bytes], *, max_bytes: int) -> Iterator[bytes]:
    """Whole lines in datagrams of at most `max_bytes`; a longer line has a datagram to itself."""
    pending: list[bytes] = []
    pending_bytes = 0
    for line in lines:
        if pending and pending_bytes + len(line) > max_bytes:
            yield b"".join(pending)
            pending, pending_bytes = [], 0
        pending.append(line)
        pending_bytes += len(line)
    if pending:
        yield b"".join(pending)


def gap_ns(*, interval_ns: int, datagram_count: int) -> int:
    """The time between two datagrams of a push."""
    return max(0, interval_ns - SLACK_NS) // max(1, datagram_count)


# Sending.


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsdConfig:
    """Where, how often and how to push."""

    address: str
    interval_ns: int = 60 * NS_PER_SECOND
    prefix: str = ""
    """As `expand_prefix` returns it."""
    max_datagram_bytes: int = 508
    with_memory: bool = True
    with_ephemeral: bool = True


class _Receiver(asyncio.DatagramProtocol):
    """Statsd does not answer, but the network reports a port on which no process listens."""

    def __init__(self, address: str) -> None:
        self._address = address

    def error_received(self, exc: Exception) -> None:
        _log.debug("STATSD: %s does not take what we send - %s", self._address, exc)


Connect = Callable[[str], Awaitable[asyncio.DatagramTransport]]


async def connect_udp(address: str) -> asyncio.DatagramTransport:
    """A socket to `host:port`; AddressError or OSError if the address is wrong or cannot be looked up."""
    target = parse_tcp_address(address)
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Receiver(address), remote_addr=(target.host or "localhost", target.port)
    )
    return transport


class StatsdPusher:
    """Pushes from `start` to `stop`. Owned by the daemon; lives in the loop's thread."""

    def __init__(
        self,
        config: StatsdConfig,
        *,
        clock: Clock,
        timers: Timers,
        read_topics: Callable[[], Generator[None, None, tuple[TopicStats, ...]]],
        memory: Callable[[], MemoryStats],
        connect: Connect = connect_udp,
    ) -> None:
        self._config = config
        self._connect = connect
        self._clock = clock
        self._read_topics = read_topics
        self._memory = memory
        self._report = Report(prefix=config.prefix, with_ephemeral=config.with_ephemeral)
        self._push_alarm = timers.alarm(self._push)
        self._send_alarm = timers.alarm(self._send)
        self._beginning: asyncio.Task[None] | None = None
        """Looks up the address and writes the datagrams. With thousands of topics that takes many turns of the loop."""
        self._assembly = Assembly()
        self._transport: asyncio.DatagramTransport | None = None
        self._datagrams: deque[bytes] = deque()
        """What is left of the push under way."""
        self._gap_ns = 0
        self._next_due_ns = 0
        """When the first of `_datagrams` leaves."""

    def start(self) -> None:
        self._push_alarm.set(self._clock.monotonic_ns() + self._config.interval_ns)

    async def stop(self) -> None:
        """Stop; the rest of a push under way is dropped."""
        _log.info("STATSD: closing")
        self._push_alarm.cancel()
        if self._beginning is not None:
            beginning = self._beginning
            beginning.cancel()
            await asyncio.wait([beginning])
        self._end_push()

    def _push(self) -> None:
        self._push_alarm.set(self._clock.monotonic_ns() + self._config.interval_ns)
        if self._beginning is not None:
            return  # the interval is shorter than the look-up of the address takes
        self._end_push()
        self._beginning = asyncio.get_running_loop().create_task(self._connect_and_push())

    async def _connect_and_push(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._transport = await self._connect(self._config.address)
            topics = await self._assembly.run(self._read_topics())
            self._begin_push(await self._assembly.run(self._write(topics)))
        except (AddressError, OSError) as failure:
            reason = "timed out" if isinstance(failure, TimeoutError) else failure
            _log.error("failed to create UDP socket to statsd(%s) - %s", self._config.address, reason)
        finally:
            self._beginning = None

    def _write(self, topics: tuple[TopicStats, ...]) -> Generator[None, None, list[bytes]]:
        """The datagrams, in steps of one."""
        memory = self._memory() if self._config.with_memory else None
        datagrams: list[bytes] = []
        for datagram in pack(self._report.lines(topics, memory), max_bytes=self._config.max_datagram_bytes):
            datagrams.append(datagram)
            yield
        return datagrams

    def _begin_push(self, datagrams: list[bytes]) -> None:
        self._datagrams.extend(datagrams)
        self._gap_ns = gap_ns(interval_ns=self._config.interval_ns, datagram_count=len(self._datagrams))
        self._next_due_ns = self._clock.monotonic_ns()
        _log.info("STATSD: pushing stats to %s", self._config.address)
        self._send()

    def _send(self) -> None:
        """Send every datagram that is due: usually one, more if the gap is short or the loop was late."""
        now_ns = self._clock.monotonic_ns()
        while self._datagrams and self._transport is not None:
            if self._next_due_ns > now_ns:
                self._send_alarm.set(self._next_due_ns)
                return
            self._transport.sendto(self._datagrams.popleft())
            self._next_due_ns += self._gap_ns
        self._end_push()

    def _end_push(self) -> None:
        self._send_alarm.cancel()
        self._datagrams.clear()
        if self._transport is not None:
            self._transport.close()
            self._transport = None
