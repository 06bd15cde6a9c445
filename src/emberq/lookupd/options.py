"""Every setting of nsqlookupd, declared once: as flag, config key, line of help and field of `LookupdOptions`."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from emberq.base.address import AddressError, parse_tcp_address
from emberq.base.flag import LOG_FORMAT, LOG_LEVEL, SettingError
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
from emberq.base.tls import TLS_MIN_VERSION, TlsError, TlsVersion, check_tls

_GENERAL = Group(GENERAL)
_NETWORK = Group("Network")
_DISCOVERY = Group("Discovery")
_TLS = Group("TLS")


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdOptions:
    """What nsqlookupd is to do. Names are the flags' names; a duration's name ends in its unit, `_ns`."""

    log_level: LogLevel = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_LEVEL, LogLevel.INFO, "least grave log lines to show: debug, info, warn, error or fatal"
    )
    log_prefix: str = _GENERAL.text("[nsqlookupd] ", "start of every log line")
    log_format: LogFormat = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_FORMAT, LogFormat.TEXT, "how to write log lines: text, or json for one object a line"
    )

    tcp_address: str = _NETWORK.text("0.0.0.0:4160", "where to listen for nsqd registrations", placeholder="address")
    http_address: str = _NETWORK.text("0.0.0.0:4161", "where to listen for HTTP", placeholder="address")
    http_allowed_host: tuple[str, ...] = _NETWORK.strings(
        "further name by which browsers may call this nsqlookupd; .example.com means all names below it",
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
        "name of this nsqlookupd as told to nsqds, which use it for HTTP queries",
        placeholder="host",
        default_text="the hostname",
    )

    inactive_producer_timeout_ns: int = _DISCOVERY.duration(
        "5m", "hide an nsqd that was not heard of for this long, until it is"
    )
    tombstone_lifetime_ns: int = _DISCOVERY.duration(
        "45s", "how long a tombstone hides a topic of an nsqd from look-ups"
    )

    unused_topic_lifetime_ns: int = _DISCOVERY.duration(
        "24h", "forget a topic or channel that no nsqd has had for this long; 0 means never"
    )
    max_registrations: int = _DISCOVERY.integer(
        100_000, "topics and channels that one nsqd may register; 0 means no limit", at_least=0
    )

    tls_cert: str = _TLS.text(
        "", "certificate, PEM; with it, TCP and HTTP begin by TLS and speak nothing else", placeholder="file"
    )
    tls_key: str = _TLS.text("", "its private key, PEM", placeholder="file")
    tls_client_auth_policy: str = _TLS.text(
        "",
        "ask nsqds and other clients for a certificate: require takes any, require-verify checks it",
        placeholder="policy",
    )
    tls_root_ca_file: str = _TLS.text("", "authorities that sign clients, PEM", placeholder="file")
    tls_min_version: TlsVersion = _TLS.declare(  # noqa: RUF009 - it makes a field
        TLS_MIN_VERSION,
        TlsVersion.TLS_1_2,
        "lowest version of TLS: tls1.0, tls1.1, tls1.2 or tls1.3; below tls1.2 weak keys and signatures pass too",
    )

    def validated(self) -> LookupdOptions:
        """These options as nsqlookupd runs with them; OptionsError for the first that cannot work."""
        try:
            SETTINGS.check_ranges(self)
        except SettingError as error:
            raise OptionsError(str(error)) from error
        for address in (self.tcp_address, self.http_address):
            try:
                parse_tcp_address(address)
            except AddressError as error:
                raise OptionsError(f"listen ({address}) failed - {error}") from error
        try:
            check_tls(self)
        except TlsError as error:
            raise OptionsError(str(error)) from error
        return self


SETTINGS = SettingTable(
    "nsqlookupd", options_class=LookupdOptions, command=(VERSION, CONFIG, CHECK_CONFIG, deprecated_flag("verbose"))
)
