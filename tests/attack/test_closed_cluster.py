"""A port scan of a cluster that is closed as docs/SECURITY.md says: without credentials nothing answers but /ping.

The routes are those of the daemons' own tables, so that a new one is scanned without being listed here.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from http.client import HTTPException

import pytest

from emberq.admin.daemon import Nsqadmin
from emberq.admin.options import SETTINGS as ADMIN_SETTINGS
from emberq.admin.options import AdminOptions
from emberq.http.router import Route
from emberq.lookupd.daemon import Nsqlookupd
from emberq.lookupd.options import SETTINGS as LOOKUPD_SETTINGS
from emberq.lookupd.options import LookupdOptions
from emberq.nsqd.daemon import Nsqd
from emberq.nsqd.options import SETTINGS as NSQD_SETTINGS
from emberq.nsqd.options import NsqdOptions
from emberq.wire.line import LEGAL_STATES
from tests.support.closed_cluster import ClosedCluster, closed_cluster
from tests.support.command import require_command
from tests.support.raw_client import ERROR, Client
from tests.support.raw_connection import RawConnection
from tests.support.stream_upgrade import start_tls
from tests.support.waiting import PATIENCE_S

DAEMONS = ["nsqd", "nsqlookupd", "nsqadmin"]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
SOME = 17
"""Every so many of all requests, where one is as good as another."""
WELL_KNOWN = {
    "nsqd": ("/pub", "/stats", "/metrics", "/config/x", "/drain", "/journal/read", "/debug/pprof/heap"),
    "nsqlookupd": ("/lookup", "/nodes", "/topic/tombstone", "/metrics", "/debug/pprof/heap"),
    "nsqadmin": ("/api/topics", "/api/live", "/metrics", "/config/x", "/login", "/nodes"),
}
"""Some paths, by which one sees that the tables are those of the daemons."""
CUT_OFF = (ssl.SSLError, ConnectionError, HTTPException, EOFError)
MAX_ALERT_BYTES = 7
"""An alert is all that a server of TLS may say in clear."""
NO_SECRET: dict[str, str] = {}
WRONG_SECRETS = [
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer "},
    {"Authorization": "Basic Ondyb25n"},
    {"X-Forwarded-User": "admin"},
    {"Cookie": "nsqadmin-session=0"},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedCluster]:
    require_command("openssl")
    with closed_cluster(tmp_path_factory.mktemp("closed")) as running:
        yield running


# What there is to ask.


async def _routes(daemon: str, config: str) -> list[Route]:
    argv = [f"--config={config}"]
    if daemon == "nsqd":
        return Nsqd(NsqdOptions(**NSQD_SETTINGS.load(argv).options))._web._https.admission.router.routes
    if daemon == "nsqlookupd":
        options = LookupdOptions(**LOOKUPD_SETTINGS.load(argv).options)
        return Nsqlookupd(options)._http.admission.router.routes
    return Nsqadmin(AdminOptions(**ADMIN_SETTINGS.load(argv).options))._http.admission.router.routes


@cache
def _paths(daemon: str, config: str) -> list[str]:
    routes = asyncio.run(_routes(daemon, config))
    known = {re.sub(r"\{\w+\}", "x", route.path) for route in routes}
    return sorted({*known, "/", "/nope", "/ping/", "//ping", "/PING", "/ping/../stats"})


def targets(cluster: ClosedCluster, daemon: str) -> list[tuple[str, str]]:
    """Requests by every method for each path of a daemon, and for paths that are none."""
    found = _paths(daemon, str(cluster.folder / f"{daemon}.cfg"))
    assert {*WELL_KNOWN[daemon]} <= {*found}
    query = "?topic=t&channel=c&node=n:1&format=json"
    return [(method, f"{path}{query}") for path in found for method in METHODS]


def is_ping(target: str) -> bool:
    return target.startswith("/ping?")


# HTTP.


@pytest.mark.parametrize("daemon", DAEMONS)
def test_without_a_secret_no_route_answers_but_ping(cluster: ClosedCluster, daemon: str) -> None:
    with cluster.asking(daemon, headers=NO_SECRET) as ask:
        for method, target in targets(cluster, daemon):
            answer = ask(method, target, b"")
            if is_ping(target):
                assert answer.status == (200 if method in ("GET", "OPTIONS") else 405), method
            else:
                assert answer.status == 401, (method, target, answer)


@pytest.mark.parametrize("daemon", DAEMONS)
@pytest.mark.parametrize("headers", WRONG_SECRETS)
def test_nothing_passes_for_the_secret(cluster: ClosedCluster, daemon: str, headers: dict[str, str]) -> None:
    with cluster.asking(daemon, headers=headers) as ask:
        for method, target in targets(cluster, daemon)[::SOME]:
            assert is_ping(target) or ask(method, target, b"").status == 401, (method, target)


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd"])
def test_without_a_certificate_not_even_the_secret_opens(cluster: ClosedCluster, daemon: str) -> None:
    for headers in (NO_SECRET, None):
        with pytest.raises(CUT_OFF):
            cluster.ask(daemon, "GET", "/ping", shows_certificate=False, headers=headers)


def test_plain_http_of_nsqd_says_nothing_but_that_tls_is_required(cluster: ClosedCluster) -> None:
    for headers in (NO_SECRET, None):
        with cluster.asking("nsqd", listener="HTTP", headers=headers) as ask:
            for method, target in targets(cluster, "nsqd"):
                answer = ask(method, target, b"")
                assert answer.status == 403, (method, target)
                if method != "HEAD":
                    assert answer.json() == {"message": "TLS_REQUIRED", "https_port": cluster.ports["nsqd", "HTTPS"]}


TLS_PORTS = [("nsqd", "HTTPS"), ("nsqlookupd", "TCP"), ("nsqlookupd", "HTTPS"), ("nsqadmin", "HTTPS")]


@pytest.mark.parametrize(("daemon", "listener"), TLS_PORTS)
def test_a_port_of_tls_says_nothing_in_clear(cluster: ClosedCluster, daemon: str, listener: str) -> None:
    asked = targets(cluster, daemon)[::SOME]
    said = [f"{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for method, target in asked]
    said += [b"  V1" + line + b"\n" for line in (b"PING", b"IDENTIFY", b"REGISTER t", b"UNREGISTER t")]
    said += [b"  V2" + name + b" t c\n" for name in LEGAL_STATES]
    for each in said:
        client = RawConnection(cluster.address(daemon, listener))
        client.send(each)
        with suppress(ConnectionResetError):
            assert len(client.read_until_eof()) <= MAX_ALERT_BYTES
        client.close()


def test_registering_needs_a_certificate(cluster: ClosedCluster) -> None:
    def ping(*, shows_certificate: bool) -> bytes:
        plain = socket.create_connection(cluster.address("nsqlookupd", "TCP"), timeout=PATIENCE_S)
        context = cluster.context(shows_certificate=shows_certificate)
        with plain, context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(b"  V1PING\n")
            return client.recv(100)

    try:
        answer = ping(shows_certificate=False)
    except CUT_OFF:
        answer = b""
    assert answer == b""
    assert ping(shows_certificate=True) == b"\0\0\0\2OK"


# nsqd's TCP.


def refusal(cluster: ClosedCluster, send: Callable[[Client], None]) -> bytes:
    """The one frame that a client gets before it is cut off."""
    client = Client(cluster.address("nsqd", "TCP"))
    send(client)
    frame = client.read_frame()
    client.expect_closed()
    client.close()
    assert frame.type == ERROR
    return frame.data


@pytest.mark.parametrize("name", sorted(set(LEGAL_STATES) - {b"IDENTIFY"}))
def test_no_command_is_executed_in_clear(cluster: ClosedCluster, name: bytes) -> None:
    def bare(client: Client) -> None:
        client.send(name + b" t c\n\0\0\0\1x")

    def identified(client: Client) -> None:
        client.identify()
        client.send(name + b" t c\n\0\0\0\1x")

    for send in (bare, identified):
        assert refusal(cluster, send).startswith(b"E_INVALID cannot "), name


def test_the_upgrade_needs_a_certificate(cluster: ClosedCluster) -> None:
    client = Client(cluster.address("nsqd", "TCP"))
    client.identify(tls_v1=True)
    with pytest.raises(CUT_OFF):
        start_tls(client, cluster.context(shows_certificate=False))
    client.close()
