"""How long a bystander's publishes take while others attack: `python -m tests.attack.bystander`.

For each attack a cluster of its own is started: nsqd, the nsqlookupd that it registers with, and an nsqadmin that looks
at both. Attackers are processes, so that what is measured waits for the daemons and for the cores alone. PYTHONPATH
chooses the package, so a compiled one can be measured:

    PYTHONPATH=build/compiled:. python -m tests.attack.bystander --seconds 5

The exit status is 1 if a publish in a hundred took longer than MAX_P99_MS in any of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import ssl
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, cast

from emberq.admin.access.user import hash_password
from tests.attack.test_compressed_padding import STREAMS
from tests.browser.admin_process import AdminProcess
from tests.integration.listening import ANY_HTTP_PORT, ANY_HTTPS_PORT, port_of
from tests.support.certificates import Authority
from tests.support.lookupd_harness import Nsqd as Registering
from tests.support.nsqd_process import NsqdProcess
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.raw_client import Client
from tests.support.stream_upgrade import TranslatedSocket, start_deflate, start_snappy

Address = tuple[str, int]


class Scene(NamedTuple):
    """Where the daemons are."""

    nsqd: Address
    nsqd_http: str
    nsqd_https: Address
    nsqlookupd: Address
    nsqadmin: str


Attack = Callable[[Scene], None]
"""Goes on until its process is killed."""

ATTACKERS = 4
STREAM_BYTES = 1024 * 1024
SILENT_CONNECTIONS = 500
LIVE_VIEWS = 25
"""Of each attacker: a hundred in all."""
HANDSHAKES = 100
REGISTRATIONS = 1000
IDENTITY_KEYS = 500_000
"""Of an IDENTIFY, which then has almost 5 MB."""
PAUSE_S = 0.002
"""Between two publishes of the bystander."""
MAX_P99_MS = 100.0
HOST = "127.0.0.1"
USER, PASSWORD = "ada", "lovelace"


# Attacks on nsqd.


def compressed(name: str) -> Attack:
    """Much of a compressed stream that holds next to nothing, on four connections."""
    compression, make = STREAMS[name]
    unit = make()
    stream = unit * (STREAM_BYTES // len(unit))

    def attack(scene: Scene) -> None:
        while True:
            with suppress(OSError):
                client = _upgraded(scene.nsqd, compression)
                below = cast(TranslatedSocket, client.socket).below
                while True:
                    below.sendall(stream)

    return attack


def bombs(scene: Scene) -> None:
    """Megabytes of zeros, a thousandth as large on their way."""
    client = _upgraded(scene.nsqd, "deflate")
    while True:
        client.mpub("bombs#ephemeral", [bytes(STREAM_BYTES)] * 4)


def kept_bombs(scene: Scene) -> None:
    """The same to a topic that keeps them: beyond --mem-queue-bytes they go to the disk."""
    client = _upgraded(scene.nsqd, "deflate")
    for number in count():
        topic = f"kept-{os.getpid()}-{number}"  # a new one before the disk is full
        for _ in range(10):
            client.mpub(topic, [bytes(STREAM_BYTES)] * 4)
        _post(f"{scene.nsqd_http}/topic/delete?topic={topic}")


def large_identities(scene: Scene) -> None:
    """IDENTIFYs of as many keys as fit into --max-body-size."""
    body = b"{" + b",".join(b'"%x":0' % number for number in range(IDENTITY_KEYS)) + b"}"
    while True:
        with suppress(OSError), socket.create_connection(scene.nsqd) as client:
            client.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body)
            client.recv(1 << 16)


def silence(scene: Scene) -> None:
    """Connections that say nothing, opened again as soon as nsqd has closed them."""
    silent: list[socket.socket] = []
    while True:
        with suppress(OSError):
            silent.append(socket.create_connection(scene.nsqd))
        if len(silent) > SILENT_CONNECTIONS:
            silent.pop(0).close()


def handshakes(scene: Scene) -> None:
    """Upgrades to TLS, each left when it is done."""
    context = _trusting()
    while True:
        with suppress(OSError):
            client = Client(scene.nsqd)
            client.identify(tls_v1=True)
            context.wrap_socket(client.socket).close()


def https_handshakes(scene: Scene) -> None:
    """Connections to the port of HTTPS, many begun at a time and each left when its handshake is done."""
    context = _trusting()
    while True:
        begun: list[socket.socket] = []
        for _ in range(HANDSHAKES):
            with suppress(OSError):
                begun.append(socket.create_connection(scene.nsqd_https))
        for connection in begun:
            with suppress(OSError):
                context.wrap_socket(connection).close()


def broken_handshakes(scene: Scene) -> None:
    """Upgrades to TLS with nonsense instead of a handshake."""
    while True:
        with suppress(OSError):
            client = Client(scene.nsqd)
            client.identify(tls_v1=True)
            client.send(b"\x16\x03\x01" + bytes(4096))
            client.close()


def bad_commands(scene: Scene) -> None:
    """FINs of messages that are not in flight."""
    client = Client(scene.nsqd)
    client.sub("orders", "c")
    lines = b"FIN 0123456789abcdef\n" * 1000
    while True:
        client.socket.sendall(lines)
        client.socket.recv(1 << 20)


def unfinished_mpubs(scene: Scene) -> None:
    """The beginnings of large MPUBs, each cut off."""
    while True:
        with suppress(OSError), socket.create_connection(scene.nsqd) as client:
            client.sendall(b"  V2MPUB orders\n" + struct.pack(">ii", 5_000_000, 1_000_000) + bytes(100_000))


def forms(scene: Scene) -> None:
    """Forms of another site, which are refused."""
    while True:
        _post(f"{scene.nsqd_http}/topic/delete?topic=orders", Origin="http://evil.example")


def profiling(scene: Scene) -> None:
    """The memory profile, again and again."""
    while True:
        _get(f"{scene.nsqd_http}/debug/pprof/heap?seconds=1")


def large_stats(scene: Scene) -> None:
    """/stats and /metrics, again and again."""
    while True:
        for path in ("stats?format=json", "metrics"):
            _get(f"{scene.nsqd_http}/{path}")


# Attacks on those around it.


def registrations(scene: Scene) -> None:
    """Topics without end at the nsqlookupd of the bystander's nsqd."""
    numbers = count()
    while True:
        with suppress(OSError):
            client = Registering(scene.nsqlookupd)
            client.identify(broadcast_address=f"flood-{os.getpid()}")
            while True:
                lines = [b"REGISTER flood-%d-%d\n" % (os.getpid(), next(numbers)) for _ in range(REGISTRATIONS)]
                client.socket.sendall(b"".join(lines))
                client.socket.recv(1 << 20)


def guesses(scene: Scene) -> None:
    """Wrong passwords at nsqadmin."""
    for number in count():
        _post(f"{scene.nsqadmin}/login", {"user": f"user {number}", "password": "wrong"})


def live_views(scene: Scene) -> None:
    """Live views of nsqadmin, as many as it lets a user have, each of another channel."""
    cookie = _post(f"{scene.nsqadmin}/login", {"user": USER, "password": PASSWORD})
    host, _, port = scene.nsqadmin.removeprefix("http://").partition(":")
    views: list[socket.socket] = []
    for number in range(LIVE_VIEWS):
        view = socket.create_connection((host, int(port)))
        target = f"/api/live?view=channel&topic=orders&channel=c{os.getpid()}-{number}"
        view.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
        views.append(view)
    while True:
        for view in views:
            view.recv(1 << 16)


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    **{f"{STREAMS[name][0]}: {name}": compressed(name) for name in STREAMS},
    "deflate: bombs": bombs,
    "deflate: bombs that are kept": kept_bombs,
    "IDENTIFYs of 5 MB": large_identities,
    "silent connections": silence,
    "TLS handshakes": handshakes,
    "HTTPS handshakes": https_handshakes,
    "broken TLS handshakes": broken_handshakes,
    "bad commands": bad_commands,
    "unfinished MPUBs": unfinished_mpubs,
    "forms of another site": forms,
    "memory profiles": profiling,
    "statistics": large_stats,
    "registrations at nsqlookupd": registrations,
    "wrong passwords at nsqadmin": guesses,
    "live views of nsqadmin": live_views,
}


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _upgraded(address: Address, compression: str) -> Client:
    client = Client(address)
    client.identify(**{compression: True})
    start_snappy(client) if compression == "snappy" else start_deflate(client)
    return client


def _get(url: str) -> None:
    with suppress(OSError), urllib.request.urlopen(url) as answer:
        answer.read()


def _post(url: str, document: object = None, **headers: str) -> str:
    """The cookie of the answer; empty if there is none."""
    request = urllib.request.Request(url, json.dumps(document).encode(), headers, method="POST")
    with suppress(OSError), urllib.request.urlopen(request) as answer:
        answer.read()
        return str(answer.headers.get("Set-Cookie", "")).partition(";")[0]
    return ""


# The measurement.


@contextmanager
def _cluster(folder: Path) -> Iterator[Scene]:
    (folder / "data").mkdir()
    users = folder / "users"
    users.write_text(f"{USER}:viewer:{hash_password(PASSWORD)}\n")
    certificate = Authority(folder, "authority").issue("nsqd")
    with ExitStack() as running:
        nsqlookupd = running.enter_context(NsqlookupdProcess(log_path=folder / "nsqlookupd.log"))
        nsqd = running.enter_context(
            NsqdProcess(
                ANY_HTTP_PORT,
                ANY_HTTPS_PORT,
                f"--tls-cert={certificate.certificate_path}",
                f"--tls-key={certificate.key_path}",
                f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
                f"--broadcast-address={HOST}",
                data_path=folder / "data",
                log_path=folder / "nsqd.log",
            )
        )
        flags = (f"--lookupd-http-address={nsqlookupd.http_address}", f"--user-file={users}", "--live-interval=1s")
        admin = running.enter_context(AdminProcess(*flags, log_path=folder / "nsqadmin.log"))
        yield Scene(
            nsqd=(HOST, nsqd.tcp_port),
            nsqd_http=f"http://{HOST}:{port_of(nsqd, 'HTTP')}",
            nsqd_https=(HOST, port_of(nsqd, "HTTPS")),
            nsqlookupd=(HOST, nsqlookupd.tcp_port),
            nsqadmin=admin.url,
        )


@contextmanager
def _attacked(attack: Attack | None, scene: Scene) -> Iterator[None]:
    attackers = [
        multiprocessing.Process(target=attack, args=(scene,), daemon=True)
        for _ in range(ATTACKERS if attack is not None else 0)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        yield
        assert all(attacker.is_alive() for attacker in attackers), "an attacker gave up"
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()


def _waits_ms(client: Client, *, seconds: float) -> list[float]:
    """What each publish took, in order of length."""
    waits: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        client.pub("orders#ephemeral", b"x" * 200)
        waits.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    return sorted(waits)


def main() -> int:
    """1 if the bystander waited too long."""
    parser = argparse.ArgumentParser(description="Measure a bystander's publishes under attack.")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each attack")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    arguments = parser.parse_args()
    worst_p99 = 0.0
    print("| attack | publishes | p50 ms | p99 ms | max ms |\n|---|---|---|---|---|")
    for name in arguments.only:
        with (
            tempfile.TemporaryDirectory() as folder,
            _cluster(Path(folder)) as scene,
            closing(Client(scene.nsqd)) as client,  # before the attack: a flood of connections keeps new ones waiting
            _attacked(ATTACKS[name], scene),
        ):
            time.sleep(0.5)
            waits = _waits_ms(client, seconds=arguments.seconds)
        p50, p99 = (waits[len(waits) * part // 100] for part in (50, 99))
        worst_p99 = max(worst_p99, p99)
        print(f"| {name} | {len(waits):,} | {p50:.1f} | {p99:.1f} | {waits[-1]:.1f} |", flush=True)
    return 1 if worst_p99 > MAX_P99_MS else 0


if __name__ == "__main__":
    sys.exit(main())
