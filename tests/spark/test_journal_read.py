"""Reading a range: from a real nsqd that dies on the way, and from answers that no healthy nsqd gives."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from emberq.spark.error import DataLossError, NsqdUnavailableError
from emberq.spark.journal_offset import Place
from emberq.spark.journal_plan import JournalSurvey, Range
from emberq.spark.journal_read import MAX_FAULTS, RangeReader
from emberq.spark.option import SourceSettings, Use
from emberq.wire import journal_batch as storage
from tests.spark.scripted_http import ScriptedHttp
from tests.support.journal_nsqd import JournalNsqd, JournalNsqdProcess
from tests.support.threaded_http import Reply

JOURNAL = UUID(int=7)


def settings(address: str, **options: str) -> SourceSettings:
    return SourceSettings.of({"nsqd": address, "topic": "t", "retryTimeout": "20s", **options}, Use.BATCH)


def batches(*batch: tuple[int, Sequence[bytes]], journal: UUID = JOURNAL) -> Reply:
    data = b""
    for base_offset, messages in batch:
        encoded = storage.encode(
            storage.Bodies.of(messages), base_offset=base_offset, timestamp_ns=1, seed=storage.seed_of(JOURNAL)
        )
        data += b"".join(encoded.parts)
    return Reply(data, headers={"X-Emberq-Journal": str(journal)})


def offsets_read(server: ScriptedHttp, start: int, end: int, **options: str) -> list[int]:
    wanted = Range(place=Place(server.address, "t"), journal=str(JOURNAL), start=start, end=end)
    reader = RangeReader(wanted, settings(server.address, **options), bytes_per_row=0)
    return [offset for rows in reader.read() for offset in rows.column("offset").to_pylist()]


def test_a_range_may_begin_and_end_within_batches() -> None:
    with ScriptedHttp(batches((0, [b"0", b"1", b"2"]), (3, [b"3", b"4", b"5"]))) as server:
        assert offsets_read(server, 2, 5) == [2, 3, 4]


def test_an_nsqd_that_dies_is_waited_for_and_nothing_comes_twice(killable_nsqd: JournalNsqdProcess) -> None:
    for start in range(0, 3000, 100):
        killable_nsqd.publish("t", [b"%05d" % number for number in range(start, start + 100)])
    options = settings(killable_nsqd.http, fetchBytes="8000")
    (journal,) = JournalSurvey(options).first_look().values()
    wanted = Range(place=journal.place, journal=journal.uuid, start=50, end=2950)
    reading = RangeReader(wanted, options, bytes_per_row=journal.bytes_per_row).read()
    found = next(reading).column("body").to_pylist()
    killable_nsqd.kill()
    killable_nsqd.start()
    for rows in reading:
        found += rows.column("body").to_pylist()
    assert found == [b"%05d" % number for number in range(50, 2950)]


@pytest.mark.parametrize(
    ("replies", "loss"),
    [
        ((Reply({"message": "OFFSET_GONE", "first_offset": 3}, status=410),), "0 to 2 are lost: retention"),
        ((batches((0, [b"0"]), (3, [b"3", b"4"])),), "1 to 2 are lost: they are damaged or were never stored"),
        ((batches((0, [b"0"])), Reply(headers={"X-Emberq-Journal": str(JOURNAL)})), "1 to 4 are lost: they are not in"),
        ((batches((0, [b"0"]), journal=UUID(int=8)),), "0 to 4 are lost: the topic was deleted and made again"),
        ((Reply({"message": "OFFSET_AHEAD", "next_offset": 0}, status=409),), "0 to 4 are lost: the journal ends at"),
        ((Reply({"message": "TOPIC_NOT_FOUND"}, status=404),), "0 to 4 are lost: nsqd answers TOPIC_NOT_FOUND"),
    ],
)
def test_what_is_lost_is_told_with_its_offsets(replies: tuple[Reply, ...], loss: str) -> None:
    with ScriptedHttp(*replies) as server, pytest.raises(DataLossError) as failure:
        offsets_read(server, 0, 5)
    assert f"topic t on nsqd {server.address}: the messages from offset {loss}" in str(failure.value)
    assert 'Option "failOnDataLoss" = "false"' in str(failure.value)


def test_where_loss_is_allowed_the_rest_is_read() -> None:
    gone = Reply({"message": "OFFSET_GONE", "first_offset": 3}, status=410)
    with ScriptedHttp(gone, batches((3, [b"3"]), (6, [b"6", b"7"]))) as server:
        assert offsets_read(server, 0, 8, failOnDataLoss="false") == [3, 6, 7]
    with ScriptedHttp(batches((0, [b"0"]), (6, [b"6", b"7"]))) as server:
        assert offsets_read(server, 0, 5, failOnDataLoss="false") == [0]


def test_a_damaged_batch_is_asked_for_again_a_few_times() -> None:
    good = batches((0, [b"0", b"1"]))
    assert isinstance(good.body, bytes)
    damaged = Reply(good.body[:-8] + b"damaged!", headers=good.headers)
    with ScriptedHttp(damaged, good) as server:
        assert offsets_read(server, 0, 2) == [0, 1]
    with ScriptedHttp(damaged) as server:
        with pytest.raises(NsqdUnavailableError, match="its answer for offset 0 is damaged: the crc"):
            offsets_read(server, 0, 2)
        assert len(server.received) == MAX_FAULTS


def test_a_batch_that_is_damaged_on_disk_is_a_loss_of_its_messages_alone(nsqd: JournalNsqd) -> None:
    for body in (b"first", b"second", b"third"):
        nsqd.publish("t", [body, body])
    (log,) = nsqd.data_path.rglob("*.log")
    log.write_bytes(log.read_bytes().replace(b"secondsecond", b"secondSecond"))
    (journal,) = JournalSurvey(settings(nsqd.http)).first_look().values()
    wanted = Range(place=journal.place, journal=journal.uuid, start=0, end=6)

    def read(**given: str) -> list[bytes]:
        reader = RangeReader(wanted, settings(nsqd.http, **given), bytes_per_row=journal.bytes_per_row)
        return [body for rows in reader.read() for body in rows.column("body").to_pylist()]

    assert read(failOnDataLoss="false") == [b"first", b"first", b"third", b"third"]
    with pytest.raises(DataLossError, match="the messages from offset 2 to 3 are lost"):
        read()


@pytest.mark.parametrize("later", [[b"second"], []])
def test_offsets_that_were_passed_over_after_a_crash_are_no_loss(
    killable_nsqd: JournalNsqdProcess, later: list[bytes]
) -> None:
    killable_nsqd.publish("t", [b"first"])
    killable_nsqd.kill()
    (log,) = killable_nsqd.data_path.rglob("*.log")
    with log.open("ab") as file:
        file.write(b"EqB1" * 100)  # may have been messages, so their offsets are not given again
    killable_nsqd.start()
    for body in later:
        killable_nsqd.publish("t", [body])
    (journal,) = JournalSurvey(settings(killable_nsqd.http)).first_look().values()
    assert journal.end_offset > 50
    wanted = Range(place=journal.place, journal=journal.uuid, start=0, end=journal.end_offset)
    reader = RangeReader(wanted, settings(killable_nsqd.http), bytes_per_row=journal.bytes_per_row)
    assert [body for rows in reader.read() for body in rows.column("body").to_pylist()] == [b"first", *later]


def test_a_short_range_asks_for_little() -> None:
    with ScriptedHttp(batches((0, [b"0"] * 10))) as server:
        wanted = Range(place=Place(server.address, "t"), journal=str(JOURNAL), start=0, end=10)
        list(RangeReader(wanted, settings(server.address), bytes_per_row=20).read())
        assert f"max_bytes={10 * 20 + 64 * 1024}" in server.received[0].target
