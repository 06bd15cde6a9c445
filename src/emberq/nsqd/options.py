"""Every setting of nsqd, declared once: as a flag, a config key, a line of help and a field of `NsqdOptions`.

`NsqdOptions()` is a valid nsqd with all defaults. `validated` is for the moment of starting: it applies the rules that
tie settings together and refuses what cannot work, in NSQ's own words where NSQ has them. `topic_limits` and
`journal_settings` make of the options what the broker wants to know about limits and about journaled topics.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from emberq.base.address import MAX_PORT, AddressError, parse_address
from emberq.base.clock import NS_PER_SECOND
from emberq.base.flag import LOG_FORMAT, LOG_LEVEL, Duration, Integer, SettingError, ValueKind, Words
from emberq.base.log import LogFormat, LogLevel
from emberq.base.settings import (
    CHECK_CONFIG,
    CONFIG,
    GENERAL,
    VERSION,
    Group,
    OptionsError,
    SettingTable,
    deprecated_flag,
)
from emberq.base.text import glob_expression
from emberq.base.timers import NEVER
from emberq.base.tls import TLS_MIN_VERSION, TlsVersion
from emberq.broker.limit import TopicLimits, WhenFull
from emberq.broker.store import JournalSettings, SyncMode
from emberq.storage.journal.segment import JournalConfig

__all__ = ["SETTINGS", "NsqdOptions", "OptionsError", "node_id_of"]


# Kinds of values.

SYNC_MODE = Words("mode", {mode.value: mode for mode in SyncMode})
WHEN_FULL = Words("policy", {policy.value: policy for policy in WhenFull})


class TlsRequired(enum.IntEnum):
    """What `--tls-required` asks for, with the numbers NSQ's HTTP API shows."""

    NO = 0
    TCP_HTTPS = 1
    """TLS on TCP and HTTPS, while plain HTTP stays open."""
    YES = 2


TLS_REQUIRED = Words(
    "bool|tcp-https",
    {"true": TlsRequired.YES, "false": TlsRequired.NO, "tcp-https": TlsRequired.TCP_HTTPS},
    aliases={"1": TlsRequired.YES, "t": TlsRequired.YES, "0": TlsRequired.NO, "f": TlsRequired.NO},
    stands_alone=True,
)


# The id of this nsqd.

NODE_ID_LIMIT = 1024
"""A message id has ten bits for the node that made it."""


def node_id_of(hostname: str) -> int:
    """The node id of a machine that was not given one: the same after every restart, spread over all ids."""
    digest = hashlib.md5(hostname.encode(), usedforsecurity=False).digest()
    return crc32(digest) % NODE_ID_LIMIT


def _own_node_id() -> int:
    return node_id_of(socket.gethostname())


# The settings.

_GENERAL = Group(GENERAL)
_NETWORK = Group("Network")
_DISCOVERY = Group("Discovery and authorization")
_STORAGE = Group("Storage")
_JOURNAL = Group("Journaled topics")
_QUEUES = Group("Timeouts and deferred messages")
_LIMITS = Group("Limits on clients and messages")
_STATISTICS = Group("Statistics")
_TLS = Group("TLS")
_COMPRESSION = Group("Compression")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdOptions:
    """What nsqd is to do. Names are the flags' names; a duration's name ends in its unit, `_ns`."""

    log_level: LogLevel = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_LEVEL, LogLevel.INFO, "least grave log lines to show: debug, info, warn, error or fatal"
    )
    log_prefix: str = _GENERAL.text("[nsqd] ", "start of every log line")
    log_format: LogFormat = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_FORMAT, LogFormat.TEXT, "how to write log lines: text, or json for one object a line"
    )
    node_id: int = _GENERAL.integer(
        _own_node_id,
        "number of this nsqd in the ids of its messages, 0 to 1023; unique in the cluster",
        key="id",
        default_text="made from the hostname",
    )

    tcp_address: str = _NETWORK.text(
        "0.0.0.0:4150",
        "where to listen for clients; a path means a Unix socket",
        placeholder="address",
    )
    http_address: str = _NETWORK.text(
        "0.0.0.0:4151",
        "where to listen for HTTP; a path means a Unix socket, empty turns it off",
        placeholder="address",
    )
    https_address: str = _NETWORK.text(
        "0.0.0.0:4152",
        "where to listen for HTTPS, if there is a certificate; empty turns it off",
        placeholder="address",
    )
    http_allowed_host: tuple[str, ...] = _NETWORK.strings(
        "further name by which browsers may call this nsqd; .example.com means all names below it",
        placeholder="host",
        key="http_allowed_hosts",
    )
    http_secret_file: str = _NETWORK.text(
        "",
        "file of secrets, one a line; every HTTP request but /ping has to show one, as a bearer token or as the"
        " password of HTTP Basic",
        placeholder="file",
    )
    broadcast_address: str = _NETWORK.text(
        socket.gethostname,
        "name under which nsqlookupd lists this nsqd; clients must be able to reach it",
        placeholder="host",
        default_text="the hostname",
    )
    broadcast_tcp_port: int = _NETWORK.integer(
        0,
        "TCP port that nsqlookupd lists; 0 means the one listened on",
        at_least=0,
        at_most=MAX_PORT,
    )
    broadcast_http_port: int = _NETWORK.integer(
        0,
        "HTTP port that nsqlookupd lists; 0 means the one listened on",
        at_least=0,
        at_most=MAX_PORT,
    )

    lookupd_tcp_address: tuple[str, ...] = _DISCOVERY.strings(
        "an nsqlookupd to register with", placeholder="host:port", key="nsqlookupd_tcp_addresses"
    )
    lookupd_tls: bool = _DISCOVERY.boolean(
        "speak TLS with the nsqlookupds, over TCP and HTTP; --tls-cert is shown to those that ask for a certificate",
        default=False,
    )
    lookupd_tls_root_ca_file: str = _DISCOVERY.text(
        "", "authorities that sign nsqlookupds, PEM; empty means those of the system", placeholder="file"
    )
    auth_http_address: tuple[str, ...] = _DISCOVERY.strings(
        "an authorization server, host:port or URL", placeholder="address", key="auth_http_addresses"
    )
    auth_http_request_method: str = _DISCOVERY.text(
        "get", "how to ask the authorization server: get or post", placeholder="method"
    )
    auth_http_api: bool = _DISCOVERY.boolean(
        "let the authorization servers guard the HTTP API too: publishing and changes need a token", default=False
    )
    lookupd_secret_file: str = _DISCOVERY.text(
        "", "file with the secret for nsqlookupds that run with --http-secret-file", placeholder="file"
    )
    http_client_connect_timeout_ns: int = _DISCOVERY.duration(
        "2s", "longest time to connect to nsqlookupd's HTTP or an authorization server"
    )
    http_client_request_timeout_ns: int = _DISCOVERY.duration("5s", "longest time for a whole request to them")
    topology_region: str = _DISCOVERY.text("", "region this nsqd stands in", placeholder="name")
    topology_zone: str = _DISCOVERY.text("", "zone of the region this nsqd stands in", placeholder="name")
    enable_experiment: tuple[str, ...] = _DISCOVERY.strings(
        "turn on an experiment: topology-aware-consumption", placeholder="name"
    )

    data_path: str = _STORAGE.text(
        "", "directory for messages and metadata; empty means the current one", placeholder="directory"
    )
    mem_queue_size: int = _STORAGE.integer(
        10_000, "messages kept in memory, per topic and per channel; the rest goes to disk", at_least=0
    )
    mem_queue_bytes: int = _STORAGE.integer(
        268_435_456,
        "bytes of messages kept in memory, per topic and per channel; the rest goes to disk; 0 means no limit",
        at_least=0,
    )
    min_free_bytes: int = _STORAGE.integer(
        67_108_864,
        "refuse to publish while the data directory has less free space than this; 0 means never",
        at_least=0,
    )
    topic_limit: tuple[str, ...] = _STORAGE.strings(
        "limits on what waits in each topic whose name fits the pattern, and in each of its channels:"
        " max-depth=N messages, max-bytes=N, when-full=refuse or drop-oldest, ttl=DURATION, and"
        " journal-max-bytes=N in place of --journal-max-bytes; * stands for any characters, ? for one, and the first"
        " pattern that fits a topic counts",
        placeholder="pattern:limit=value:...",
        key="topic_limits",
    )
    max_bytes_per_file: int = _STORAGE.integer(
        104_857_600, "size at which a disk queue starts its next file", at_least=1
    )
    sync_every: int = _STORAGE.integer(
        2_500, "disk reads and writes between syncs; 0 syncs on each, negative only by time"
    )
    sync_timeout_ns: int = _STORAGE.duration("2s", "longest time between a write and its sync", at_least="1ms")

    journal: bool = _JOURNAL.boolean(
        "keep every new topic as a journal: durable, replayable, with offsets (ephemeral ones excepted)", default=False
    )
    journal_topic: tuple[str, ...] = _JOURNAL.strings(
        "journal new topics whose name has a part that this regular expression matches",
        placeholder="regex",
        key="journal_topics",
    )
    journal_sync: SyncMode = _JOURNAL.declare(  # noqa: RUF009 - it makes a field
        SYNC_MODE,
        SyncMode.ALWAYS,
        "when to confirm a publish: always waits for the disk; interval syncs every --sync-timeout; never leaves that"
        " to the operating system",
    )
    journal_segment_bytes: int = _JOURNAL.integer(
        128 * 1024 * 1024, "size at which a journal starts its next file", at_least=1024 * 1024
    )
    journal_retention_bytes: int = _JOURNAL.integer(
        0,
        "size above which a journal's oldest files go, once every channel has passed them; 0 means no limit",
        at_least=0,
    )
    journal_max_bytes: int = _JOURNAL.integer(
        0,
        "size above which a journal's oldest files go also before every channel has passed them, which loses messages"
        " for those that have not; 0 means no limit; --topic-limit sets it for some topics",
        at_least=0,
    )
    journal_retention_time_ns: int = _JOURNAL.duration(
        "24h", "age at which a journal's files go, once every channel has passed them; 0 means never"
    )

    msg_timeout_ns: int = _QUEUES.duration(
        "1m", "time a consumer has to answer a message before it is queued again", at_least="1ms"
    )
    max_msg_timeout_ns: int = _QUEUES.duration(
        "15m", "longest such time a client may ask for, touches included", at_least="1ms"
    )
    max_req_timeout_ns: int = _QUEUES.duration("1h", "longest delay of a requeued or deferred message")
    requeue_on_disconnect: bool = _QUEUES.boolean(
        "requeue at once what a consumer held when its connection ended, not when that times out", default=False
    )
    queue_scan_worker_pool_max: int = _QUEUES.integer(4, "accepted for compatibility: timeouts need no workers here")
    queue_scan_selection_count: int = _QUEUES.integer(20, "accepted for compatibility: timeouts need no scan here")

    max_msg_size: int = _LIMITS.integer(1_048_576, "largest message in bytes", at_least=1)
    max_body_size: int = _LIMITS.integer(5_242_880, "largest body of a command in bytes", at_least=1)
    max_rdy_count: int = _LIMITS.integer(2_500, "largest RDY a client may set", at_least=0)
    max_heartbeat_interval_ns: int = _LIMITS.duration("1m", "longest time between heartbeats a client may ask for")
    max_output_buffer_size: int = _LIMITS.integer(
        65_536, "largest output buffer in bytes a client may ask for", at_least=0
    )
    max_output_buffer_timeout_ns: int = _LIMITS.duration(
        "30s", "longest time a client may ask for between flushes of its output buffer"
    )
    min_output_buffer_timeout_ns: int = _LIMITS.duration("25ms", "shortest such time a client may ask for")
    output_buffer_timeout_ns: int = _LIMITS.duration("250ms", "time between flushes for a client that asks for none")
    max_channel_consumers: int = _LIMITS.integer(
        0, "largest number of consumers of one channel; 0 means no limit", at_least=0
    )
    max_connections: int = _LIMITS.integer(
        0, "most connections at a time, TCP, HTTP and HTTPS together; 0 means no limit", at_least=0
    )
    max_connections_per_address: int = _LIMITS.integer(
        0, "most of them from one address, or from one /64 of IPv6; 0 means no limit", at_least=0
    )

    statsd_address: str = _STATISTICS.text(
        "", "statsd daemon to push statistics to over UDP; empty turns it off", placeholder="host:port"
    )
    statsd_interval_ns: int = _STATISTICS.duration("1m", "time between pushes to statsd", at_least="1ms")
    statsd_mem_stats: bool = _STATISTICS.boolean("push statistics of memory too", default=True)
    statsd_prefix: str = _STATISTICS.text(
        "nsq.%s", "start of every statsd key; %s stands for host and port of this nsqd"
    )
    statsd_udp_packet_size: int = _STATISTICS.integer(
        508, "largest datagram to statsd in bytes", at_least=1, at_most=65_507
    )
    statsd_exclude_ephemeral: bool = _STATISTICS.boolean("leave out ephemeral topics and channels", default=False)
    e2e_processing_latency_percentile: tuple[float, ...] = _STATISTICS.floats(
        "percentile of the time from publish to finish to keep, above 0 and up to 1; commas separate several",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = _STATISTICS.duration(
        "10m", "time that those percentiles cover", at_least="1ms"
    )

    tls_cert: str = _TLS.text("", "certificate, PEM", placeholder="file")
    tls_key: str = _TLS.text("", "its private key, PEM", placeholder="file")
    tls_client_auth_policy: str = _TLS.text(
        "",
        "ask clients for a certificate: require takes any, require-verify checks it; implies --tls-required",
        placeholder="policy",
    )
    tls_root_ca_file: str = _TLS.text(
        "", "authorities that sign clients and authorization servers, PEM", placeholder="file"
    )
    tls_required: TlsRequired = _TLS.declare(  # noqa: RUF009 - it makes a field
        TLS_REQUIRED,
        TlsRequired.NO,
        "refuse clients without TLS; tcp-https still allows plain HTTP",
    )
    tls_min_version: TlsVersion = _TLS.declare(  # noqa: RUF009 - it makes a field
        TLS_MIN_VERSION,
        TlsVersion.TLS_1_2,
        "lowest version of TLS: tls1.0, tls1.1, tls1.2 or tls1.3; below tls1.2 weak keys and signatures pass too",
    )

    deflate: bool = _COMPRESSION.boolean("let clients ask for deflate", default=True)
    max_deflate_level: int = _COMPRESSION.integer(
        6, "highest level of deflate a client may ask for, 1 to 9: higher costs more CPU"
    )
    snappy: bool = _COMPRESSION.boolean("let clients ask for snappy", default=True)

    client_timeout_ns: int = 60 * NS_PER_SECOND
    """Silence after which a client is gone; its half is the default heartbeat. No flag, as in NSQ."""

    def validated(self) -> NsqdOptions:
        """These options as nsqd runs with them; OptionsError for the first that cannot work."""
        if not 1 <= self.max_deflate_level <= 9:
            raise OptionsError("--max-deflate-level must be [1,9]")
        if not 0 <= self.node_id < NODE_ID_LIMIT:
            raise OptionsError(f"--node-id must be [0,{NODE_ID_LIMIT})")
        tls_required = self._effective_tls_required()
        if tls_required is not TlsRequired.NO and not self.tls_cert and not self.tls_key:
            raise OptionsError("cannot require TLS client connections without TLS key and cert")
        if self.auth_http_api and not self.auth_http_address:
            raise OptionsError("--auth-http-api needs an --auth-http-address to ask")
        if self.lookupd_tls_root_ca_file and not self.lookupd_tls:
            raise OptionsError("--lookupd-tls-root-ca-file has no effect without --lookupd-tls")
        if self.auth_http_request_method not in ("get", "post"):
            raise OptionsError("--auth-http-request-method must be post or get")
        for percentile in self.e2e_processing_latency_percentile:
            if not 0 < percentile <= 1:
                raise OptionsError(f"invalid E2E processing latency percentile: {repr(percentile).removesuffix('.0')}")
        self._check_ranges()
        self._check_listeners()
        topic_limits(self)
        highest_first = tuple(sorted(self.e2e_processing_latency_percentile, reverse=True))
        return dataclasses.replace(self, tls_required=tls_required, e2e_processing_latency_percentile=highest_first)

    def _effective_tls_required(self) -> TlsRequired:
        """A client that must show a certificate must speak TLS."""
        if self.tls_client_auth_policy and self.tls_required is TlsRequired.NO:
            return TlsRequired.YES
        return self.tls_required

    def _check_ranges(self) -> None:
        try:
            SETTINGS.check_ranges(self)
        except SettingError as error:
            raise OptionsError(str(error)) from error

    def _check_listeners(self) -> None:
        if not self.tcp_address:
            raise OptionsError("--tcp-address must not be empty")
        https_address = self.https_address if self.tls_cert else ""
        for address in filter(None, (self.tcp_address, self.http_address, https_address)):
            try:
                parse_address(address)
            except AddressError as error:
                raise OptionsError(f"listen ({address}) failed - {error}") from error


SETTINGS = SettingTable(
    "nsqd",
    options_class=NsqdOptions,
    command=(VERSION, CONFIG, CHECK_CONFIG, deprecated_flag("verbose"), deprecated_flag("worker_id")),
)


# What the broker needs to know of limits.

_DURATION = Duration()
_COUNT = Integer()


def topic_limits(options: NsqdOptions) -> Callable[[str], TopicLimits | None]:
    """The limits of each topic, by its name. OptionsError if one of them makes no sense."""
    patterns = [_parsed_limit(text) for text in options.topic_limit]

    def limits_of(topic: str) -> TopicLimits | None:
        return next((limits for pattern, limits in patterns if pattern.fullmatch(topic)), None)

    return limits_of


def _parsed_limit(text: str) -> tuple[re.Pattern[str], TopicLimits]:
    """A pattern and its limits, from `pattern:limit=value:limit=value`."""
    pattern, *parts = text.split(":")
    limits = TopicLimits()
    seen: set[str] = set()
    for part in parts:
        name, _, value = part.partition("=")
        try:
            limits = _with_limit(limits, name, value)
        except ValueError as error:
            raise OptionsError(f"--topic-limit {text!r}: {part!r}: {error}") from error
        if name in seen:
            raise OptionsError(f"--topic-limit {text!r}: {name} stands there twice")
        seen.add(name)
    if not pattern or limits == TopicLimits(when_full=limits.when_full):
        raise OptionsError(f"--topic-limit {text!r}: it takes a pattern and limits, as in orders.*:max-depth=1000")
    if "when-full" in seen and not limits.has_max:
        raise OptionsError(f"--topic-limit {text!r}: when-full needs max-depth or max-bytes")
    return re.compile(glob_expression(pattern)), limits


def _with_limit(limits: TopicLimits, name: str, value: str) -> TopicLimits:
    """These limits and one more; ValueError if there is none of that name, or its value makes no sense."""
    if name == "max-depth":
        return dataclasses.replace(limits, max_depth=_positive(_COUNT, value))
    if name == "max-bytes":
        return dataclasses.replace(limits, max_bytes=_positive(_COUNT, value))
    if name == "journal-max-bytes":
        return dataclasses.replace(limits, journal_max_bytes=_positive(_COUNT, value))
    if name == "ttl":
        return dataclasses.replace(limits, ttl_ns=_positive(_DURATION, value))
    if name == "when-full":
        return dataclasses.replace(limits, when_full=WHEN_FULL.from_text(value))
    raise ValueError("no limit of that name; there are max-depth, max-bytes, when-full, ttl and journal-max-bytes")


def _positive(kind: ValueKind[int], text: str) -> int:
    value = kind.from_text(text)
    if value <= 0:
        raise ValueError("it has to be more than 0")
    return min(value, NEVER)


# What the broker needs to know of journals.


def journal_settings(options: NsqdOptions) -> JournalSettings:
    """Which topics have a journal, and how it is kept. OptionsError if a pattern is not a regex."""
    patterns = [_compiled(pattern) for pattern in options.journal_topic]

    def is_wanted(topic: str) -> bool:
        return options.journal or any(pattern.search(topic) for pattern in patterns)

    return JournalSettings(
        is_wanted=is_wanted,
        sync=options.journal_sync,
        sync_interval_ns=options.sync_timeout_ns,
        config=JournalConfig(
            segment_bytes=options.journal_segment_bytes,
            retention_bytes=options.journal_retention_bytes or None,
            max_bytes=options.journal_max_bytes or None,
            retention_ns=options.journal_retention_time_ns or None,
            fsync=options.journal_sync is not SyncMode.NEVER,
        ),
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise OptionsError(f"--journal-topic {pattern!r} is not a regular expression: {error}") from error
