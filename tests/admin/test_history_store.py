"""History on disk: levels of resolution, restarts, bounds, marks."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from emberq.admin import history_store as module
from emberq.admin.history import NODES, SERIES, History
from emberq.admin.history_store import HistoryMark, HistoryStore, HistoryStoreError, Marks, SeriesKind
from emberq.admin.view import Look
from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, of_cluster
from tests.support.cluster_rig import channel_entry, seen, topic_entry
from tests.support.embedded import create, publish
from tests.support.waiting import wait_until

KIND = SeriesKind(0, ("depth", "rate"))
HOUR_S = 3600
DAY_S = 24 * HOUR_S
NOW_S = 1_700_000_000 // 1800 * 1800
"""Where steps of all levels begin."""


@asynccontextmanager
async def opened(folder: Path, *, retention_s: int = 7 * DAY_S) -> AsyncIterator[HistoryStore]:
    store = HistoryStore(str(folder), kinds=[KIND], retention_ns=retention_s * NS_PER_SECOND)
    await store.open()
    yield store
    await store.close()


def add(store: HistoryStore, time_s: float, depth: float, rate: float, name: tuple[str, str] = ("t", "c")) -> None:
    store.add(time_s * 1000, [(KIND.number, name, (depth, rate))])


async def read(
    store: HistoryStore, *, back_s: float, now_s: float, name: tuple[str, str] = ("t", "c")
) -> tuple[int, list[tuple[float, tuple[float, ...]]]]:
    level, points = await store.points(KIND.number, name, since_s=now_s - back_s, until_s=now_s, now_s=now_s)
    return level.step_s, [(time_s, tuple(point)) for time_s, point in points]


async def test_a_minute_holds_the_mean_of_rates_and_the_highest_of_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for second, depth, rate in ((0, 5, 10), (20, 50, 20), (40, 8, 30), (60, 1, 1)):
            add(store, NOW_S + second, depth, rate)
        step_s, points = await read(store, back_s=HOUR_S, now_s=NOW_S + 70)
    assert step_s == 60
    assert points == [(NOW_S, (50.0, 20.0))]  # the other minute is not over


async def test_it_outlives_a_restart_and_falls_in_resolution(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for minute in range(10):
            add(store, NOW_S + 60 * minute, minute, minute)
    now_s = NOW_S + 600
    async with opened(tmp_path) as store:  # what was gathered last was written at the end
        step_s, minutes = await read(store, back_s=HOUR_S, now_s=now_s)
        assert (step_s, len(minutes), minutes[-1]) == (60, 10, (now_s - 60, (9.0, 9.0)))
        step_s, points = await read(store, back_s=12 * HOUR_S, now_s=now_s)
        assert (step_s, points) == (300, [(NOW_S, (4.0, 2.0)), (NOW_S + 300, (9.0, 7.0))])
        step_s, points = await read(store, back_s=7 * DAY_S, now_s=now_s)
        assert (step_s, points) == (1800, [(NOW_S, (9.0, 4.5))])
        add(store, NOW_S + 600, 20, 20)
        add(store, NOW_S + 900, 0, 0)
        step_s, points = await read(store, back_s=7 * DAY_S, now_s=now_s + 60)
        ((depth, rate),) = [point for _, point in points]
        assert (depth, round(rate, 3)) == (20.0, round((2 + 7 + 20) / 3, 3))  # goes on where it was


async def test_what_a_killed_nsqadmin_left_is_summed_up_by_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for minute in range(3):
            add(store, NOW_S + 60 * minute, minute, minute)
        await store.marks()
        (killed := tmp_path / "killed").mkdir()
        for path in tmp_path.glob(f"{module.FILE_NAME}*"):
            (killed / path.name).write_bytes(path.read_bytes())  # as it is on the disk now
    async with opened(killed) as store:
        assert (await read(store, back_s=HOUR_S, now_s=NOW_S + 200))[1][-1][0] == NOW_S + 60
        assert (await read(store, back_s=DAY_S, now_s=NOW_S + 200))[1] == [(NOW_S, (1.0, 0.5))]


async def test_gaps_stay_gaps(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        add(store, NOW_S, 5, float("nan"))
        add(store, NOW_S + 30, 7, float("nan"))
        add(store, NOW_S + 120, 9, 1)
        add(store, NOW_S + 180, 9, 1)
        _, points = await read(store, back_s=HOUR_S, now_s=NOW_S + 200)
    assert [time_s for time_s, _ in points] == [NOW_S, NOW_S + 120]
    assert points[0][1][0] == 7.0
    assert points[0][1][1] != points[0][1][1]


async def test_what_is_older_than_a_level_reaches_is_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path, retention_s=2 * HOUR_S) as store:
        for hour in range(30):
            add(store, NOW_S + hour * HOUR_S, hour, 0)
            await store.marks()  # all before is done when this is
    with sqlite3.connect(tmp_path / module.FILE_NAME) as file:
        counts = dict(file.execute("SELECT level, count(*) FROM points GROUP BY level"))
    assert counts == {0: 6, 1: 24, 2: 4 // 2}


async def test_series_are_bounded_and_the_longest_unseen_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    monkeypatch.setattr(module, "FORGET_COUNT", 1)
    async with opened(tmp_path) as store:
        for minute, name in enumerate(("a", "b", "c", "d")):
            add(store, NOW_S + 60 * minute, 1, 1, (name, ""))
        await store.marks()
    async with opened(tmp_path) as store:
        now_s = NOW_S + 300
        found = [name for name in "abcd" if (await read(store, back_s=HOUR_S, now_s=now_s, name=(name, "")))[1]]
    assert found == ["b", "c", "d"]


async def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        other = HistoryStore(str(tmp_path), kinds=[KIND], retention_ns=DAY_S * NS_PER_SECOND)
        with pytest.raises(HistoryStoreError, match="locked"):
            await other.open()
        await other.close()


async def test_a_damaged_file_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / module.FILE_NAME
    path.write_bytes(b"this is no database, and never was one" * 100)
    async with opened(tmp_path) as store:
        add(store, NOW_S, 1, 1)
        add(store, NOW_S + 60, 1, 1)
        assert len((await read(store, back_s=HOUR_S, now_s=NOW_S + 70))[1]) == 1
    assert (tmp_path / f"{module.FILE_NAME}{module.DAMAGED_SUFFIX}").read_bytes().startswith(b"this is no")
    assert "it is put aside" in caplog.text
    assert path.stat().st_mode & 0o077 == 0


async def test_points_of_other_figures_are_passed_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        add(store, NOW_S, 1, 1)
    other = HistoryStore(str(tmp_path), kinds=[SeriesKind(0, ("depth",))], retention_ns=DAY_S * NS_PER_SECOND)
    await other.open()
    assert (await other.points(0, ("t", "c"), since_s=NOW_S, until_s=NOW_S + 60, now_s=NOW_S + 60))[1] == []
    await other.close()


def mark(second: int, **fields: Any) -> HistoryMark:
    return HistoryMark(second * NS_PER_SECOND, "note", f"at {second}", **fields)


async def test_marks_are_kept_for_whom_they_concern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MARKS", 4)
    async with opened(tmp_path) as store:
        marks = Marks(store)
        for each in (mark(1), mark(3), mark(2, topic="t"), mark(4, topic="t", channel="c"), mark(5, topic="u")):
            marks.add(each)
    async with opened(tmp_path) as store:
        marks = Marks(store)
        await marks.load()

    def texts(*names: str, **options: Any) -> list[str]:
        return [each["text"] for each in marks.document(*names, **options)]

    assert texts() == ["at 2", "at 3", "at 4", "at 5"]
    assert texts(since_s=4) == ["at 4", "at 5"]
    assert texts("t") == ["at 2", "at 3", "at 4"]
    assert texts("t", "c") == ["at 2", "at 3", "at 4"]
    assert texts("t", "d") == ["at 2", "at 3"]
    assert texts("u") == ["at 3", "at 5"]
    assert marks.document("t")[0] == {"time": 2.0, "kind": "note", "text": "at 2", "topic": "t"}


async def test_a_history_continues_what_is_stored(tmp_path: Path) -> None:
    async def looks(history: History, store: HistoryStore, start_s: int, count: int) -> int:
        survey = None
        for number in range(count):
            now_s = start_s + 10 * number
            entry = topic_entry("t", channel_entry("c", depth=number))
            survey = seen(before=survey, at_s=now_s, a=[entry])
            history.record(Look(survey, taken_ns=now_s * NS_PER_SECOND), now_ns=now_s * NS_PER_SECOND)
            await store.marks()  # what was recorded is taken when this is
        return start_s + 10 * count

    def made(store: HistoryStore) -> History:
        return History(interval_ns=10 * NS_PER_SECOND, duration_ns=600 * NS_PER_SECOND, store=store)

    def store() -> HistoryStore:
        return HistoryStore(str(tmp_path), kinds=[SERIES, NODES], retention_ns=DAY_S * NS_PER_SECOND)

    first = store()
    await first.open()
    now_s = await looks(made(first), first, NOW_S, 30)
    await first.close()
    second = store()
    await second.open()
    history = made(second)
    before = await history.recalled("t", "c", now_s=now_s)
    assert [point["depth"] for point in before["points"]] == [5, 11, 17, 23, 29]
    now_s = await looks(history, second, now_s, 3)
    after = await history.recalled("t", "c", now_s=now_s)
    assert [point["depth"] for point in after["points"]] == [5, 11, 17, 23, 29, 0, 1, 2]
    assert after["interval"] == 10.0
    day = await history.recalled("t", "c", range_s=DAY_S, now_s=now_s)
    assert (day["interval"], [point["depth"] for point in day["points"]]) == (300.0, [29, 2])
    node = await history.recalled(node="a:4151", now_s=now_s)
    assert len(node["points"]) == 8
    assert (await history.recalled("none", now_s=now_s))["points"] == []
    await second.close()


# Through nsqadmin

Start = Callable[[], AdminThread]


@pytest.fixture
def start(cluster: EmbeddedThread, tmp_path: Path) -> Start:
    """Makes nsqadmins with the same folder."""
    return lambda: of_cluster(
        cluster,
        history_path=str(tmp_path / "history"),
        history_duration_ns=HOUR_S * NS_PER_SECOND,
        history_interval_ns=NS_PER_SECOND // 10,
    )


def test_figures_and_marks_are_there_after_a_restart(start: Start, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    publish(cluster, "t", b"one", b"two")
    with start() as admin:
        wait_until(lambda: bool(admin.get("/api/history?topic=t&channel=ch").json()["points"]))
        assert admin.post("/api/marks", {"text": "deploy 12", "topic": "t"}).json() == {"message": ""}
        admin.post("/api/topics/t/ch", {"action": "pause"})
    with start() as admin:
        answer = admin.get("/api/history?topic=t&channel=ch&range=86400").json()
        assert answer["points"][-1]["depth"] == 2
        assert answer["interval"] == 300.0
        assert [each["text"] for each in answer["marks"]] == ["deploy 12", "pause t / ch"]
        marks = admin.get("/api/marks?topic=t&range=600").json()["marks"]
        assert [each["kind"] for each in marks] == ["note", "action"]
        assert admin.get("/api/marks?topic=other").json()["marks"] == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "INVALID_TEXT"),
    ({"text": " \n "}, "INVALID_TEXT"),
    ({"text": "x", "topic": "*"}, "INVALID_TOPIC"),
    ({"text": "x", "channel": "c"}, "INVALID_TOPIC"),
    ({"text": "x", "topic": "t", "channel": "$"}, "INVALID_CHANNEL"),
    ({"text": "x", "time": -1}, "INVALID_TIME"),
    ({"text": "x", "time": "now"}, "time must be a whole number"),
]


def test_a_mark_that_makes_no_sense_is_refused(admin: AdminThread) -> None:
    for body, message in REFUSED:
        assert admin.post("/api/marks", body).error == (400, message)
    for path in ("/api/history", "/api/marks"):
        assert admin.get(f"{path}?range=-1").error == (400, "INVALID_ARG_RANGE")


def test_a_mark_may_be_of_another_time(start_admin: StartAdmin) -> None:
    admin = start_admin(clock=ManualClock())
    admin.post("/api/marks", {"text": "earlier", "time": 1_600_000_000})
    admin.post("/api/marks", {"text": "now"})
    assert [each["time"] for each in admin.get("/api/marks").json()["marks"]] == [1_600_000_000.0, 1_700_000_000.0]
