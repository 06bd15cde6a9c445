"""Every setting of nsqadmin, declared once: as a flag, a config key, a line of help and a field of `AdminOptions`."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from emberq.base.address import AddressError, NetworkError, parse_network, parse_tcp_address
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
    command_flag,
    deprecated_flag,
)
from emberq.base.text import masked
from emberq.base.tls import TLS_MIN_VERSION, TlsError, TlsVersion, check_tls

MIN_INTERVAL = "100ms"
"""A shorter interval would keep a large cluster busy with nothing but telling its figures."""

_GENERAL = Group(GENERAL)
_CLUSTER = Group("Cluster")
_WEB = Group("Web")
_ACCESS = Group("Access")
_LIVE = Group("Live figures")
_RECORDS = Group("Records of actions")
_ALERTS = Group("Alerts")
_GRAPHITE = Group("Graphite")
_TLS = Group("TLS")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """What nsqadmin is to do. Names are the flags' names; a duration's name ends in its unit, `_ns`."""

    log_level: LogLevel = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_LEVEL, LogLevel.INFO, "least grave log lines to show: debug, info, warn, error or fatal"
    )
    log_prefix: str = _GENERAL.text("[nsqadmin] ", "start of every log line")
    log_format: LogFormat = _GENERAL.declare(  # noqa: RUF009 - it makes a field
        LOG_FORMAT, LogFormat.TEXT, "how to write log lines: text, or json for one object a line"
    )

    lookupd_http_address: tuple[str, ...] = _CLUSTER.strings(
        "nsqlookupd to ask about the cluster", placeholder="address", key="nsqlookupd_http_addresses"
    )
    nsqd_http_address: tuple[str, ...] = _CLUSTER.strings(
        "nsqd to look at, where there is no nsqlookupd", placeholder="address", key="nsqd_http_addresses"
    )
    http_client_connect_timeout_ns: int = _CLUSTER.duration("2s", "longest time to connect to a daemon")
    http_client_request_timeout_ns: int = _CLUSTER.duration("5s", "longest time for a daemon's answer")
    http_client_tls_insecure_skip_verify: bool = _CLUSTER.boolean(
        "do not verify the certificates of daemons", default=False
    )
    http_client_tls_root_ca_file: str = _CLUSTER.text(
        "", "authorities to verify the certificates of daemons with", placeholder="file"
    )
    http_client_tls_cert: str = _CLUSTER.text("", "certificate to show to daemons", placeholder="file")
    http_client_tls_key: str = _CLUSTER.text("", "key of that certificate", placeholder="file")
    nsqd_secret_file: str = _CLUSTER.text(
        "",
        "file with the secret for nsqds that guard their HTTP API (--http-secret-file, --auth-http-api)",
        placeholder="file",
    )
    nsqd_secret_host: tuple[str, ...] = _CLUSTER.strings(
        "host of nsqds that are shown that secret although an nsqlookupd named them; .example.com means all names below"
        " it, 10.0.0.0/8 a range of addresses, * all",
        placeholder="host",
        key="nsqd_secret_hosts",
    )
    lookupd_secret_file: str = _CLUSTER.text(
        "", "file with the secret for nsqlookupds that run with --http-secret-file", placeholder="file"
    )

    http_address: str = _WEB.text("0.0.0.0:4171", "where to listen for HTTP", placeholder="address")
    http_allowed_host: tuple[str, ...] = _WEB.strings(
        "further name by which browsers may call this nsqadmin; .example.com means all names below it; where users"
        " log in and none is given, any name will do",
        placeholder="host",
        key="http_allowed_hosts",
    )
    http_secret_file: str = _WEB.text(
        "",
        "file of secrets, one a line; every HTTP request but /ping has to show one, as a bearer token or as the"
        " password of HTTP Basic; where users log in, it is another way in",
        placeholder="file",
    )
    base_path: str = _WEB.text("/", "path that every URL begins with", placeholder="path")
    dev_static_dir: str = _WEB.text(
        "", "directory whose files go before the built-in ones, for work on the pages", placeholder="directory"
    )

    admin_user: tuple[str, ...] = _ACCESS.strings(
        "user who may act; if none is given, every user may", placeholder="name", key="admin_users"
    )
    acl_http_header: str = _ACCESS.text(
        "X-Forwarded-User", "header in which a proxy says who asks", placeholder="header"
    )
    user_file: str = _ACCESS.text(
        "", "file of users with their roles and passwords; with it, every user has to log in", placeholder="file"
    )
    trusted_proxy_cidr: tuple[str, ...] = _ACCESS.strings(
        "range of addresses of proxies that are believed about who asks; with it, each request must come through one",
        placeholder="cidr",
        key="trusted_proxy_cidrs",
    )
    forwarding_proxy_cidr: tuple[str, ...] = _ACCESS.strings(
        "range of addresses of proxies that are believed about where a request comes from (X-Forwarded-For); wrong"
        " passwords and live views are counted by that",
        placeholder="cidr",
        key="forwarding_proxy_cidrs",
    )
    session_lifetime_ns: int = _ACCESS.duration("12h", "log a user out after this long without a request")
    allow_config_from_cidr: str = _ACCESS.text(
        "127.0.0.1/8", "range of addresses that may use /config; empty means all", placeholder="cidr"
    )

    live_interval_ns: int = _LIVE.duration(
        "2s", "how often to gather figures while a page is open", at_least=MIN_INTERVAL
    )
    history_interval_ns: int = _LIVE.duration(
        "10s", "how often to gather figures for the history while no page is open", at_least=MIN_INTERVAL
    )
    history_duration_ns: int = _LIVE.duration("1h", "how far the history reaches back; 0 means to keep none")
    history_path: str = _LIVE.text(
        "",
        "folder for a history that outlives a restart and reaches back --history-retention; without it, there is none"
        " on disk",
        placeholder="directory",
    )
    history_retention_ns: int = _LIVE.duration(
        "168h", "how far the history on disk reaches back, at falling resolution", at_least="1h"
    )

    notification_http_endpoint: str = _RECORDS.text("", "URL to POST every action to", placeholder="url")
    audit_log_file: str = _RECORDS.text(
        "", "file to add a line of JSON to for every action; the log if empty", placeholder="file"
    )

    alert_rules_file: str = _ALERTS.text(
        "",
        "file of rules that say when something is wrong, TOML; without it, or before it is there, built-in rules hold",
        placeholder="file",
    )
    alert_webhook_url: str = _ALERTS.text(
        "", "URL to POST alerts to when they fire and when they are resolved", placeholder="url"
    )

    graphite_url: str = _GRAPHITE.text("", "URL of Graphite; with it, pages show its graphs", placeholder="url")
    proxy_graphite: bool = _GRAPHITE.boolean("ask Graphite for the browser instead of sending it there", default=False)
    statsd_counter_format: str = _GRAPHITE.text("stats.counters.%s.count", "how StatsD names a counter")
    statsd_gauge_format: str = _GRAPHITE.text("stats.gauges.%s", "how StatsD names a gauge")
    statsd_prefix: str = _GRAPHITE.text("nsq.%s", "what nsqd begins its keys with; %s is the node")
    statsd_interval_ns: int = _GRAPHITE.duration(
        "1m", "how often nsqd pushes to StatsD; must be the same as there", at_least="1s"
    )

    tls_cert: str = _TLS.text(
        "", "certificate, PEM; with it, --http-address speaks HTTPS and nothing else", placeholder="file"
    )
    tls_key: str = _TLS.text("", "its private key, PEM", placeholder="file")
    tls_client_auth_policy: str = _TLS.text(
        "",
        "ask browsers and programs for a certificate: require takes any, require-verify checks it",
        placeholder="policy",
    )
    tls_root_ca_file: str = _TLS.text("", "authorities that sign clients, PEM", placeholder="file")
    tls_min_version: TlsVersion = _TLS.declare(  # noqa: RUF009 - it makes a field
        TLS_MIN_VERSION,
        TlsVersion.TLS_1_2,
        "lowest version of TLS: tls1.0, tls1.1, tls1.2 or tls1.3; below tls1.2 weak keys and signatures pass too",
    )

    def validated(self) -> AdminOptions:
        """These options as nsqadmin runs with them; OptionsError for the first that cannot work."""
        try:
            SETTINGS.check_ranges(self)
        except SettingError as error:
            raise OptionsError(str(error)) from error
        self._check_cluster()
        self._check_access()
        self._check_history()
        self._check_addresses()
        try:
            check_tls(self)
        except TlsError as error:
            raise OptionsError(str(error)) from error
        return replace(self, base_path=_normalised(self.base_path))

    def _check_cluster(self) -> None:
        if not self.lookupd_http_address and not self.nsqd_http_address:
            raise OptionsError("--nsqd-http-address or --lookupd-http-address required")
        if self.lookupd_http_address and self.nsqd_http_address:
            raise OptionsError("use --nsqd-http-address or --lookupd-http-address not both")
        if self.http_client_tls_cert and not self.http_client_tls_key:
            raise OptionsError("--http-client-tls-key must be specified with --http-client-tls-cert")
        if self.http_client_tls_key and not self.http_client_tls_cert:
            raise OptionsError("--http-client-tls-cert must be specified with --http-client-tls-key")

    def _check_access(self) -> None:
        if self.user_file and self.admin_user:
            raise OptionsError("use --user-file or --admin-user not both: the file says who is an admin")
        ranges = tuple(host for host in self.nsqd_secret_host if "/" in host)
        for flag, cidrs in (
            ("nsqd-secret-host", ranges),
            ("allow-config-from-cidr", (self.allow_config_from_cidr,) if self.allow_config_from_cidr else ()),
            ("trusted-proxy-cidr", self.trusted_proxy_cidr),
            ("forwarding-proxy-cidr", self.forwarding_proxy_cidr),
        ):
            for cidr in cidrs:
                try:
                    parse_network(cidr)
                except NetworkError as error:
                    raise OptionsError(f"failed to parse --{flag} ({cidr}) - {error}") from error

    def _check_history(self) -> None:
        if self.history_path and not self.history_duration_ns:
            raise OptionsError("--history-duration must be above 0 with --history-path")

    def _check_addresses(self) -> None:
        try:
            parse_tcp_address(self.http_address)
        except AddressError as error:
            raise OptionsError(f"listen ({self.http_address}) failed - {error}") from error
        _check_url("graphite-url", self.graphite_url)
        _check_url("notification-http-endpoint", self.notification_http_endpoint)
        _check_url("alert-webhook-url", self.alert_webhook_url, is_secret=True)
        if self.proxy_graphite and not self.graphite_url:
            raise OptionsError("--graphite-url must be specified with --proxy-graphite")

    @property
    def statsd_interval_s(self) -> int:
        """In whole seconds, as Graphite wants it."""
        return self.statsd_interval_ns // 1_000_000_000


def _normalised(base_path: str) -> str:
    """With a slash in front, without `.`, `..`, empty segments and a slash at the end."""
    return "/" + posixpath.normpath("/" + base_path).strip("/")


def _check_url(flag: str, url: str, *, is_secret: bool = False) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise OptionsError(f"failed to parse --{flag}" + ("" if is_secret else f" ({masked(url)})"))


HASH_PASSWORD = command_flag("hash_password", "ask for a password, print its hash for --user-file, and exit")

SETTINGS = SettingTable(
    "nsqadmin",
    options_class=AdminOptions,
    command=(VERSION, CONFIG, CHECK_CONFIG, HASH_PASSWORD, deprecated_flag("verbose")),
)
