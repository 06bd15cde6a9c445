"""What nsqd logs, and at which level: the lines of the Go nsqd that operators search for."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.nsqd.trace import MAX_SHOWN
from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import Authority
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.raw_client import Client
from tests.support.stream_upgrade import start_deflate, start_snappy, start_tls
from tests.support.tls_pair import client_context
from tests.support.waiting import wait_until

SECRET = b"s3cret-of-a-client"


class Log:
    """What the daemon in this process has logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def set_level(self, level: int) -> None:
        self._caplog.set_level(level, "emberq")
        self._caplog.handler.setLevel(logging.NOTSET)  # the level may be changed by the daemon, too

    @property
    def lines(self) -> list[str]:
        return [f"{record.levelname} {record.getMessage()}" for record in list(self._caplog.records)]

    def expect(self, *lines: str) -> None:
        """Wait until all of these are there."""
        with suppress(AssertionError):
            wait_until(lambda: set(lines) <= set(self.lines))
        assert not set(lines) - set(self.lines), self.lines

    def of(self, client: Client) -> list[str]:
        """The lines about this client, with `A` for its address."""
        address = client.address
        return [line.replace(address, "A") for line in self.lines if address in line]

    def expect_of(self, client: Client, *lines: str) -> None:
        """Wait until the lines about this client are these, in this order."""
        with suppress(AssertionError):
            wait_until(lambda: self.of(client) == list(lines))
        assert self.of(client) == list(lines)

    def clear(self) -> None:
        self._caplog.clear()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    log = Log(caplog)
    log.set_level(logging.INFO)
    return log


NEW = "INFO TCP: new client(A)"
MAGIC = "INFO CLIENT(A): desired protocol magic '  V2'"
EXITING = "INFO PROTOCOL(V2): [A] exiting ioloop"


def identify_line(**changed: object) -> str:
    names = {
        "ClientID": "",
        "Hostname": "",
        "HeartbeatInterval": 0,
        "OutputBufferSize": 0,
        "OutputBufferTimeout": 0,
        "FeatureNegotiation": "true",
        "TLSv1": "false",
        "Deflate": "false",
        "DeflateLevel": 0,
        "Snappy": "false",
        "SampleRate": 0,
        "UserAgent": "",
        "MsgTimeout": 0,
    }
    return "INFO [A] IDENTIFY: {" + " ".join(f"{name}:{value}" for name, value in (names | changed).items()) + "}"


# How a connection begins and ends.


def test_a_client_is_logged_when_it_comes_identifies_itself_and_goes(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    client.identify(client_id="c", hostname="h", user_agent="u/1", heartbeat_interval=5000, sample_rate=3)
    client.socket.shutdown(socket.SHUT_RDWR)
    identified = identify_line(ClientID="c", Hostname="h", UserAgent="u/1", HeartbeatInterval=5000, SampleRate=3)
    log.expect_of(client, NEW, MAGIC, identified, EXITING)


def test_the_magic_is_logged_before_what_comes_behind_it(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect(magic=b"")
    client.send(b"  V2SUB t c\n")
    client.expect_ok()
    magic = f"INFO CLIENT({client.address}): desired protocol magic '  V2'"
    assert log.lines.index(magic) < log.lines.index("INFO TOPIC(t): created")


@pytest.mark.parametrize(("magic", "shown"), [(b"GET ", "GET "), (b"\xff\0\n'", "\\xff\0\n'")])
def test_a_client_of_another_protocol_is_logged(nsqd: NsqdHarness, log: Log, magic: bytes, shown: str) -> None:
    client = nsqd.connect(magic=magic)
    client.read_frame()
    log.expect_of(
        client,
        NEW,
        f"INFO CLIENT(A): desired protocol magic '{shown}'",
        f"ERROR client(A) bad protocol magic '{shown}'",
        EXITING,
    )


def test_a_client_that_leaves_before_its_magic_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    nsqd.connect(magic=b" ").close()
    log.expect("INFO failed to read protocol version - EOF")


def test_what_a_client_tells_of_itself_is_logged_up_to_a_bound(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    client.identify(client_id="x" * 5000, user_agent="y" * 5000)
    line = identify_line(ClientID="x" * MAX_SHOWN, UserAgent="y" * MAX_SHOWN)
    log.expect_of(client, NEW, MAGIC, line)


def upgrade(client: Client, authority: Authority, *, kinds: tuple[str, ...]) -> None:
    client.identify(**dict.fromkeys(kinds, True))
    for kind in kinds:
        if kind == "tls_v1":
            start_tls(client, client_context(authority.path))
        elif kind == "snappy":
            start_snappy(client)
        else:
            start_deflate(client)


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [
        (("tls_v1",), ["TLS"]),
        (("snappy",), ["snappy"]),
        (("deflate",), ["deflate (level 6)"]),
        (("tls_v1", "snappy"), ["TLS", "snappy"]),
    ],
)
def test_an_upgrade_of_the_stream_is_logged(
    start_nsqd: StartNsqd, authority: Authority, log: Log, kinds: tuple[str, ...], lines: list[str]
) -> None:
    nsqd = start_nsqd(**authority.issue("server").options())
    client = nsqd.connect()
    address = client.address
    upgrade(client, authority, kinds=kinds)
    log.expect(*(f"INFO PROTOCOL(V2): [{address}] upgrading connection to {line}" for line in lines))


def test_a_handshake_that_fails_is_logged(start_nsqd: StartNsqd, authority: Authority, log: Log) -> None:
    client = start_nsqd(**authority.issue("server").options()).connect()
    client.identify(tls_v1=True)
    client.send(b"this is no handshake at all")
    wait_until(lambda: EXITING in log.of(client))
    wrong = [line for line in log.of(client) if line.startswith("ERROR")]
    start = "E_IDENTIFY_FAILED IDENTIFY failed TLS handshake failed - "
    assert [line.partition(start)[0] for line in wrong] == ["ERROR [A] - ", "ERROR client(A) - "]


# Errors.


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"WHAT\n", "E_INVALID invalid command WHAT"),
        (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
        (b"PUB t\n" + struct.pack(">i", -1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    ],
)
def test_an_error_that_ends_a_connection_is_logged_when_it_happens_and_at_the_end(
    nsqd: NsqdHarness, log: Log, sent: bytes, error: str
) -> None:
    client = nsqd.connect()
    client.send(sent)
    log.expect_of(client, NEW, MAGIC, f"ERROR [A] - {error}", EXITING, f"ERROR client(A) - {error}")


def test_an_error_is_logged_up_to_a_bound(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    client.send(b"A" * 5000 + b"\n")
    wait_until(lambda: EXITING in log.of(client))
    assert all(len(line) < 2 * MAX_SHOWN for line in log.lines)


def test_a_line_without_end_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    client.send(b"A" * 20_000)
    ended = "ERROR client(A) - failed to read command - a line longer than any command"
    log.expect_of(client, NEW, MAGIC, EXITING, ended)


def test_a_connection_that_is_reset_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    wait_until(lambda: MAGIC in log.of(client))
    address = client.address
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    log.expect(f"ERROR client({address}) - failed to read command - connection reset by peer")


def test_a_silent_client_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    client = nsqd.connect()
    client.identify(heartbeat_interval=1000)
    nsqd.advance(ms=2000)
    reason = "failed to read command - i/o timeout: no command within two heartbeat intervals"
    log.expect_of(client, NEW, MAGIC, identify_line(HeartbeatInterval=1000), EXITING, f"ERROR client(A) - {reason}")


def test_a_client_that_does_not_read_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    publisher = nsqd.connect()
    for _ in range(20):
        publisher.mpub("t", [bytes(500_000)])
    reader = nsqd.connect(receive_buffer_bytes=4096)
    reader.identify(heartbeat_interval=1000)
    reader.sub("t", "c")
    reader.rdy(20)
    line = f"ERROR PROTOCOL(V2): [{reader.address}] messagePump error - i/o timeout: it does not read"

    def is_cut_off() -> bool:
        reader.nop()
        nsqd.settle()
        nsqd.advance(ms=900)
        return line in log.lines

    wait_until(is_cut_off)


def test_a_requeue_beyond_the_limit_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().pub("t", b"body")
    consumer.req(consumer.read_message(), 99_999_999)
    log.expect(
        f"INFO PROTOCOL(V2): [{consumer.address}] REQ timeout 99999999 out of range 0-3600000. Setting to 3600000"
    )


def test_a_large_message_is_a_debug_line_too(nsqd: NsqdHarness, log: Log) -> None:
    log.set_level(logging.DEBUG)
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().pub("t", b"x" * 500_000)
    message = consumer.read_message()
    start = f"DEBUG PROTOCOL(V2): writing msg({message.id.decode()}) to client(A) - xxx"
    assert [len(line) < 2 * MAX_SHOWN for line in log.of(consumer) if line.startswith(start)] == [True]


def test_rdy_after_cls_is_logged(nsqd: NsqdHarness, log: Log) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    consumer.command(b"CLS")
    consumer.command(b"RDY nonsense")
    log.expect(f"INFO PROTOCOL(V2): [{consumer.address}] ignoring RDY after CLS in state ClientStateV2Closing")


def test_no_error_is_logged_when_nsqd_stops(nsqd: NsqdHarness, log: Log) -> None:
    clients = [nsqd.connect(), nsqd.consumer("t", "c", rdy=1), nsqd.connect(magic=b"")]
    nsqd.settle()
    nsqd.stop()
    assert EXITING in log.of(clients[0])
    assert not [line for line in log.lines if line.startswith("ERROR")]


# The debug log.


def test_every_command_and_message_is_a_debug_line(nsqd: NsqdHarness, log: Log) -> None:
    log.set_level(logging.DEBUG)
    publisher, consumer = nsqd.connect(), nsqd.connect()
    for body in (b"one", b"two"):
        publisher.pub("t", body)
    publisher.mpub("t", [b"three"])
    publisher.dpub("t", 5, b"four")
    consumer.sub("t", "c")
    consumer.rdy(2)
    one, two = consumer.read_messages(2)
    consumer.touch(one)
    consumer.fin(one)
    consumer.req(two, 100)
    consumer.nop()
    consumer.command(b"CLS")
    log.expect(*(f"DEBUG PROTOCOL(V2): [{consumer.address}] [{line}]" for line in ("NOP", "CLS")))
    debug = [line for line in log.of(publisher) if line.startswith("DEBUG")]
    assert debug == [f"DEBUG PROTOCOL(V2): [A] [{line}]" for line in ("PUB t", "PUB t", "MPUB t", "DPUB t 5")]
    debug = [line for line in log.of(consumer) if line.startswith("DEBUG")]
    for line in (
        "SUB t c",
        "RDY 2",
        f"TOUCH {one.id.decode()}",
        f"FIN {one.id.decode()}",
        f"REQ {two.id.decode()} 100",
    ):
        assert f"DEBUG PROTOCOL(V2): [A] [{line}]" in debug
    for message in (one, two):
        text = f"PROTOCOL(V2): writing msg({message.id.decode()}) to client(A) - {message.body.decode()}"
        assert f"DEBUG {text}" in debug
    assert "DEBUG [A] state rdy:    2 inflt:    2" in debug


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"WHAT a b\n", "WHAT a b"),
        (b"SUB t c$\n", "SUB t c$"),
        (b"PUB t\n" + struct.pack(">i", -1), "PUB t"),
        (b"AUTH " + SECRET + b"\n", "AUTH"),
    ],
)
def test_a_command_that_is_refused_is_a_debug_line_too(nsqd: NsqdHarness, log: Log, sent: bytes, shown: str) -> None:
    log.set_level(logging.DEBUG)
    client = nsqd.connect()
    client.send(sent)
    wait_until(lambda: EXITING in log.of(client))
    assert log.of(client)[2] == f"DEBUG PROTOCOL(V2): [A] [{shown}]"
    assert SECRET.decode() not in "".join(log.lines)


def test_debug_lines_begin_and_end_for_clients_that_are_connected_when_the_level_is_changed(
    nsqd: NsqdHarness, http: HttpClient, log: Log
) -> None:
    client = nsqd.connect()
    line = f"DEBUG PROTOCOL(V2): [{client.address}] [PUB t]"
    client.pub("t", b"x")
    for level, is_shown in (("debug", True), ("info", False)):
        log.clear()
        http.request("PUT", "/config/log_level", level.encode())
        client.pub("t", b"x")
        assert (line in log.lines) is is_shown


def test_no_secret_is_logged(start_nsqd: StartNsqd, log: Log) -> None:
    log.set_level(logging.DEBUG)
    with AuthServer(grant(entry())) as server:
        nsqd = start_nsqd(auth_http_address=(server.address,))
        client = nsqd.connect()
        client.command(b"AUTH", SECRET)
        client.read_response()
        server.answer = SECRET
        refused = nsqd.connect()
        refused.command(b"AUTH", SECRET)
        refused.read_frame()
    alone = nsqd.connect()
    alone.command(b"AUTH", SECRET)
    alone.read_frame()
    assert "DEBUG PROTOCOL(V2): [A] [AUTH]" in log.of(client)
    for failed in (refused, alone):
        start = "WARNING PROTOCOL(V2): [A] AUTH failed failed to auth against http://"
        assert [line for line in log.of(failed) if line.startswith(start)]
    assert SECRET.decode() not in "".join(log.lines)


# Topics, channels, and what is on disk.


def test_topics_and_channels_are_logged_from_creation_to_deletion(
    nsqd: NsqdHarness, http: HttpClient, log: Log
) -> None:
    persisting = f"INFO NSQ: persisting topic/channel metadata to {nsqd.data_path / 'nsqd.dat'}"
    for target, lines in (
        ("/topic/create?topic=t", ["TOPIC(t): created"]),
        ("/channel/create?topic=t&channel=c", ["TOPIC(t): new channel(c)"]),
        ("/channel/pause?topic=t&channel=c", []),
        ("/channel/delete?topic=t&channel=c", ["TOPIC(t): deleting channel c", "CHANNEL(c): deleting"]),
        ("/topic/delete?topic=t", ["TOPIC(t): deleting"]),
    ):
        log.clear()
        assert http.request("POST", target).status == 200
        log.expect(persisting, *(f"INFO {line}" for line in lines))


def test_disk_queues_are_logged(start_nsqd: StartNsqd, log: Log) -> None:
    nsqd = start_nsqd(mem_queue_size=0)
    http = HttpClient(nsqd.http_address)
    consumer = nsqd.consumer("t", "c", rdy=1)
    http.request("POST", "/channel/pause?topic=t&channel=c")
    nsqd.connect().mpub("t", [b"one", b"two"])
    http.request("POST", "/channel/unpause?topic=t&channel=c")
    consumer.read_message()
    path = nsqd.data_path / "t:c.diskqueue.000000.dat"
    log.expect(f"INFO DISKQUEUE(t:c): writeOne() opened {path}", f"INFO DISKQUEUE(t:c): readOne() opened {path}")
    http.request("POST", "/channel/empty?topic=t&channel=c")
    http.request("POST", "/channel/delete?topic=t&channel=c")
    nsqd.stop()
    log.expect("INFO DISKQUEUE(t:c): emptying", "INFO DISKQUEUE(t:c): deleting", "INFO DISKQUEUE(t): closing")


def test_stopping_is_logged_step_by_step(nsqd: NsqdHarness, log: Log) -> None:
    nsqd.create_channel("t", "c")
    nsqd.create_topic("u")
    nsqd.connect().mpub("u", [b"one", b"two"])
    wait_until(lambda: b'"u"' in (nsqd.data_path / "nsqd.dat").read_bytes())  # no write is under way
    log.clear()
    nsqd.stop()
    order = [
        "INFO NSQ: stopping subsystems",
        f"INFO NSQ: persisting topic/channel metadata to {nsqd.data_path / 'nsqd.dat'}",
        "INFO TOPIC(t): closing",
        "INFO CHANNEL(c): closing",
        "INFO TOPIC(u): closing",
        "INFO TOPIC(u): flushing 2 memory messages to backend",
        "INFO LOOKUP: closing",
        "INFO NSQ: bye",
    ]
    assert [line for line in log.lines if line in order] == order


# Others that nsqd talks to.


@pytest.fixture
def peer(lookupd: LookupdHarness) -> str:
    host, port = lookupd.daemon.tcp_address
    return f"{host}:{port}"


def test_what_nsqlookupd_is_told_is_logged(start_nsqd: StartNsqd, lookupd: LookupdHarness, peer: str, log: Log) -> None:
    log.set_level(logging.DEBUG)
    lookupd.post("/channel/create?topic=t&channel=known")
    nsqd = start_nsqd(lookupd_tcp_address=(peer,))
    http = HttpClient(nsqd.http_address)
    log.expect(f"INFO LOOKUP({peer}): adding peer", f"INFO LOOKUP connecting to {peer}")
    wait_until(lambda: any(line.startswith(f"INFO LOOKUPD({peer}): peer info {{TCPPort:") for line in log.lines))
    http.request("POST", "/topic/create?topic=t")
    log.expect(f"INFO LOOKUPD({peer}): topic REGISTER t", f"INFO LOOKUPD({peer}): channel REGISTER t known")
    assert any(line.startswith("INFO CI: querying nsqlookupd http://") for line in log.lines)
    wait_until(lambda: has_sent_heartbeat(nsqd, peer, log))
    http.request("POST", "/channel/delete?topic=t&channel=known")
    http.request("POST", "/topic/delete?topic=t")
    log.expect(f"INFO LOOKUPD({peer}): channel UNREGISTER t known", f"INFO LOOKUPD({peer}): topic UNREGISTER t")
    http.request("PUT", "/config/nsqlookupd_tcp_addresses", b"[]")
    log.expect(f"INFO LOOKUP({peer}): removing peer")


def has_sent_heartbeat(nsqd: NsqdHarness, peer: str, log: Log) -> bool:
    """Let time pass until one is due; while the answer to a REGISTER is on its way none is sent."""
    nsqd.advance(ms=15_000)
    nsqd.settle()
    return f"DEBUG LOOKUPD({peer}): sending heartbeat" in log.lines


def test_all_that_exists_is_logged_as_it_is_registered(start_nsqd: StartNsqd, peer: str, log: Log) -> None:
    nsqd = start_nsqd()
    nsqd.create_channel("t", "c")
    nsqd.create_topic("u")
    HttpClient(nsqd.http_address).request("PUT", "/config/nsqlookupd_tcp_addresses", f'["{peer}"]'.encode())
    log.expect(f"INFO LOOKUPD({peer}): REGISTER t c", f"INFO LOOKUPD({peer}): REGISTER u")


def test_an_nsqlookupd_that_is_not_there_is_an_error(start_nsqd: StartNsqd, log: Log) -> None:
    start_nsqd(lookupd_tcp_address=("127.0.0.1:1",))
    start = "ERROR LOOKUPD(127.0.0.1:1): not registered, will keep trying - cannot connect: "
    wait_until(lambda: any(line.startswith(start) for line in log.lines))


@pytest.fixture
def statsd_address() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*listening.getsockname())


def test_statsd_is_logged(start_nsqd: StartNsqd, statsd_address: str, log: Log) -> None:
    nsqd = start_nsqd(statsd_address=statsd_address, statsd_interval_ns=NS_PER_SECOND)
    nsqd.advance(ms=1000)
    log.expect(f"INFO STATSD: pushing stats to {statsd_address}")
    nsqd.stop()
    log.expect("INFO STATSD: closing")
