"""GET /journal/read over real sockets, from a real journal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from emberq.broker.store import SyncMode
from tests.conftest import StartNsqd
from tests.nsqd.api.journal_bytes import read_batches, read_bodies
from tests.support.harness import NsqdHarness
from tests.support.http_client import Answer, HttpClient
from tests.support.raw_http_client import RawClient, request
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.nsqd(journal=True)

MEGABYTE = 1024 * 1024


def publish(http: HttpClient, *bodies: bytes, topic: str = "t") -> None:
    """One batch."""
    assert http.post(f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def read(http: HttpClient, offset: int, arguments: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.request("GET", f"/journal/read?topic=t&offset={offset}{arguments}", headers=named)


def offsets(answer: Answer) -> tuple[int, int]:
    return int(answer.headers["x-emberq-base-offset"]), int(answer.headers["x-emberq-next-offset"])


def watcher_count(nsqd: NsqdHarness) -> int:
    """How many answers wait for more of topic `t`."""
    topic: Any = nsqd.call(lambda: nsqd.broker.topic("t"))
    return len(topic._watchers)


class Poll:
    """A request that is under way in another thread."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answers: list[Answer] = []
        self._thread = threading.Thread(target=lambda: self._answers.append(self._ask()), daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        self._thread.join(PATIENCE_S)
        (answer,) = self._answers
        return answer


# What is read.


def test_whole_batches_come_as_they_lie_on_disk(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a", b"bb")
    publish(http, b"ccc")
    answer = read(http, 0)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    assert offsets(answer) == (0, 3)
    assert [(batch.base_offset, batch.bodies) for batch in read_batches(answer.body)] == [
        (0, [b"a", b"bb"]),
        (2, [b"ccc"]),
    ]
    (segment,) = (nsqd.data_path / "t.journal").glob("*.log")
    assert segment.read_bytes().endswith(answer.body)


def test_the_journal_says_which_one_it_is(http: HttpClient) -> None:
    publish(http, b"a")
    assert read(http, 0).headers["x-emberq-journal"] == http.get("/journal?topic=t").json()["uuid"]


def test_reading_goes_on_at_the_next_offset_and_ends_empty(http: HttpClient) -> None:
    publish(http, b"a")
    first = read(http, 0)
    publish(http, b"b")
    second = read(http, offsets(first)[1])
    assert read_bodies(second.body) == [b"b"]
    end = read(http, offsets(second)[1])
    assert (end.status, end.body, offsets(end)) == (200, b"", (2, 2))


def test_an_offset_within_a_batch_brings_all_of_the_batch(http: HttpClient) -> None:
    publish(http, b"a", b"b", b"c")
    answer = read(http, 1)
    assert offsets(answer) == (0, 3)
    assert read_bodies(answer.body) == [b"a", b"b", b"c"]


def test_no_more_batches_come_than_fit_into_max_bytes(http: HttpClient) -> None:
    for number in range(5):
        publish(http, b"%d" % number)
    whole = read(http, 0)
    batch_bytes = len(whole.body) // 5
    two = read(http, 0, f"&max_bytes={2 * batch_bytes + batch_bytes // 2}")
    assert (offsets(two), two.body) == ((0, 2), whole.body[: 2 * batch_bytes])


def test_one_batch_comes_however_large_it_is(http: HttpClient) -> None:
    publish(http, b"x" * 1000)
    assert read_bodies(read(http, 0, "&max_bytes=1").body) == [b"x" * 1000]


def test_a_long_stretch_arrives_unharmed(http: HttpClient) -> None:
    bodies = [bytes([65 + number]) * 700_000 for number in range(8)]
    for body in bodies:
        publish(http, body)
    assert read_bodies(read(http, 0).body) == bodies


@pytest.mark.nsqd(journal=True, journal_segment_bytes=MEGABYTE)
def test_an_answer_ends_with_its_segment(http: HttpClient) -> None:
    for number in range(4):
        publish(http, b"%d" % number * 400_000)
    first = read(http, 0)
    assert offsets(first) == (0, 2)
    assert offsets(read(http, 2)) == (2, 4)


def test_reading_goes_on_after_a_restart(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a")
    before = read(http, 0)
    nsqd.restart()
    assert read(HttpClient(nsqd.http_address), 0).body == before.body


def test_a_connection_goes_on_after_a_stretch(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a")
    address = nsqd.http_address
    client = RawClient(address)
    try:
        client.send(request("GET", "/journal/read?topic=t&offset=0") + request("GET", "/ping"))
        assert read_bodies(client.read_answer().body) == [b"a"]
        assert client.read_answer().body == b"OK"
    finally:
        client.close()


# What is not on the disk yet.


@pytest.mark.nsqd(journal=True, journal_sync=SyncMode.INTERVAL, sync_timeout_ns=10**9)
def test_what_is_not_synced_is_not_read(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a")
    assert (read(http, 0).body, offsets(read(http, 0))) == (b"", (0, 0))
    nsqd.advance(ms=1000)
    wait_until(lambda: http.get("/journal?topic=t").json()["synced_offset"] == 1)
    assert read_bodies(read(http, 0).body) == [b"a"]


@pytest.mark.nsqd(journal=True, journal_sync=SyncMode.NEVER)
def test_without_syncing_everything_can_be_read_at_once(http: HttpClient) -> None:
    publish(http, b"a")
    assert read_bodies(read(http, 0).body) == [b"a"]


# Waiting.


@pytest.mark.parametrize("mode", list(SyncMode))
def test_an_answer_waits_until_there_is_something(start_nsqd: StartNsqd, mode: SyncMode) -> None:
    nsqd = start_nsqd(journal=True, journal_sync=mode, sync_timeout_ns=10**9)
    http = HttpClient(nsqd.http_address)
    http.post("/topic/create?topic=t")
    poll = Poll(lambda: read(http, 0, "&wait_ms=9000"))
    wait_until(lambda: watcher_count(nsqd) == 1)
    publish(http, b"a")
    nsqd.advance(ms=1000)
    answer = poll.answer()
    assert (offsets(answer), read_bodies(answer.body)) == ((0, 1), [b"a"])
    assert watcher_count(nsqd) == 0


def test_an_answer_does_not_wait_for_more_than_it_has(http: HttpClient) -> None:
    publish(http, b"a")
    assert read_bodies(read(http, 0, "&wait_ms=60000").body) == [b"a"]


def test_an_answer_that_waited_in_vain_is_empty(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a")
    answer = read(http, 1, "&wait_ms=1")
    assert (answer.status, answer.body, offsets(answer)) == (200, b"", (1, 1))
    assert watcher_count(nsqd) == 0


def test_an_answer_that_waits_is_told_when_its_topic_goes(nsqd: NsqdHarness, http: HttpClient) -> None:
    http.post("/topic/create?topic=t")
    poll = Poll(lambda: read(http, 0, "&wait_ms=9000"))
    wait_until(lambda: watcher_count(nsqd) == 1)
    http.post("/topic/delete?topic=t")
    assert poll.answer().error == (404, "TOPIC_NOT_FOUND")


def test_stopping_does_not_wait_for_answers_that_wait(nsqd: NsqdHarness, http: HttpClient) -> None:
    http.post("/topic/create?topic=t")
    poll = Poll(lambda: read(http, 0, "&wait_ms=9000"))
    wait_until(lambda: watcher_count(nsqd) == 1)
    nsqd.stop()
    answer = poll.answer()
    assert (answer.status, answer.body) == (200, b"")


# Ranges.


def test_the_rest_of_an_answer_can_be_fetched(http: HttpClient) -> None:
    publish(http, b"a", b"b")
    whole = read(http, 0)
    length = len(whole.body)
    rest = read(http, 0, f"&max_bytes={length}", Range="bytes=10-")
    assert (rest.status, rest.body) == (206, whole.body[10:])
    assert rest.headers["content-range"] == f"bytes 10-{length - 1}/{length}"
    assert offsets(rest) == offsets(whole)
    assert read(http, 0, Range="bytes=10-19").body == whole.body[10:20]
    assert read(http, 0, Range="bytes=10-999999").body == whole.body[10:]


def test_the_length_of_an_answer_gives_the_same_one_again_though_there_is_more(http: HttpClient) -> None:
    publish(http, b"a")
    whole = read(http, 0)
    publish(http, b"b")
    again = read(http, 0, f"&max_bytes={len(whole.body)}", Range="bytes=5-", If_Range=whole.headers["etag"])
    assert (again.status, again.body) == (206, whole.body[5:])


def test_a_stretch_that_is_another_one_by_now_comes_whole(http: HttpClient) -> None:
    publish(http, b"a")
    tag = read(http, 0).headers["etag"]
    publish(http, b"b")
    answer = read(http, 0, Range="bytes=5-", If_Range=tag)
    assert (answer.status, read_bodies(answer.body)) == (200, [b"a", b"b"])


def test_a_range_behind_the_end_is_refused(http: HttpClient) -> None:
    publish(http, b"a")
    length = len(read(http, 0).body)
    answer = read(http, 0, Range=f"bytes={length}-")
    assert (answer.status, answer.body) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{length}"


@pytest.mark.parametrize("useless", ["bytes=-5", "bytes=0-1,3-4", "lines=0-1", "bytes=5-1", "bytes=x-"])
def test_a_range_that_is_of_no_use_is_ignored(http: HttpClient, useless: str) -> None:
    publish(http, b"a")
    answer = read(http, 0, Range=useless)
    assert (answer.status, read_bodies(answer.body)) == (200, [b"a"])


# What is refused.


@pytest.mark.nsqd(journal_topic=("^t$",))
def test_a_topic_must_be_named_exist_and_be_journaled(http: HttpClient) -> None:
    http.post("/topic/create?topic=classic")
    assert http.get("/journal/read").error == (400, "MISSING_ARG_TOPIC")
    assert http.get("/journal/read?topic=$&offset=0").error == (400, "INVALID_TOPIC")
    assert http.get("/journal/read?topic=none&offset=0").error == (404, "TOPIC_NOT_FOUND")
    assert http.get("/journal/read?topic=classic&offset=0").error == (404, "TOPIC_NOT_JOURNALED")
    publish(http, b"a")
    assert http.get("/journal/read?topic=t").error == (400, "MISSING_ARG_OFFSET")


@pytest.mark.parametrize("offset", ["", "x", "-1", "+1", "1.5", "earliest", "9" * 19])
def test_an_offset_is_a_number(http: HttpClient, offset: str) -> None:
    publish(http, b"a")
    assert http.get(f"/journal/read?topic=t&offset={offset}").error == (400, "INVALID_ARG_OFFSET")


@pytest.mark.parametrize("max_bytes", ["", "0", "-1", "x", str((1 << 30) + 1)])
def test_the_length_of_an_answer_is_bounded(http: HttpClient, max_bytes: str) -> None:
    publish(http, b"a")
    assert read(http, 0, f"&max_bytes={max_bytes}").error == (400, "INVALID_ARG_MAX_BYTES")


@pytest.mark.parametrize("wait_ms", ["", "-1", "x", "60001"])
def test_waiting_is_bounded(http: HttpClient, wait_ms: str) -> None:
    publish(http, b"a")
    assert read(http, 0, f"&wait_ms={wait_ms}").error == (400, "INVALID_ARG_WAIT_MS")


def test_an_offset_behind_the_end_is_a_conflict(http: HttpClient) -> None:
    publish(http, b"a")
    answer = read(http, 2)
    assert (answer.status, json.loads(answer.body)) == (409, {"message": "OFFSET_AHEAD", "next_offset": 1})


@pytest.mark.nsqd(journal=True, journal_segment_bytes=MEGABYTE, journal_retention_bytes=MEGABYTE)
def test_an_offset_that_retention_has_removed_is_gone(nsqd: NsqdHarness, http: HttpClient) -> None:
    nsqd.create_channel("t", "c")
    for number in range(4):
        publish(http, b"%d" % number * 600_000)
    http.post("/channel/empty?topic=t&channel=c")
    nsqd.advance(ms=10_000)
    first_offset = http.get("/journal?topic=t").json()["first_offset"]
    assert first_offset > 0
    gone = read(http, 0)
    assert (gone.status, gone.json()) == (410, {"message": "OFFSET_GONE", "first_offset": first_offset})
    assert read(http, first_offset).status == 200


def test_a_damaged_batch_shows_as_a_base_offset_behind_the_one_asked_for(nsqd: NsqdHarness, http: HttpClient) -> None:
    publish(http, b"a" * 100)
    publish(http, b"b" * 100)
    (segment,) = (nsqd.data_path / "t.journal").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"aaaa")] ^= 1
    segment.write_bytes(content)
    answer = read(http, 0)
    assert offsets(answer) == (1, 2)
    assert read_bodies(answer.body) == [b"b" * 100]
    (gap,) = http.get("/journal?topic=t").json()["gaps"]
    assert (gap["first_offset"], gap["next_offset"]) == (0, 1)
