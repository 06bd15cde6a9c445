"""Health that tells the truth: a running nsqd on a disk that fills up, breaks and is mended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from emberq.nsqd.health import DiskSpace
from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.waiting import wait_until

MARK_BYTES = 1_000_000


@dataclass
class Disk:
    """A disk whose free space the test sets; it stands for `os.statvfs` and for its answer."""

    f_bavail: int = 10 * MARK_BYTES
    f_frsize: int = 1
    f_blocks: int = 100 * MARK_BYTES

    def __call__(self, _path: Path) -> Disk:
        return self


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr("emberq.nsqd.health.DiskSpace", partial(DiskSpace, statvfs=disk))
    return disk


@pytest.fixture
def nsqd(disk: Disk, start_nsqd: StartNsqd) -> NsqdHarness:
    return start_nsqd(http_address="127.0.0.1:0", min_free_bytes=MARK_BYTES, mem_queue_size=2)


def metric(http: HttpClient, name: str) -> float:
    families = text_string_to_metric_families(http.get("/metrics").text)
    (sample,) = (sample for family in families for sample in family.samples if sample.name == name)
    return sample.value


def fill(nsqd: NsqdHarness, disk: Disk) -> str:
    """Let the disk fall below the mark; what is wrong then."""
    disk.f_bavail = MARK_BYTES - 1
    nsqd.advance(ms=1000)
    return f"less than {MARK_BYTES} bytes free in {nsqd.data_path} (--min-free-bytes)"


def test_below_the_mark_ping_and_stats_and_metrics_say_so(nsqd: NsqdHarness, disk: Disk, http: HttpClient) -> None:
    assert (http.get("/ping").status, http.get("/ping").text) == (200, "OK")
    problem = fill(nsqd, disk)
    assert (http.get("/ping").status, http.get("/ping").text) == (500, f"NOK - {problem}")
    assert http.get("/stats?format=json").json()["health"] == f"NOK - {problem}"
    assert metric(http, "nsqd_healthy") == 0
    assert metric(http, "nsqd_publishing_refused") == 1


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"PUB t", b"x"),
        (b"MPUB t", b"\x00\x00\x00\x01\x00\x00\x00\x01x"),
        (b"DPUB t 100", b"x"),
        (b"PUB t#ephemeral", b"x"),
    ],
)
def test_below_the_mark_no_publish_is_taken_and_the_error_says_why(
    nsqd: NsqdHarness, disk: Disk, line: bytes, body: bytes
) -> None:
    verb, topic = line.split()[:2]
    nsqd.create_topic(topic.decode())
    problem = fill(nsqd, disk)
    producer = nsqd.connect()
    producer.command(line, body)
    assert producer.read_frame().data == b"E_%b_FAILED %b failed %b" % (verb, verb, problem.encode())
    producer.expect_eof()
    assert nsqd.topic(topic.decode()).message_count == 0


def test_below_the_mark_http_refuses_to_publish_too(nsqd: NsqdHarness, disk: Disk, http: HttpClient) -> None:
    fill(nsqd, disk)
    assert http.post("/pub?topic=t", b"x").status == 503
    assert http.post("/mpub?topic=t", b"x\ny").status == 503


def test_below_the_mark_consumers_go_on(nsqd: NsqdHarness, disk: Disk) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().mpub("t", [b"one", b"two", b"three"])
    first = consumer.read_message()
    fill(nsqd, disk)
    consumer.req(first)
    bodies = set()
    for _ in range(3):
        message = consumer.read_message()
        bodies.add(message.body)
        consumer.fin(message)
    assert bodies == {b"one", b"two", b"three"}


def test_when_there_is_room_again_publishing_goes_on_by_itself(nsqd: NsqdHarness, disk: Disk, http: HttpClient) -> None:
    fill(nsqd, disk)
    disk.f_bavail = MARK_BYTES * 5 // 4
    nsqd.advance(ms=1000)
    assert http.get("/ping").text == "OK"
    nsqd.connect().pub("t", b"x")
    assert http.post("/pub?topic=t", b"x").text == "OK"
    assert metric(http, "nsqd_publishing_refused") == 0


def test_nsqd_starts_on_a_full_disk_and_delivers_what_it_has(nsqd: NsqdHarness, disk: Disk) -> None:
    nsqd.create_channel("t", "c")
    nsqd.connect().mpub("t", [b"one", b"two", b"three"])
    disk.f_bavail = 0
    nsqd.restart()
    consumer = nsqd.consumer("t", "c", rdy=10)
    assert {message.body for message in consumer.read_messages(3)} == {b"one", b"two", b"three"}
    producer = nsqd.connect()
    producer.command(b"PUB t", b"x")
    assert producer.read_frame().data.startswith(b"E_PUB_FAILED ")


def break_queue(nsqd: NsqdHarness, topic: str) -> Path:
    """Let the queue of a new topic fail to write; what has to be removed to mend it."""
    nsqd.create_topic(topic)
    obstacle = nsqd.data_path / f"{topic}.diskqueue.000000.dat"
    obstacle.mkdir()
    return obstacle


@pytest.mark.conformance(122)
def test_a_failed_write_is_over_when_the_disk_works_even_if_nobody_writes(nsqd: NsqdHarness, http: HttpClient) -> None:
    break_queue(nsqd, "t")
    assert http.post("/mpub?topic=t", b"1\n2\n3").status == 503
    assert http.get("/ping").status == 500
    nsqd.advance(ms=4900)
    assert http.get("/ping").status == 500

    def has_recovered() -> bool:
        nsqd.advance(ms=1100)  # the probe writes in a thread of its own, in its own time
        return http.get("/ping").status == 200

    wait_until(has_recovered)
    assert list(nsqd.data_path.glob("*.tmp")) == []
