"""nsqd among misfortunes: clients that vanish, stall or talk nonsense, damaged files, and its own sudden death."""

from __future__ import annotations

import random
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import StartNsqdProcess
from tests.support.harness import NsqdHarness
from tests.support.nsqd_process import NsqdProcess, run_nsqd_to_its_end
from tests.support.raw_client import MAGIC, Client
from tests.support.waiting import wait_until

MS_NS = 1_000_000

IDLE_CONNECTIONS = 10_000
IDLE_CONNECTION_BYTES_MAX = 20_000

CONSUMER_THAT_NEVER_ANSWERS = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"  V2SUB t c\\nRDY 5\\n")
time.sleep(60)
"""


@contextmanager
def many_open_files(count: int) -> Iterator[None]:
    """Allow this process `count` open files; nsqd raises its own limit, as far as the hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this machine allows a process only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def assert_healthy(nsqd: NsqdProcess) -> None:
    """A message still goes through."""
    consumer = nsqd.consumer("health#ephemeral", "c#ephemeral", rdy=1)
    nsqd.connect().pub("health#ephemeral", b"well")
    message = consumer.read_message()
    assert message.body == b"well"
    consumer.fin(message)
    assert consumer.frames_until_now() == []
    consumer.close()


def answers_heartbeats(client: Client) -> bool:
    """Send a NOP without reading anything; False when the connection is gone."""
    try:
        client.nop()
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


@pytest.mark.nsqd(msg_timeout_ns=2000 * MS_NS)
def test_messages_of_a_killed_consumer_come_back_after_their_timeout(nsqd: NsqdHarness) -> None:
    nsqd.connect().mpub("t", [b"%d" % number for number in range(5)])
    assert isinstance(nsqd.nsqd.tcp_address, tuple)
    port = nsqd.nsqd.tcp_address[1]
    victim = subprocess.Popen([sys.executable, "-c", CONSUMER_THAT_NEVER_ANSWERS, str(port)])
    try:
        wait_until(lambda: nsqd.has_channel("t", "c") and nsqd.channel("t", "c").in_flight_count == 5)
    finally:
        victim.kill()
        victim.wait()
    wait_until(lambda: nsqd.channel("t", "c").client_count == 0)

    heir = nsqd.consumer("t", "c", rdy=5)
    nsqd.advance(ms=1999)
    assert heir.messages_until_now() == []
    nsqd.advance(ms=101)
    inherited = heir.read_messages(5)
    assert sorted((message.body, message.attempts) for message in inherited) == [
        (b"%d" % number, 2) for number in range(5)
    ]


def test_ten_thousand_idle_connections_cost_little(start_nsqd_process: StartNsqdProcess) -> None:
    nsqd = start_nsqd_process()
    assert_healthy(nsqd)
    rss_before_bytes = nsqd.rss_bytes
    with many_open_files(IDLE_CONNECTIONS + 500), ExitStack() as connections:
        for _ in range(IDLE_CONNECTIONS):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", nsqd.tcp_port)))
            # Closing by a reset leaves no socket in TIME_WAIT for the next run to trip over.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(MAGIC)
        assert_healthy(nsqd)
        grown_bytes = nsqd.rss_bytes - rss_before_bytes
        assert grown_bytes / IDLE_CONNECTIONS < IDLE_CONNECTION_BYTES_MAX
    assert_healthy(nsqd)


def test_a_consumer_that_stops_reading_hurts_only_itself(start_nsqd_process: StartNsqdProcess) -> None:
    nsqd = start_nsqd_process("--mem-queue-size=50")
    stuck = nsqd.connect(receive_buffer_bytes=8192)
    stuck.identify(heartbeat_interval=1000)
    stuck.sub("t", "stuck")
    stuck.rdy(2500)
    stuck.frames_until_now()
    healthy = nsqd.consumer("t", "healthy", rdy=50)
    rss_before_bytes = nsqd.rss_bytes

    message_count, body = 2400, b"x" * (64 * 1024)
    producer = nsqd.connect()

    def publish() -> None:
        for _ in range(message_count // 10):
            producer.mpub("t", [body] * 10)

    publisher = threading.Thread(target=publish)
    publisher.start()
    for number in range(message_count):
        if number % 100 == 0:
            answers_heartbeats(stuck)  # or its read deadline might be what ends it
        message = healthy.read_message()
        assert message.body == body
        healthy.fin(message)
    publisher.join()
    # Everything went through one connection while the other took nothing: what it was owed must not pile up in memory.
    assert nsqd.rss_bytes - rss_before_bytes < message_count * len(body) / 3

    wait_until(lambda: not answers_heartbeats(stuck))  # cut off, by its write deadline
    assert_healthy(nsqd)


@pytest.mark.parametrize(
    "damage",
    [b'{"topics":[{"name":', b"\x00" * 100, b'{"topics":{"name":"t"}}', b""],
    ids=["cut short", "zeros", "no list", "empty"],
)
def test_damaged_metadata_stops_the_start_with_one_line(data_path: Path, damage: bytes) -> None:
    (data_path / "nsqd.dat").write_bytes(damage)
    ended = run_nsqd_to_its_end("--log-level=fatal", data_path=data_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "FATAL: " in line
    assert f"failed to parse metadata in {data_path / 'nsqd.dat'} - " in line
    assert (data_path / "nsqd.dat").read_bytes() == damage


def test_a_locked_data_folder_stops_the_start_with_one_line(start_nsqd_process: StartNsqdProcess) -> None:
    first = start_nsqd_process()
    ended = run_nsqd_to_its_end("--log-level=fatal", data_path=first.data_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "cannot flock directory" in line


def test_a_missing_data_folder_stops_the_start_with_one_line(tmp_path: Path) -> None:
    ended = run_nsqd_to_its_end("--log-level=fatal", data_path=tmp_path / "nowhere")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "failed to lock data-path: " in line
    assert not (tmp_path / "nowhere").exists()


def test_an_address_in_use_stops_the_start_with_one_line(data_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_nsqd_to_its_end("--log-level=fatal", f"--tcp-address={address}", data_path=data_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"listen ({address}) failed - " in line


def garbage(dice: random.Random) -> bytes:
    """Bytes that are wrong in some way: pure noise, or real commands with broken parts."""
    noise = dice.randbytes(dice.randrange(1, 3000))
    size = struct.pack(">i", dice.choice([-1, 0, 1, 5, 1 << 20, (1 << 31) - 1]))
    broken = [
        noise,
        MAGIC + noise,
        MAGIC + b"IDENTIFY\n" + size + noise,
        MAGIC + b"PUB junk\n" + size + noise,
        MAGIC + b"MPUB junk\n" + size + size + size + noise,
        MAGIC + b"DPUB junk 99999999999999999999\n" + size + noise,
        MAGIC + b"SUB junk#ephemeral c#ephemeral\nRDY 9\n" + noise,
        MAGIC + b"SUB junk#ephemeral c#ephemeral\nFIN " + noise[:16] + b"\nREQ " + noise[:16] + b" 1\nCLS\nCLS\n",
    ]
    return dice.choice(broken)


def test_garbage_on_many_connections_leaves_others_unharmed(start_nsqd_process: StartNsqdProcess) -> None:
    nsqd = start_nsqd_process()
    consumer = nsqd.consumer("t", "c", rdy=1)
    producer = nsqd.connect()
    dice = random.Random(20130101)
    for round_number in range(500):
        talker = Client(("127.0.0.1", nsqd.tcp_port), magic=garbage(dice))
        if dice.random() < 0.5:
            with suppress(OSError):
                talker.half_close()
        elif dice.random() < 0.5:
            talker.reset()
        if round_number % 10 == 0:
            producer.pub("t", b"%d" % round_number)
            message = consumer.read_message()
            assert (message.body, message.attempts) == (b"%d" % round_number, 1)
            consumer.fin(message)
        talker.close()
    assert consumer.frames_until_now() == []
    assert "Traceback" not in nsqd.log


def test_a_killed_nsqd_finds_on_restart_what_was_on_disk(start_nsqd_process: StartNsqdProcess, data_path: Path) -> None:
    flags = ["--mem-queue-size=0", "--max-bytes-per-file=2000", "--sync-every=1"]
    nsqd = start_nsqd_process(*flags)
    bodies = [b"%04d" % number for number in range(200)]
    producer = nsqd.connect()
    for body in bodies:
        producer.pub("t", body)
    position = data_path / "t.diskqueue.meta.dat"
    wait_until(lambda: position.exists() and position.read_text().startswith("200\n"))
    wait_until(lambda: '"name":"t"' in (data_path / "nsqd.dat").read_text())
    nsqd.kill()

    nsqd = start_nsqd_process(*flags)
    consumer = nsqd.consumer("t", "c", rdy=1)
    received: list[bytes] = []
    for _ in bodies:
        message = consumer.read_message()
        consumer.fin(message)
        received.append(message.body)
    assert received == bodies
    assert consumer.frames_until_now() == []
