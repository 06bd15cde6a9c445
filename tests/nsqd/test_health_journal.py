"""One journal that takes no messages: a running nsqd names it wherever it is asked, and serves all other topics."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from emberq.base.file import OsFiles
from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient

pytestmark = pytest.mark.nsqd(journal_topic=("^j",))


@pytest.fixture
def failure(nsqd: NsqdHarness, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the journal of `j1` fail a sync; what is wrong with it then."""

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for topic in ("j1", "j2"):
        nsqd.create_channel(topic, "c")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        producer = nsqd.connect()
        producer.command(b"PUB j1", b"x")
        answer = producer.read_frame().data.decode()
    problem = (
        f"sync {nsqd.data_path / 'j1.journal'}: input/output error; it takes no messages until nsqd is started again"
    )
    assert answer == f"E_PUB_FAILED PUB failed the journal of j1: {problem}"
    return problem


def healthy(http: HttpClient) -> dict[str, float]:
    """The metric, by topic."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {each.labels["topic"]: each.value for each in samples if each.name == "nsqd_topic_journal_healthy"}


def test_ping_says_so_until_nsqd_is_started_again(nsqd: NsqdHarness, http: HttpClient, failure: str) -> None:
    assert (http.get("/ping").status, http.get("/ping").text) == (500, f"NOK - the journal of j1: {failure}")
    nsqd.connect().pub("j2", b"well")
    nsqd.connect().pub("classic", b"well")
    nsqd.advance(ms=20_000)
    assert http.get("/ping").text == f"NOK - the journal of j1: {failure}"
    nsqd.restart()
    http = HttpClient(nsqd.http_address)
    assert http.get("/ping").text == "OK"
    nsqd.connect().pub("j1", b"well")


def test_every_later_publish_is_refused_by_name(nsqd: NsqdHarness, http: HttpClient, failure: str) -> None:
    for _ in range(2):
        producer = nsqd.connect()
        producer.command(b"PUB j1", b"x")
        assert producer.read_frame().data.decode() == f"E_PUB_FAILED PUB failed the journal of j1: {failure}"
    for target in ("/pub", "/mpub"):
        answer = http.post(f"{target}?topic=j1", b"x")
        assert answer.status == 503
        assert answer.json() == {"message": "JOURNAL_FAILED", "topic": "j1", "reason": failure}


def test_statistics_and_metrics_show_which_journal_it_is(nsqd: NsqdHarness, http: HttpClient, failure: str) -> None:
    stats = http.get("/stats?format=json").json()
    assert {topic["topic_name"]: topic["journal"]["problem"] for topic in stats["topics"]} == {
        "j1": failure,
        "j2": None,
    }
    assert stats["health"] == f"NOK - the journal of j1: {failure}"
    assert f"      journal: {failure}\n" in http.get("/stats").text
    assert healthy(http) == {"j1": 0, "j2": 1}
    assert http.get("/journal?topic=j1").json()["problem"] == failure


def test_several_failed_journals_are_counted(nsqd: NsqdHarness, http: HttpClient, failure: str) -> None:
    nsqd.call(lambda: nsqd.nsqd.broker._context.journal_problems.update(j2="gone", j3="gone"))
    assert http.get("/ping").text == f"NOK - the journal of j1: {failure} (and 2 more)"


def test_a_failed_topic_that_is_deleted_is_a_problem_no_more(nsqd: NsqdHarness, http: HttpClient, failure: str) -> None:
    assert failure in http.get("/ping").text
    assert http.post("/topic/delete?topic=j1").status == 200
    assert http.get("/ping").text == "OK"


def test_nsqd_starts_without_a_journal_that_cannot_be_opened(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(journal_topic=("^j",))
    for topic in ("j1", "j2"):
        nsqd.create_channel(topic, "c")
        nsqd.connect().pub(topic, b"kept")
    nsqd.stop()
    (nsqd.data_path / "j1.journal" / "journal.json").write_text('{"format":99,"uuid":"","created":""}')
    nsqd.start()
    http = HttpClient(nsqd.http_address)
    assert nsqd.consumer("j2", "c", rdy=1).read_message().body == b"kept"
    problem = f"it cannot be opened: {nsqd.data_path / 'j1.journal'} is a journal of format 99, this version reads 2"
    assert http.get("/ping").text == f"NOK - the journal of j1: {problem}"
    refused = {"message": "JOURNAL_FAILED", "topic": "j1", "reason": problem}
    for target in ("/journal?topic=j1", "/topic/peek?topic=j1", "/channel/peek?topic=j1&channel=c"):
        assert (http.get(target).status, http.get(target).json()) == (503, refused)
    for target in ("/pub?topic=j1", "/topic/delete?topic=j1", "/channel/create?topic=j1&channel=d"):
        assert (http.post(target, b"x").status, http.post(target, b"x").json()) == (503, refused)
    consumer = nsqd.connect()
    consumer.command(b"SUB j1 c")
    assert consumer.read_frame().data.decode() == f"E_SUB_FAILED SUB failed the journal of j1: {problem}"
    assert healthy(http) == {"j1": 0, "j2": 1}
    nsqd.stop()
    (nsqd.data_path / "j1.journal" / "journal.json").unlink()
    nsqd.start()
    assert nsqd.consumer("j1", "c", rdy=1).read_message().body == b"kept"
    assert HttpClient(nsqd.http_address).get("/ping").text == "OK"


def test_a_sector_that_cannot_be_read_costs_its_own_messages(
    start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start_nsqd(journal_topic=("^j",))
    nsqd.create_channel("j1", "c")
    bodies = [b"%d" % number * 5000 for number in range(4)]
    for body in bodies:
        nsqd.connect().pub("j1", body)
    nsqd.stop()
    pread = os.pread

    def spoiled(fd: int, size: int, position: int) -> bytes:
        if position < 8192 and position + size > 4096 and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, position)

    def waits(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "pread", spoiled)
    monkeypatch.setattr(os, "preadv", waits)  # else what is in memory is read without asking the disk
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: True)  # a channel would come again for what is not
    nsqd.start()
    consumer = nsqd.consumer("j1", "c", rdy=4)
    assert [consumer.read_message().body for _ in range(2)] == bodies[2:]
    http = HttpClient(nsqd.http_address)
    (gap,) = http.get("/journal?topic=j1").json()["gaps"]
    assert gap == {"first_offset": 0, "next_offset": 2, "reason": "the disk cannot read it at position 4096"}
    answer = http.get("/journal/read?topic=j1&offset=0")
    assert (answer.headers["x-emberq-base-offset"], answer.headers["x-emberq-next-offset"]) == ("2", "4")
    nsqd.connect().pub("j1", b"more")


def test_bulk_readers_get_zeros_for_a_sector_that_cannot_be_read_and_find_the_next_batch(
    start_nsqd: StartNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqd = start_nsqd(journal_topic=("^j",))
    for number in range(4):
        nsqd.connect().pub("j1", b"%d" % number * 5000)
    http = HttpClient(nsqd.http_address)
    whole = http.get("/journal/read?topic=j1&offset=0").body
    read_piece = os.pread

    def spoiled(fd: int, size: int, position: int) -> bytes:
        if position < 12288 and position + size > 8192 and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_piece(fd, size, position)

    def waits(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "pread", spoiled)
    monkeypatch.setattr(os, "preadv", waits)
    answer = http.get("/journal/read?topic=j1&offset=0")
    two_batches = len(whole) // 2  # the header of the third cannot be read
    assert answer.body == whole[: 8192 - 64] + bytes(two_batches - 8192 + 64)
    following = http.get("/journal/read?topic=j1&offset=1")
    assert (following.headers["x-emberq-base-offset"], following.body) == ("3", whole[3 * len(whole) // 4 :])
