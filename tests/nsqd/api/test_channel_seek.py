"""POST /channel/seek and POST /channel/create with `from`: channels put at a place in the journal."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from emberq.base.file import OsFiles
from emberq.base.text import format_moment
from emberq.broker.journaled_channel import JournaledChannel
from emberq.storage.error import StorageError
from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.nsqd(journal=True)


def publish(http: HttpClient, *bodies: bytes) -> None:
    """One batch to topic `t`."""
    assert http.post("/mpub?topic=t", b"\n".join(bodies)).status == 200


def seek(http: HttpClient, to: str, *, channel: str = "c") -> Answer:
    return http.post(f"/channel/seek?topic=t&channel={channel}&to={to}")


def create(http: HttpClient, start: str, *, channel: str = "new") -> Answer:
    return http.post(f"/channel/create?topic=t&channel={channel}&from={start}")


def low_water(http: HttpClient, channel: str) -> int:
    channels: list[Any] = http.get("/journal?topic=t").json()["channels"]
    (found,) = (each["low_water"] for each in channels if each["channel_name"] == channel)
    return int(found)


def drain(nsqd: NsqdHarness, channel: str) -> list[bytes]:
    """All that the channel has to deliver, taken and finished."""
    consumer = nsqd.consumer("t", channel)
    bodies = []
    for _ in range(nsqd.channel("t", channel).depth):
        consumer.rdy(1)
        message = consumer.read_message()
        consumer.fin(message)
        bodies.append(message.body)
    wait_until(lambda: nsqd.channel("t", channel).in_flight_count == 0)
    consumer.close()
    return bodies


@pytest.fixture
def finished(nsqd: NsqdHarness, http: HttpClient) -> NsqdHarness:
    """Channel `c` has finished all four messages."""
    nsqd.create_channel("t", "c")
    publish(http, b"0", b"1")
    publish(http, b"2", b"3")
    assert len(drain(nsqd, "c")) == 4
    return nsqd


# Seeking.


@pytest.mark.parametrize(
    ("to", "offset", "bodies"),
    [("earliest", 0, [b"0", b"1", b"2", b"3"]), ("1", 1, [b"1", b"2", b"3"]), ("latest", 4, []), ("4", 4, [])],
)
def test_a_channel_delivers_again_from_where_it_was_put(
    finished: NsqdHarness, http: HttpClient, to: str, offset: int, bodies: list[bytes]
) -> None:
    answer = seek(http, to)
    assert (answer.status, answer.body) == (200, b'{"offset":%d}' % offset)
    assert finished.channel("t", "c").depth == len(bodies)
    assert drain(finished, "c") == bodies


def test_a_channel_put_at_a_moment_delivers_exactly_what_came_since(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    publish(http, b"before")
    nsqd.advance(ms=60_000)
    moment = format_moment(nsqd.clock.wall_ns())
    publish(http, b"since", b"then")
    drain(nsqd, "c")
    assert seek(http, moment).json() == {"offset": 1}
    assert drain(nsqd, "c") == [b"since", b"then"]


@pytest.mark.parametrize(
    ("moment", "offset"),
    [("2001-01-01T00:00:00Z", 0), ("2101-01-01T00:00:00.5+02:00", 4), ("2101-01-01T00:00:00%2B02:00", 4)],
)
def test_a_moment_before_or_behind_everything_is_an_end_of_the_journal(
    finished: NsqdHarness, http: HttpClient, moment: str, offset: int
) -> None:
    assert seek(http, moment).json() == {"offset": offset}


def test_skipping_ahead_leaves_out_what_was_waiting(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    publish(http, b"0", b"1", b"2")
    assert seek(http, "2").status == 200
    assert drain(nsqd, "c") == [b"2"]


def test_what_was_in_flight_is_forgotten(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    publish(http, b"0", b"1")
    consumer.read_message()
    consumer.rdy(0)
    nsqd.settle()
    assert seek(http, "latest").status == 200
    stats = nsqd.channel("t", "c")
    assert (stats.depth, stats.in_flight_count) == (0, 0)
    publish(http, b"2")
    consumer.rdy(1)
    assert consumer.read_message().body == b"2"


def test_other_channels_stay_where_they_are(finished: NsqdHarness, http: HttpClient) -> None:
    finished.create_channel("t", "other")
    seek(http, "earliest")
    assert finished.channel("t", "other").depth == 0


def test_a_connected_consumer_gets_the_messages_again(nsqd: NsqdHarness, http: HttpClient) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10)
    publish(http, b"0")
    consumer.fin(consumer.read_message())
    wait_until(lambda: nsqd.channel("t", "c").in_flight_count == 0)
    seek(http, "earliest")
    assert consumer.read_message().body == b"0"


def test_a_place_outlives_a_crash_from_the_moment_it_is_confirmed(
    finished: NsqdHarness, http: HttpClient, tmp_path: Any
) -> None:
    finished.advance(ms=2000)
    assert seek(http, "1").status == 200
    (cursor,) = (finished.data_path / "t.journal" / "cursors").glob("c.cursor")
    content = cursor.read_bytes()
    finished.stop()
    cursor.write_bytes(content)  # as it was when the answer came
    finished.start()
    assert low_water(HttpClient(finished.http_address), "c") == 1


def test_a_place_that_cannot_be_saved_is_an_error(
    finished: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: JournaledChannel, told: Any) -> None:
        told(StorageError("write c.cursor: no space left on device"))

    monkeypatch.setattr(JournaledChannel, "when_saved", fail)
    assert seek(http, "earliest").error == (500, "INTERNAL_ERROR")


@pytest.mark.nsqd(journal_topic=("^t$",))
def test_seeking_is_for_channels_of_journaled_topics(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("classic", "c")
    nsqd.create_channel("t", "c")
    nsqd.create_channel("t", "c#ephemeral")
    assert http.post("/channel/seek").error == (400, "MISSING_ARG_TOPIC")
    assert http.post("/channel/seek?topic=$").error == (400, "INVALID_ARG_TOPIC")
    assert http.post("/channel/seek?topic=t").error == (400, "MISSING_ARG_CHANNEL")
    assert http.post("/channel/seek?topic=t&channel=$").error == (400, "INVALID_ARG_CHANNEL")
    assert http.post("/channel/seek?topic=none&channel=c").error == (404, "TOPIC_NOT_FOUND")
    assert http.post("/channel/seek?topic=classic&channel=c").error == (404, "TOPIC_NOT_JOURNALED")
    assert http.post("/channel/seek?topic=t&channel=none").error == (404, "CHANNEL_NOT_FOUND")
    assert http.post("/channel/seek?topic=t&channel=c%23ephemeral").error == (400, "CHANNEL_NOT_JOURNALED")
    assert http.post("/channel/seek?topic=t&channel=c").error == (400, "MISSING_ARG_TO")


@pytest.mark.parametrize("to", ["", "oldest", "-1", "1.5", "2026-11-15", "2026-02-30T00:00:00Z", "9" * 19])
def test_a_place_is_a_word_an_offset_or_a_moment(finished: NsqdHarness, http: HttpClient, to: str) -> None:
    assert seek(http, to).error == (400, "INVALID_ARG_TO")
    assert create(http, to).error == (400, "INVALID_ARG_FROM")
    assert not finished.has_channel("t", "new")


def test_a_place_that_the_journal_does_not_have_yet_is_a_conflict(finished: NsqdHarness, http: HttpClient) -> None:
    ahead = seek(http, "5")
    assert (ahead.status, ahead.json()) == (409, {"message": "OFFSET_AHEAD", "next_offset": 4})


def test_a_place_that_the_journal_has_no_longer_is_gone(start_nsqd: StartNsqd) -> None:
    megabyte = 1024 * 1024
    nsqd = start_nsqd(journal=True, journal_segment_bytes=megabyte, journal_retention_bytes=megabyte)
    http = HttpClient(nsqd.http_address)
    nsqd.create_channel("t", "c")
    for number in range(4):
        publish(http, b"%d" % number * 600_000)
    seek(http, "latest")
    nsqd.advance(ms=10_000)
    gone = seek(http, "0")
    first_offset = http.get("/journal?topic=t").json()["first_offset"]
    assert (gone.status, gone.json()) == (410, {"message": "OFFSET_GONE", "first_offset": first_offset})
    assert seek(http, "earliest").json() == {"offset": first_offset}
    assert len(drain(nsqd, "c")) == 4 - first_offset


# New channels.


@pytest.mark.parametrize(
    ("start", "bodies"),
    [
        ("earliest", [b"0", b"1", b"2", b"3"]),
        ("2001-01-01T00:00:00Z", [b"0", b"1", b"2", b"3"]),
        ("2", [b"2", b"3"]),
        ("latest", []),
    ],
)
def test_a_new_channel_starts_where_it_is_told_to(
    finished: NsqdHarness, http: HttpClient, start: str, bodies: list[bytes]
) -> None:
    answer = create(http, start)
    assert (answer.status, answer.body) == (200, b"")
    assert drain(finished, "new") == bodies


def test_a_new_channel_without_a_place_gets_what_comes(finished: NsqdHarness, http: HttpClient) -> None:
    http.post("/channel/create?topic=t&channel=new")
    assert finished.channel("t", "new").depth == 0


def test_the_first_channel_may_leave_out_what_came_before_it(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"0", b"1")
    assert create(http, "latest").status == 200
    publish(http, b"2")
    assert drain(nsqd, "new") == [b"2"]


def test_a_new_channel_of_a_paused_topic_starts_where_it_is_told_to(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    publish(http, b"0")
    http.post("/topic/pause?topic=t")
    publish(http, b"1", b"2")
    assert create(http, "2", channel="late").status == 200
    assert create(http, "0", channel="early").status == 200
    http.post("/topic/unpause?topic=t")
    assert drain(nsqd, "late") == [b"2"]
    assert drain(nsqd, "early") == [b"0", b"1", b"2"]


def test_a_channel_that_exists_is_not_moved_by_being_created_again(finished: NsqdHarness, http: HttpClient) -> None:
    assert create(http, "earliest", channel="c").status == 200
    assert finished.channel("t", "c").depth == 0


@pytest.mark.nsqd(journal_topic=("^t$",))
def test_a_place_is_for_channels_of_journaled_topics(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_topic("classic")
    nsqd.create_topic("t")
    assert http.post("/channel/create?topic=classic&channel=c&from=0").error == (404, "TOPIC_NOT_JOURNALED")
    assert create(http, "0", channel="c%23ephemeral").error == (400, "CHANNEL_NOT_JOURNALED")
    assert not nsqd.has_channel("classic", "c")


# The folder of the cursors is synced before the answer.


@pytest.mark.parametrize(
    "asked",
    [
        "/channel/seek?topic=t&channel=c&to=1",
        "/channel/create?topic=t&channel=new&from=1",
        "/channel/delete?topic=t&channel=c",
        "/channel/empty?topic=t&channel=c",
    ],
)
def test_what_a_power_failure_could_undo_is_not_answered_with_200(
    nsqd: NsqdHarness, http: HttpClient, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    sync_folder = OsFiles.sync_folder

    def fails(files: OsFiles, path: Path) -> None:
        if path.name == "cursors":
            raise OSError(errno.EIO, "input/output error")
        sync_folder(files, path)

    nsqd.create_channel("t", "c")
    publish(http, b"0", b"1")
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "sync_folder", fails)
        assert http.post(asked).status == 500


def test_a_channel_that_was_emptied_is_empty_after_a_crash(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    publish(http, b"0", b"1")
    assert http.post("/channel/empty?topic=t&channel=c").status == 200
    assert saved_low_water(nsqd) == 2


def saved_low_water(nsqd: NsqdHarness) -> int:
    """Where the file of the channel `c` is, read without our own code."""
    content = (Path(nsqd.options.data_path) / "t.journal" / "cursors" / "c.cursor").read_bytes()
    return int.from_bytes(content[32:40], "little")
