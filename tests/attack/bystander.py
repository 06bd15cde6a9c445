"""How long a bystander's publishes take while others attack: `python -m tests.attack.bystander`.

For each attack an nsqd of its own is started. Attackers are processes, so that what is measured waits for nsqd and for
the cores alone. PYTHONPATH chooses the package, so a compiled one can be measured:

    PYTHONPATH=build/compiled:. python -m tests.attack.bystander --seconds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from tests.attack.test_compressed_padding import STREAMS
from tests.support.held_port import hold_port
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import Client
from tests.support.stream_upgrade import TranslatedSocket, start_deflate, start_snappy

Address = tuple[str, int]
Attack = Callable[[Address, int], None]
"""Given nsqd's address and the port of its HTTP API. Goes on until its process is killed."""

ATTACKERS = 4
STREAM_BYTES = 1024 * 1024
SILENT_CONNECTIONS = 500
PAUSE_S = 0.002
"""Between two publishes of the bystander."""


def compressed(name: str) -> Attack:
    """Much of a compressed stream that holds next to nothing, on four connections."""
    compression, make = STREAMS[name]
    unit = make()
    stream = unit * (STREAM_BYTES // len(unit))

    def attack(address: Address, _http_port: int) -> None:
        with suppress(OSError):
            client = _upgraded(address, compression)
            below = cast(TranslatedSocket, client.socket).below
            while True:
                below.sendall(stream)

    return attack


def bombs(address: Address, _http_port: int) -> None:
    """Megabytes of zeros, a thousandth as large on their way."""
    client = _upgraded(address, "deflate")
    while True:
        client.mpub("bombs#ephemeral", [bytes(STREAM_BYTES)] * 4)


def silence(address: Address, _http_port: int) -> None:
    """Connections that say nothing, opened again as soon as nsqd has closed them."""
    silent: list[socket.socket] = []
    while True:
        with suppress(OSError):
            silent.append(socket.create_connection(address))
        if len(silent) > SILENT_CONNECTIONS:
            silent.pop(0).close()


def bad_commands(address: Address, _http_port: int) -> None:
    """FINs of messages that are not in flight."""
    client = Client(address)
    client.sub("orders", "c")
    lines = b"FIN 0123456789abcdef\n" * 1000
    while True:
        client.socket.sendall(lines)
        client.socket.recv(1 << 20)


def unfinished_mpubs(address: Address, _http_port: int) -> None:
    """The beginnings of large MPUBs, each cut off."""
    while True:
        with suppress(OSError), socket.create_connection(address) as client:
            client.sendall(b"  V2MPUB orders\n" + struct.pack(">ii", 5_000_000, 1_000_000) + bytes(100_000))


def profiling(_address: Address, http_port: int) -> None:
    """The memory profile, again and again."""
    while True:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{http_port}/debug/pprof/heap?seconds=1") as it,
        ):
            it.read()


def large_stats(_address: Address, http_port: int) -> None:
    """/stats and /metrics, again and again."""
    while True:
        for path in ("stats?format=json", "metrics"):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{http_port}/{path}") as answer:
                answer.read()


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    **{f"{STREAMS[name][0]}: {name}": compressed(name) for name in STREAMS},
    "deflate: bombs": bombs,
    "silent connections": silence,
    "bad commands": bad_commands,
    "unfinished MPUBs": unfinished_mpubs,
    "memory profiles": profiling,
    "statistics": large_stats,
}


def _upgraded(address: Address, compression: str) -> Client:
    client = Client(address)
    client.identify(**{compression: True})
    start_snappy(client) if compression == "snappy" else start_deflate(client)
    return client


@contextmanager
def _attacked(attack: Attack | None, address: Address, http_port: int) -> Iterator[None]:
    attackers = [
        multiprocessing.Process(target=attack, args=(address, http_port), daemon=True)
        for _ in range(ATTACKERS if attack is not None else 0)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            attacker.join()


def _waits_ms(address: Address, *, seconds: float) -> list[float]:
    """What each publish took, in order of length."""
    client = Client(address)
    waits: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        client.pub("orders#ephemeral", b"x" * 200)
        waits.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    client.close()
    return sorted(waits)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a bystander's publishes under attack.")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each attack")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    arguments = parser.parse_args()
    print(f"{'attack':<32} {'publishes':>9} {'p50':>8} {'p99':>8} {'worst':>8} ms")
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder, hold_port() as http_port:
            data_path = Path(folder) / "data"
            data_path.mkdir()
            http = f"--http-address=127.0.0.1:{http_port}"
            with NsqdProcess(http, data_path=data_path, log_path=Path(folder) / "log") as nsqd:
                address = ("127.0.0.1", nsqd.tcp_port)
                with _attacked(ATTACKS[name], address, http_port):
                    time.sleep(0.5)
                    waits = _waits_ms(address, seconds=arguments.seconds)
        p50, p99 = (waits[len(waits) * part // 100] for part in (50, 99))
        print(f"{name:<32} {len(waits):>9} {p50:>8.2f} {p99:>8.2f} {waits[-1]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
