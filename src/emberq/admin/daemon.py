"""The nsqadmin daemon: what there is, and in which order it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import emberq
from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.user import Role, UserFileError
from emberq.admin.alert import Alerts
from emberq.admin.audit import Audit, Notifier, Recorder
from emberq.admin.history import NODES, SERIES, History
from emberq.admin.history_store import HistoryStore, HistoryStoreError, Marks
from emberq.admin.live import Gatherer
from emberq.admin.options import AdminOptions
from emberq.admin.routes import Parts, routes
from emberq.admin.rule import RuleError, RuleFile
from emberq.admin.webhook import Webhook
from emberq.base.address import parse_tcp_address, split_scheme
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock, SystemClock
from emberq.base.daemon import LoopLag, LoopTimers, Sweeper
from emberq.base.listener import Listener, ListenError
from emberq.base.metrics import DaemonScrape
from emberq.base.program import StartError
from emberq.base.settings import OptionsError
from emberq.base.timers import Timers
from emberq.base.tls import ServerTls, TlsError, TlsFileError, client_context, loaded_tls
from emberq.cluster.cluster import Cluster
from emberq.cluster.pipeline_feed import PipelineFeed
from emberq.cluster.topology import ClusterAddresses
from emberq.http.access import OPEN_PATH, AccessGuard, OwnSecret, open_secrets
from emberq.http.message import Request
from emberq.http.router import Router
from emberq.http.server import HttpServer

_log = logging.getLogger(__name__)


class UpstreamOptionsError(Exception):
    """The daemons cannot be reached by what the options say; the text says why."""


class Nsqadmin:
    """One nsqadmin. `start` takes hold of everything, `stop` lets go of it in reverse order. The pages see a `Site`."""

    def __init__(self, options: AdminOptions, *, clock: Clock | None = None) -> None:
        """To be made in the event loop it will run in; StartError for options that cannot work."""
        self.options = options = _validated(options)
        self.clock = clock = clock or SystemClock()
        self.failed = asyncio.Event()
        """Set when the daemon cannot go on."""
        self._timers = Timers()
        self._loop_timers: LoopTimers | None = None
        self._sweeper = Sweeper(timers=self._timers, clock=clock)
        self._loop_lag = LoopLag(timers=self._timers, clock=clock)
        self._start_time_s = clock.wall_ns() // NS_PER_SECOND
        self._secrets = open_secrets(options.http_secret_file)
        self._nsqd_secret = OwnSecret(options.nsqd_secret_file, flag="nsqd-secret-file")
        self._lookupd_secret = OwnSecret(options.lookupd_secret_file, flag="lookupd-secret-file")
        try:
            self.cluster = _cluster(
                options, nsqd_secret=self._nsqd_secret.value, lookupd_secret=self._lookupd_secret.value
            )
            self._gate = Gate(options, clock=clock, secrets=self._secrets)
            self._rules = RuleFile(options.alert_rules_file)
        except (UpstreamOptionsError, UserFileError, RuleError) as failure:
            raise StartError(str(failure)) from failure
        self.base_path = options.base_path.rstrip("/")
        self.version = emberq.NSQ_VERSION
        self.has_passwords = self._gate.has_passwords
        self.static_folder = Path(options.dev_static_dir) if options.dev_static_dir else None
        self._audit = Audit(options.audit_log_file, clock=clock)
        self._notifier = Notifier(self.cluster.http, options.notification_http_endpoint, clock=clock)
        self._pipelines = PipelineFeed(
            clock=clock, secret_for=self.cluster.credentials.for_nsqd, tls=self.cluster.consumer_tls
        )
        self._store = _store(options)
        self._marks = Marks(self._store)
        self._webhook = Webhook(
            self.cluster.http,
            lambda: options.alert_webhook_url or self._rules.current.webhook,
            clock=clock,
            timers=self._timers,
        )
        self._alerts = Alerts(self._rules, self._marks, self._webhook, clock=clock, store=self._store)
        self.gatherer = Gatherer(
            self.cluster,
            History(
                interval_ns=options.history_interval_ns, duration_ns=options.history_duration_ns, store=self._store
            ),
            self._pipelines,
            self._marks,
            self._alerts,
            clock=clock,
            timers=self._timers,
            interval_ns=options.live_interval_ns,
        )
        parts = Parts(
            options=options,
            site=self,
            cluster=self.cluster,
            gate=self._gate,
            gatherer=self.gatherer,
            recorder=Recorder(self._audit, self._notifier, self._marks, clock=clock),
            webhook=self._webhook,
            scrape=self._scrape,
            clock=clock,
        )
        guard: AccessGuard | None = None
        if self._secrets is not None and self._gate.is_open:  # else every route asks the gate, which knows the secrets
            guard = AccessGuard(self._secrets, realm="nsqadmin", open_path=f"{self.base_path}{OPEN_PATH}")
        self._http = HttpServer(Router(routes(parts)), clock=clock, timers=self._timers, guard=guard)
        self._tls = _loaded_tls(options)
        context = self._tls.context if self._tls is not None else None
        self._listener = Listener(
            options.http_address, self._http.make_protocol, label="HTTP" if context is None else "HTTPS", tls=context
        )

    async def start(self) -> None:
        """Begin to serve; StartError, with nothing left behind, if that cannot be."""
        try:
            await check_names(self.options)
            self._audit.check()
            if self._store is not None:
                await self._store.open()
                await self._marks.load()
                await self._alerts.load()
                self.gatherer.absences.recall(self._alerts.gone_nodes())
            await self._listener.bind()
        except (UpstreamOptionsError, ListenError, HistoryStoreError) as failure:
            await self._close_store()
            raise StartError(str(failure)) from failure
        except OSError as failure:
            path = self.options.audit_log_file
            raise StartError(f"failed to open --audit-log-file ({path}) - {failure.strerror}") from failure
        self._loop_timers = LoopTimers(asyncio.get_running_loop(), self._timers, self.clock)
        self._loop_timers.start()
        self._sweeper.start()
        self._loop_lag.start()
        self._notifier.start()
        self._webhook.start()
        self.gatherer.start()
        await self._listener.serve()

    async def stop(self) -> None:
        """Accept no more connections, close those that are open, send the notifications that wait."""
        await self._listener.close()
        await self.gatherer.stop()
        self._http.close()
        await self._pipelines.stop()
        await self._notifier.stop()
        await self._webhook.stop()
        await self._close_store()
        self._loop_lag.stop()
        self._sweeper.stop()
        self.cluster.background.close()
        if self._loop_timers is not None:
            self._loop_timers.stop()

    async def _close_store(self) -> None:
        if self._store is not None:
            await self._store.close()

    def reload(self) -> None:
        """Read the files of users, of rules and of secrets, and the TLS certificate again."""
        self._gate.reload()
        self._rules.reload()
        if self._secrets is not None:
            self._secrets.reload()
        for secret in (self._nsqd_secret, self._lookupd_secret):
            secret.reload()
        self.cluster.credentials.nsqd = self._nsqd_secret.value
        self.cluster.credentials.lookupd = self._lookupd_secret.value
        if self._tls is not None:
            self._tls.reload()

    def _scrape(self) -> DaemonScrape:
        """Itself at this moment, for /metrics."""
        return DaemonScrape(
            start_time_s=self._start_time_s,
            tcp_connection_count=0,
            http_connection_count=self._http.connection_count,
            lag=self._loop_lag.read(),
        )

    def run_timers(self) -> None:
        """Do what is due by the clock now; for tests that move it."""
        self._timers.run_due(self.clock.monotonic_ns())

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        return cast(tuple[str, int], self._listener.address)  # the options allow no Unix socket

    # What the pages see (`Site`), besides some attributes.

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks; None if they have yet to log in."""
        return self._gate.visitor(request)

    def browser_config(self, visitor: Visitor | None) -> dict[str, Any]:
        """What scripts in the browser have to know; see `Site`."""
        options = self.options
        role = visitor.role if visitor is not None else Role.VIEWER
        session = visitor.session if visitor is not None else None
        return {
            "version": self.version,
            "user_agent": f"nsqadmin/v{self.version}",
            "base_path": self.base_path,
            "graph_enabled": bool(options.graphite_url),
            "graphite_url": "" if options.proxy_graphite else options.graphite_url,
            "statsd_interval": options.statsd_interval_s,
            "statsd_prefix": options.statsd_prefix,
            "statsd_counter_format": options.statsd_counter_format,
            "statsd_gauge_format": options.statsd_gauge_format,
            "nsqlookupd": list(self.cluster.lookupds),
            "live_interval_ms": options.live_interval_ns // NS_PER_MS,
            "history_interval_ms": options.history_interval_ns // NS_PER_MS,
            "history_duration_ms": options.history_duration_ns // NS_PER_MS,
            "history_retention_ms": options.history_retention_ns // NS_PER_MS if options.history_path else 0,
            "time": self.clock.wall_ns() // NS_PER_MS / 1000,
            "user": visitor.name if visitor is not None else "",
            "role": role,
            "is_admin": role is Role.ADMIN,
            "permissions": sorted(role.permissions),
            "csrf_token": session.csrf_token if session is not None else "",
            "can_log_out": session is not None,
            "has_passwords": self.has_passwords,
        }


def _validated(options: AdminOptions) -> AdminOptions:
    try:
        return options.validated()
    except OptionsError as wrong:
        raise StartError(str(wrong)) from wrong


def _store(options: AdminOptions) -> HistoryStore | None:
    """None without --history-path."""
    if not options.history_path:
        return None
    return HistoryStore(options.history_path, kinds=(SERIES, NODES), retention_ns=options.history_retention_ns)


def _loaded_tls(options: AdminOptions) -> ServerTls | None:
    try:
        return loaded_tls(options)
    except TlsError as wrong:
        raise StartError(str(wrong)) from wrong


def _cluster(options: AdminOptions, *, nsqd_secret: bytes, lookupd_secret: bytes) -> Cluster:
    """The cluster that the options name; UpstreamOptionsError for a file that cannot be used."""
    if nsqd_secret and options.lookupd_http_address and not options.nsqd_secret_host:
        _log.warning(
            "the secret of --nsqd-secret-file is shown to no nsqd: any could register with an nsqlookupd; say by"
            " --nsqd-secret-host which are yours"
        )
    return Cluster(
        ClusterAddresses(lookupds=options.lookupd_http_address, nsqds=options.nsqd_http_address),
        tls=client_tls(options),
        secret=nsqd_secret,
        lookupd_secret=lookupd_secret,
        secret_hosts=options.nsqd_secret_host,
        connect_timeout_ns=options.http_client_connect_timeout_ns,
        request_timeout_ns=options.http_client_request_timeout_ns,
    )


def client_tls(options: AdminOptions) -> ssl.SSLContext:
    """How to speak TLS with daemons; UpstreamOptionsError."""
    certificate, key = options.http_client_tls_cert, options.http_client_tls_key
    root = options.http_client_tls_root_ca_file
    try:
        context = client_context(
            ca_file=root,
            cert_file=certificate,
            key_file=key,
            verify=not options.http_client_tls_insecure_skip_verify,
        )
    except TlsFileError as error:
        if not error.is_authority:
            why = f"failed to LoadX509KeyPair {certificate}, {key} - {error}"
        elif isinstance(error.reason, ssl.SSLError):
            why = f"failed to AppendCertsFromPEM {root}"
        else:
            why = f"failed to read TLS root CA file {root} - {error.reason.strerror}"
        raise UpstreamOptionsError(why) from error
    if root:
        context.load_default_certs()  # besides the file, the authorities of the system stay trusted
    return context


async def check_names(options: AdminOptions) -> None:
    """UpstreamOptionsError for an address whose name cannot be resolved: better told now than at each request."""
    for flag, addresses in (
        ("lookupd-http-address", options.lookupd_http_address),
        ("nsqd-http-address", options.nsqd_http_address),
    ):
        for address in addresses:
            try:
                where = parse_tcp_address(split_scheme(address)[1])
                await asyncio.get_running_loop().getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:
                raise UpstreamOptionsError(f"failed to resolve --{flag} ({address}) - {error}") from error
