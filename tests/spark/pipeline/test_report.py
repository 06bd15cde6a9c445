"""Progress as it is shown and published, with a real nsqd and without Spark."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import pytest

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.spark.option import access_of
from emberq.spark.pipeline.progress import QueryProgress, QuerySign, QueryState
from emberq.spark.pipeline.report import PAUSE_S, ProgressPublisher, ProgressReporter
from tests.support.held_port import hold_port
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import documents_of
from tests.support.waiting import wait_until

TOPIC = "emberq.pipelines"
TIME = "2026-11-15T06:00:00.000Z"


def clock_at(time: str) -> ManualClock:
    return ManualClock(wall_ns=int(datetime.fromisoformat(time).timestamp() * 1000) * 10**6)


def address_of(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


@contextmanager
def reporting(
    nsqd: str, shown: list[QueryProgress], *, topic: str = TOPIC, clock: ManualClock | None = None
) -> Iterator[ProgressReporter]:
    """A reporter that has told everything when the block is over."""
    options = {"nsqd": nsqd} if nsqd else {}
    reporter = ProgressReporter(
        "shop", access_options=options, topic=topic, on_progress=shown.append, clock=clock or clock_at(TIME)
    )
    reporter.start()
    yield reporter
    reporter.close()


def batch(nsqd: str, *, offset: int, topic: str = "clicks") -> QueryProgress:
    offsets = {nsqd: {topic: {"journal": "any", "offset": offset}}}
    return QueryProgress(
        pipeline="shop", query="counts", time=TIME, batch=3, rows=10, rows_out=4, duration_ms=200, offsets=(offsets,)
    )


def test_lag_is_what_the_journals_have_beyond_the_batch(nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"visit"] * 25)
    shown: list[QueryProgress] = []
    with reporting(nsqd.http, shown) as reporter:
        reporter.put(batch(nsqd.http, offset=10))
        reporter.put(batch(nsqd.http, offset=25))
    assert [progress.lag for progress in shown] == [15, 0]
    assert [document["lag"] for document in documents_of(nsqd.http, TOPIC)] == [15, 0]


def test_signs_of_life_are_published_with_what_was_known(nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"visit"] * 12)
    shown: list[QueryProgress] = []
    with reporting(nsqd.http, shown) as reporter:
        reporter.put(QuerySign(query="counts", time=TIME))
        reporter.put(batch(nsqd.http, offset=10))
        reporter.put(QuerySign(query="counts", time=TIME, state=QueryState.FAILED, error="no disk"))
    began, worked, failed = documents_of(nsqd.http, TOPIC)
    assert (began["state"], began["batch"], began["lag"], began["rows"]) == ("running", None, None, 0)
    assert (worked["state"], worked["batch"], worked["lag"], worked["rows"]) == ("running", 3, 2, 10)
    assert (failed["state"], failed["batch"], failed["lag"], failed["rows"]) == ("failed", 3, 2, 0)
    assert failed["error"] == "no disk"
    assert all(document["pipeline"] == "shop" and document["query"] == "counts" for document in (began, worked))


def test_the_lag_of_a_spool_or_of_a_topic_that_is_gone_is_unknown(nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"visit"])
    shown: list[QueryProgress] = []
    with reporting(nsqd.http, shown, topic="") as reporter:
        reporter.put(QueryProgress(pipeline="shop", query="a", time=TIME, offsets=({"spool": "0b5f", "next": 4},)))
        reporter.put(batch(nsqd.http, offset=0, topic="gone"))
        reporter.put(batch(nsqd.http, offset=0))
    assert [progress.lag for progress in shown] == [None, None, 1]


def test_an_nsqd_that_is_away_holds_nothing_up() -> None:
    shown: list[QueryProgress] = []
    with hold_port() as port:
        away = f"127.0.0.1:{port}"
        with reporting(away, shown) as reporter:
            for _ in range(5):
                reporter.put(batch(away, offset=0))
    assert [progress.lag for progress in shown] == [None] * 5


def test_an_nsqd_that_is_slow_to_answer_publishes_does_not_make_figures_old(caplog: pytest.LogCaptureFixture) -> None:
    """As when its disk is busy: the lines are shown at once, and published later."""
    shown: list[QueryProgress] = []
    with caplog.at_level(logging.DEBUG, "emberq"), socket.create_server(("127.0.0.1", 0)) as silent:
        reporter = ProgressReporter(
            "shop", access_options={"nsqd": address_of(silent)}, topic=TOPIC, on_progress=shown.append
        )
        reporter.start()
        for query in ("a", "b", "c"):
            reporter.put(QuerySign(query=query, time=TIME))
        wait_until(lambda: len(shown) >= 3)
        assert caplog.messages == []  # none had to give up for the next to be shown
        connection, _ = silent.accept()  # the first line of progress, which waits for its answer
        with connection:
            assert connection.recv(1000).startswith(b"POST /pub?topic=emberq.pipelines")
        reporter.close()


def test_an_nsqd_that_stays_away_is_told_of_once_and_one_late_answer_never(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is told of stands in the middle of the live table."""
    clock = clock_at(TIME)
    with caplog.at_level(logging.WARNING, "emberq"), hold_port() as port:
        access = access_of({"nsqd": f"127.0.0.1:{port}"})
        publisher = ProgressPublisher(access, TOPIC, monotonic_s=lambda: clock.monotonic_ns() / NS_PER_SECOND)
        told = []
        for _ in range(4):
            publisher.publish(batch("127.0.0.1:1", offset=0))
            told.append(len(caplog.messages))
            clock.advance(seconds=PAUSE_S)
    assert told == [0, 1, 1, 1]
    assert "progress cannot be published to topic emberq.pipelines" in caplog.text


def test_without_an_address_progress_is_shown_only() -> None:
    shown: list[QueryProgress] = []
    with reporting("", shown) as reporter:
        reporter.put(batch("127.0.0.1:1", offset=0))
    assert [progress.lag for progress in shown] == [None]


def test_figures_that_grow_old_are_told_again_with_the_lag_of_that_moment(nsqd: JournalNsqd) -> None:
    clock = clock_at(TIME)
    shown: list[QueryProgress] = []
    reporter = ProgressReporter(
        "shop", access_options={"nsqd": nsqd.http}, topic="", on_progress=shown.append, clock=clock
    )
    nsqd.publish("clicks", [b"visit"] * 12)
    reporter.put(replace(batch(nsqd.http, offset=10), as_of=TIME))
    reporter.put(QuerySign(query="done", time=TIME, state=QueryState.ENDED))
    reporter.tell_next()
    reporter.tell_next()
    nsqd.publish("clicks", [b"visit"] * 5)
    clock.advance(seconds=1.9)
    reporter.give_signs()
    clock.advance(seconds=0.1)
    reporter.give_signs()
    assert [(line.query, line.as_of, line.rows, line.lag) for line in shown] == [
        ("counts", TIME, 10, 2),
        ("done", TIME, 0, None),
        ("counts", "2026-11-15T06:00:02.000Z", 0, 7),
    ]


def test_a_batch_that_is_told_of_late_keeps_the_lag_that_it_had(nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"visit"] * 100)
    shown: list[QueryProgress] = []
    with reporting(nsqd.http, shown, clock=clock_at("2026-11-15T06:00:01.500Z")) as reporter:
        reporter.put(replace(batch(nsqd.http, offset=10), as_of=TIME, lag=3))
    assert [line.lag for line in shown] == [3]
