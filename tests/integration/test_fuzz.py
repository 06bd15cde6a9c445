"""One nsqd under attack in every language it speaks, while a well-behaved client goes on working.

The attackers send what `malformed` makes, the same in every run, and leave in different ways. After each attack nsqd
must be as it was: the well-behaved client is served, memory stayed bounded, every connection is closed, and the log
shows no error that nobody had thought of.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.integration import malformed
from tests.integration.listening import ANY_HTTP_PORT, ANY_HTTPS_PORT, port_of
from tests.support.certificates import Authority
from tests.support.nsqd_process import NsqdProcess
from tests.support.raw_client import MAGIC, Client
from tests.support.waiting import PATIENCE_S, wait_until

MAX_PEAK_BYTES = 300 * malformed.MIB
"""Of nsqd's memory: three times what it takes anyway, and far below what a bomb stands for."""
OTHER_FILES = 3
"""Files that nsqd may have opened for itself since the start, such as those of a topic."""
PACE_S = 0.005


class WatchedNsqd(NsqdProcess):
    """nsqd, seen by the system."""

    @property
    def open_file_count(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory it ever occupied."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


class Citizen:
    """A well-behaved client in a thread of its own: publishes a message, receives it, finishes it, and so on.

    Every message must arrive, once, in order and soon: a reply that takes longer than the client's timeout fails.
    """

    def __init__(self, nsqd: NsqdProcess) -> None:
        self._producer = nsqd.connect()
        self._consumer = nsqd.consumer("steady", "c", rdy=1)
        self.received_count = 0
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is None:
            assert self._consumer.messages_until_now() == []

    def _work(self) -> None:
        try:
            while not self._stopping.wait(PACE_S):
                self._pass_a_message()
        except BaseException as failure:  # noqa: BLE001 - told to the test, in the test's thread
            self._failure = failure

    def _pass_a_message(self) -> None:
        body = b"%d" % self.received_count
        self._producer.pub("steady", body)
        message = self._consumer.read_message()
        assert (message.body, message.attempts) == (body, 1)
        self._consumer.fin(message)
        self.received_count += 1

    def expect_service(self) -> None:
        """It has not failed, and gets some more messages through."""
        enough = self.received_count + 3
        wait_until(lambda: self.received_count >= enough or self._failure is not None)
        if self._failure is not None:
            raise self._failure


class Battlefield:
    """nsqd as the tests find it, and what must be true of it after each attack."""

    def __init__(self, nsqd: WatchedNsqd, citizen: Citizen, trust: ssl.SSLContext) -> None:
        self.nsqd = nsqd
        self.trust = trust
        """For attackers that shake hands before they misbehave."""
        self.tcp = ("127.0.0.1", nsqd.tcp_port)
        self.http = ("127.0.0.1", port_of(nsqd, "HTTP"))
        self.https = ("127.0.0.1", port_of(nsqd, "HTTPS"))
        self._citizen = citizen
        self._open_at_first = nsqd.open_file_count

    def expect_peace(self, *, files_in_use: int = 0) -> None:
        self._citizen.expect_service()
        assert self.nsqd.peak_rss_bytes < MAX_PEAK_BYTES
        allowed = self._open_at_first + OTHER_FILES + files_in_use
        wait_until(lambda: self.nsqd.open_file_count <= allowed)
        assert "Traceback" not in self.nsqd.log


@pytest.fixture(scope="module")
def battlefield(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Battlefield]:
    folder = tmp_path_factory.mktemp("fuzz")
    authority = Authority(folder, "authority")
    server = authority.issue("server")
    flags = (ANY_HTTP_PORT, ANY_HTTPS_PORT, f"--tls-cert={server.certificate_path}", f"--tls-key={server.key_path}")
    with WatchedNsqd(*flags, data_path=folder, log_path=folder / "nsqd.log") as nsqd, Citizen(nsqd) as citizen:
        citizen.expect_service()
        yield Battlefield(nsqd, citizen, ssl.create_default_context(cafile=authority.path))


# How attackers come and go


def part(dice: random.Random, connection: socket.socket) -> None:
    """Leave by a reset, by closing, or by falling silent, whereupon nsqd must close."""
    way = dice.randrange(3)
    if way == 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == 1:
        read_to_the_end(connection)
    connection.close()


def read_to_the_end(connection: socket.socket) -> None:
    """Send no more; nsqd closes, in order or by a reset."""
    connection.settimeout(PATIENCE_S)
    with suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_WR)
    with suppress(ConnectionError):
        while connection.recv(65536):
            pass


def send(connection: socket.socket, data: bytes) -> None:
    """Send as much as nsqd takes before it hangs up."""
    with suppress(ConnectionError):
        connection.sendall(data)


def upgraded(battlefield: Battlefield, feature: str) -> Client:
    """A connection on which nsqd expects another kind of stream from now on."""
    client = Client(battlefield.tcp)
    assert client.identify(**{feature: True})[feature] is True
    return client


# The attacks

Attack = Callable[[Battlefield, random.Random], None]


def malformed_http(battlefield: Battlefield, dice: random.Random) -> None:
    connection = socket.create_connection(battlefield.http)
    send(connection, malformed.http_request(dice))
    part(dice, connection)


def malformed_commands(battlefield: Battlefield, dice: random.Random) -> None:
    connection = socket.create_connection(battlefield.tcp)
    send(connection, MAGIC + malformed.v2_commands(dice))
    part(dice, connection)


def malformed_deflate(battlefield: Battlefield, dice: random.Random) -> None:
    client = upgraded(battlefield, "deflate")
    send(client.socket, malformed.deflate_stream(dice))
    part(dice, client.socket)


def malformed_snappy(battlefield: Battlefield, dice: random.Random) -> None:
    client = upgraded(battlefield, "snappy")
    send(client.socket, malformed.snappy_stream(dice))
    part(dice, client.socket)


def malformed_handshakes(battlefield: Battlefield, dice: random.Random) -> None:
    if dice.random() < 0.5:
        connection = socket.create_connection(battlefield.https)
    else:
        connection = upgraded(battlefield, "tls_v1").socket
    send(connection, malformed.tls_handshake(dice))
    part(dice, connection)


def malformed_http_in_tls(battlefield: Battlefield, dice: random.Random) -> None:
    connection = battlefield.trust.wrap_socket(socket.create_connection(battlefield.https), server_hostname="localhost")
    with suppress(ConnectionError, ssl.SSLError):
        connection.sendall(malformed.http_request(dice))
    part(dice, socket.socket(fileno=connection.detach()))  # without TLS's own good-bye


def malformed_records_in_tls(battlefield: Battlefield, dice: random.Random) -> None:
    """Shake hands, then send what is no TLS at all."""
    client = upgraded(battlefield, "tls_v1")
    encrypted = battlefield.trust.wrap_socket(client.socket, server_hostname="localhost")
    below = socket.socket(fileno=encrypted.detach())
    send(below, malformed.v2_commands(dice))
    part(dice, below)


@pytest.mark.parametrize(
    ("attack", "rounds"),
    [
        (malformed_http, 1_500),
        (malformed_commands, 1_500),
        (malformed_deflate, 500),
        (malformed_snappy, 500),
        (malformed_handshakes, 500),
        (malformed_http_in_tls, 150),
        (malformed_records_in_tls, 150),
    ],
)
def test_nsqd_outlives_what_is(battlefield: Battlefield, attack: Attack, rounds: int) -> None:
    dice = random.Random(attack.__name__)
    for _ in range(rounds):
        attack(battlefield, dice)
    battlefield.expect_peace()


@pytest.mark.parametrize("name", malformed.DEFLATE_BOMBS)
def test_nsqd_outlives_a_deflate_bomb_of(battlefield: Battlefield, name: str) -> None:
    client = upgraded(battlefield, "deflate")
    send(client.socket, malformed.DEFLATE_BOMBS[name])
    read_to_the_end(client.socket)
    client.close()
    battlefield.expect_peace()


@pytest.mark.parametrize("name", malformed.SNAPPY_BOMBS)
def test_nsqd_outlives_a_snappy_bomb_of(battlefield: Battlefield, name: str) -> None:
    client = upgraded(battlefield, "snappy")
    send(client.socket, malformed.SNAPPY_BOMBS[name])
    read_to_the_end(client.socket)
    client.close()
    battlefield.expect_peace()


@pytest.mark.parametrize("command", [b"NOP\n", b"RDY 1\n", b"FIN 0123456789abcdef\n"])
def test_nobody_waits_long_beside_a_flood_of(battlefield: Battlefield, command: bytes) -> None:
    flooder = Client(battlefield.tcp)
    flooder.sub("fuzz#ephemeral", "c#ephemeral")
    served = threading.Event()

    def flood() -> None:
        packet = command * (256 * 1024 // len(command))
        while not served.is_set():
            send(flooder.socket, packet)

    def read() -> None:
        with suppress(OSError):
            while flooder.socket.recv(65536):
                pass

    threads = [threading.Thread(target=work) for work in (flood, read)]
    for thread in threads:
        thread.start()
    try:
        battlefield.expect_peace(files_in_use=1)
    finally:
        served.set()
        threads[0].join()
        flooder.half_close()
        threads[1].join()
        flooder.close()
    battlefield.expect_peace()
