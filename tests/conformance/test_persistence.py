"""What survives a restart (rows 125-129, 131, 132, 140-142), judged by the files and by what is delivered.

Tests with `start_nsqd_process` run the real command, because they are about its exit, its log or its sudden death.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.disk_files import data_file, meta_file, read_metadata, read_records, write_metadata, write_queue
from tests.conftest import StartNsqd, StartNsqdProcess
from tests.support.harness import NsqdHarness
from tests.support.nsqd_process import run_nsqd_to_its_end
from tests.support.raw_client import Client
from tests.support.waiting import wait_until


def consume(client: Client, count: int) -> list[bytes]:
    """Receive and finish `count` messages; returns their bodies in the order of delivery."""
    bodies: list[bytes] = []
    for _ in range(count):
        message = client.read_message()
        client.fin(message)
        bodies.append(message.body)
    return bodies


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(start, start + count)]


@pytest.mark.conformance(125)
def test_a_fresh_start_writes_empty_metadata(nsqd: NsqdHarness) -> None:
    assert (nsqd.data_path / "nsqd.dat").read_bytes() == b'{"topics":null,"version":"1.3.0-emberq"}'


@pytest.mark.conformance(126)
def test_loading_metadata_writes_it_once(
    start_nsqd: StartNsqd, data_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = [{"name": "c", "paused": False}, {"name": "d", "paused": True}]
    write_metadata(data_path, [{"name": f"t{number}", "paused": False, "channels": channels} for number in range(5)])
    written: list[str] = []

    def counting(move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any, **options: Any) -> None:
            written.append(os.path.basename(target))  # noqa: PTH119  (os.rename takes more than paths)
            move(source, target, **options)

        return moved

    monkeypatch.setattr(os, "rename", counting(os.rename))
    monkeypatch.setattr(os, "replace", counting(os.replace))
    nsqd = start_nsqd()
    nsqd.settle()
    assert written.count("nsqd.dat") == 1
    assert read_metadata(data_path) == {f"t{number}": {"c": False, "d": True} for number in range(5)}
    assert nsqd.channel("t4", "d").paused


@pytest.mark.conformance(125, 126)
def test_topics_and_channels_are_saved_as_they_come_and_go(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c")
    nsqd.create_channel("t", "d#ephemeral")
    nsqd.create_channel("u#ephemeral", "c")
    nsqd.create_topic("v")
    wait_until(lambda: read_metadata(nsqd.data_path) == {"t": {"c": False}, "v": {}})
    nsqd.delete_channel("t", "c")
    nsqd.delete_topic("v")
    wait_until(lambda: read_metadata(nsqd.data_path) == {"t": {}})


@pytest.mark.conformance(127)
@pytest.mark.nsqd(mem_queue_size=100, max_bytes_per_file=10 * 1024)
def test_a_clean_restart_keeps_every_unfinished_message(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c")
    producer = nsqd.connect()
    for body in numbered(300):
        producer.pub("t", body)
    consumer.rdy(150)
    received = consumer.read_messages(150)
    consumer.rdy(0)
    for message in received:
        consumer.fin(message)
    assert consumer.messages_until_now() == []

    nsqd.restart()
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 150)
    rest = consume(nsqd.consumer("t", "c", rdy=1), 150)
    assert sorted([message.body for message in received] + rest) == numbered(300)
    assert nsqd.channel("t", "c").depth == 0


@pytest.mark.conformance(128)
def test_a_pause_is_saved_when_metadata_is_persisted(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c")
    wait_until(lambda: read_metadata(nsqd.data_path) == {"t": {"c": False}})
    nsqd.settle()
    nsqd.pause_channel("t", "c")
    assert read_metadata(nsqd.data_path) == {"t": {"c": False}}
    nsqd.persist_metadata()
    assert read_metadata(nsqd.data_path) == {"t": {"c": True}}
    nsqd.unpause_channel("t", "c")
    assert read_metadata(nsqd.data_path) == {"t": {"c": True}}
    nsqd.persist_metadata()
    assert read_metadata(nsqd.data_path) == {"t": {"c": False}}


@pytest.mark.conformance(128)
def test_pauses_survive_a_restart(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c")
    nsqd.pause_topic("t")
    nsqd.pause_channel("t", "c")
    nsqd.restart()
    assert (nsqd.topic("t").paused, nsqd.channel("t", "c").paused) == (True, True)


@pytest.mark.conformance(129)
def test_sigterm_writes_queued_and_in_flight_messages(start_nsqd_process: StartNsqdProcess) -> None:
    nsqd = start_nsqd_process()
    consumer = nsqd.consumer("t", "c", rdy=2)
    nsqd.connect().mpub("t", numbered(9))
    in_flight = {message.id for message in consumer.read_messages(2)}
    assert nsqd.terminate() == 0
    assert "NSQ: bye" in nsqd.log

    queue = data_file(nsqd.data_path, "t:c", 0)
    assert meta_file(nsqd.data_path, "t:c").read_text() == f"9\n0,0\n0,{queue.stat().st_size}\n"
    assert meta_file(nsqd.data_path, "t").read_text() == "0\n0,0\n0,0\n"
    records = read_records(queue)
    assert sorted(record.body for record in records) == numbered(9)
    assert {record.id: record.attempts for record in records} == {
        record.id: 1 if record.id in in_flight else 0 for record in records
    }


@pytest.mark.conformance(131)
def test_a_data_folder_belongs_to_one_nsqd(start_nsqd_process: StartNsqdProcess) -> None:
    first = start_nsqd_process()
    second = run_nsqd_to_its_end(data_path=first.data_path)
    assert second.returncode == 1
    last_line = second.stderr.splitlines()[-1]
    assert "FATAL: failed to instantiate nsqd - failed to lock data-path: cannot flock directory" in last_line
    assert str(first.data_path) in last_line
    assert "(possibly in use by another instance of nsqd)" in last_line
    first.connect().pub("t", b"unharmed")


@pytest.mark.conformance(132)
def test_invalid_names_in_metadata_are_skipped(start_nsqd_process: StartNsqdProcess, data_path: Path) -> None:
    channels = [{"name": "c$", "paused": False}, {"name": "good", "paused": False}]
    write_metadata(
        data_path,
        [{"name": "a$", "paused": False, "channels": []}, {"name": "t", "paused": False, "channels": channels}],
    )
    nsqd = start_nsqd_process()
    assert "WARNING: skipping creation of invalid topic a$" in nsqd.log
    assert "WARNING: skipping creation of invalid channel c$" in nsqd.log
    assert read_metadata(data_path) == {"t": {"good": False}}
    nsqd.connect().pub("t", b"hello")
    assert nsqd.consumer("t", "good", rdy=1).read_message().body == b"hello"


@pytest.mark.conformance(140)
def test_after_an_unclean_stop_the_tail_is_delivered_and_a_new_file_begun(
    start_nsqd_process: StartNsqdProcess, data_path: Path
) -> None:
    flags = ["--mem-queue-size=0", "--sync-timeout=20ms"]
    nsqd = start_nsqd_process(*flags)
    producer = nsqd.connect()
    for body in numbered(10):
        producer.pub("t", body)
    wait_until(lambda: meta_file(data_path, "t").exists() and "t" in read_metadata(data_path))
    nsqd.kill()
    # Some sync had come before the crash, but not the last one: the file is longer than the positions say.
    meta_file(data_path, "t").write_text("4\n0,0\n0,136\n")

    nsqd = start_nsqd_process(*flags)
    nsqd.connect().pub("t", b"0010")
    assert [record.body for record in read_records(data_file(data_path, "t", 1))] == [b"0010"]
    assert consume(nsqd.consumer("t", "c", rdy=1), 11) == numbered(11)


@pytest.mark.conformance(141)
def test_a_truncated_file_costs_only_the_record_it_was_cut_in(
    start_nsqd_process: StartNsqdProcess, data_path: Path
) -> None:
    bodies = numbered(20)
    files = [bodies[start : start + 3] for start in range(0, 20, 3)]
    write_metadata(data_path, [{"name": "t", "paused": False, "channels": []}])
    write_queue(data_path, "t", files, meta="18\n0,0\n6,0\n")
    third = data_file(data_path, "t", 2)
    os.truncate(third, third.stat().st_size - 5)

    nsqd = start_nsqd_process("--mem-queue-size=0", "--max-bytes-per-file=102")
    nsqd.connect().pub("t", b"new")
    assert [record.body for record in read_records(data_file(data_path, "t", 7))] == [b"new"]
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert consume(consumer, 20) == [*bodies[:8], *bodies[9:], b"new"]
    assert consumer.messages_until_now() == []
    assert third.with_name(third.name + ".bad").exists()
    assert nsqd.terminate() == 0
    for queue in ("t", "t:c"):
        assert meta_file(data_path, queue).read_text().startswith("0\n")


@pytest.mark.conformance(142)
@pytest.mark.nsqd(mem_queue_size=0, max_bytes_per_file=1024)
def test_files_of_another_size_limit_are_read_completely(nsqd: NsqdHarness) -> None:
    producer = nsqd.connect()
    for body in numbered(100):
        producer.pub("t", body)
    nsqd.restart(max_bytes_per_file=200)
    producer = nsqd.connect()
    for body in numbered(100, start=100):
        producer.pub("t", body)
    nsqd.restart(max_bytes_per_file=1024 * 1024)
    nsqd.connect().pub("t", b"0200")
    assert consume(nsqd.consumer("t", "c", rdy=1), 201) == numbered(201)
    assert (nsqd.topic("t").depth, nsqd.channel("t", "c").depth) == (0, 0)


def test_shutdown_ends_connections_without_a_word(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert client.frames_until_now() == []
    nsqd.stop()
    client.expect_closed()
    consumer.expect_closed()


def test_deferred_messages_keep_their_due_time_across_a_restart(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.create_channel("t", "c")
    client.dpub("t", 10_000, b"later")
    nsqd.restart()
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=9_999)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=101)
    assert consumer.read_message().body == b"later"


def test_attempts_survive_a_restart(nsqd: NsqdHarness, client: Client) -> None:
    client.pub("t", b"hello")
    first = nsqd.consumer("t", "c", rdy=1).read_message()
    nsqd.restart()
    assert nsqd.consumer("t", "c", rdy=1).read_message() == first._replace(attempts=2)
