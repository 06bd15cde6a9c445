"""A week of history: written as nsqadmin keeps it, and what it costs to have it.

restart    from the start of the process until the week of a topic, and that of the cluster, are answered
answers    a week and a day of topics, each of another one, while looks go on
writing    /ping asked all the time while five minutes are summed up: what the store does then is most of its work
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.admin.measurement import PATIENCE_S, Figure, Pinger, answers, stalls, timed_get
from bench.admin.nsqadmin import Nsqadmin
from bench.admin.simulated_cluster import CHANNELS, SimulatedCluster, topic_name
from bench.failure import LoadFailure
from bench.process import rss_bytes
from emberq.admin.history import NODES, SERIES
from emberq.admin.history_store import FILE_NAME, HistoryStore, SeriesKind

DAY_S = 24 * 3600
WEEK_S = 7 * DAY_S
ASK_COUNT = 50
VARIETY = 1_000
"""Different points that the history is made of."""
SUMMED_S = 300
"""How often the store sums up what it was given."""


def fill_week(folder: Path, cluster: SimulatedCluster) -> Figure:
    """Write a week of every topic, channel and node, until now."""
    store = HistoryStore(str(folder), kinds=(SERIES, NODES), retention_ns=WEEK_S * 1_000_000_000)
    asyncio.run(_made(store))
    names = [("", "")]
    for number in range(cluster.size.topics):
        names += [(topic_name(number), channel) for channel in ("", *CHANNELS)]
    series = [(SERIES, name) for name in names] + [(NODES, (node, "")) for node in cluster.nodes]
    figures = {kind: [_figures(kind, number) for number in range(VARIETY)] for kind in (SERIES, NODES)}
    now_s = int(time.time())
    connection = sqlite3.connect(folder / FILE_NAME)
    for number, (kind, (topic, channel)) in enumerate(series, start=1):
        row = (number, kind.number, topic, channel, now_s // store.levels[0].step_s)
        connection.execute("INSERT INTO series (id, kind, topic, channel, seen) VALUES (?, ?, ?, ?, ?)", row)
    for level, resolution in enumerate(store.levels):
        last = now_s // resolution.step_s
        for number, (kind, _) in enumerate(series, start=1):
            points = (
                (level, number, step, figures[kind][(step * 7 + number) % VARIETY])
                for step in range(last - resolution.size + 1, last)
            )
            connection.executemany("INSERT INTO points (level, series, number, figures) VALUES (?, ?, ?, ?)", points)
    connection.commit()
    connection.close()
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Figure("a week of history", f"{len(series):,} series, {size / 1e6:.0f} MB on disk")


async def _made(store: HistoryStore) -> None:
    await store.open()
    await store.close()


def _figures(kind: SeriesKind, number: int) -> bytes:
    values = [math.floor(1000 * (1 + math.sin(number / 7 + index))) for index in range(len(kind.figures))]
    return kind.layout.pack(*values)


@contextmanager
def restarted(folder: Path, cluster: SimulatedCluster) -> Iterator[tuple[Nsqadmin, list[Figure]]]:
    """An nsqadmin that finds this history; and how long it took to show it."""
    began = time.perf_counter()
    flags = (f"--history-path={folder}",)
    with Nsqadmin(*flags, lookupd_address=cluster.lookupd_address) as admin:
        listens_s = time.perf_counter() - began
        for path in (_history("topic-0000"), f"/api/history?range={WEEK_S}"):
            timed_get(admin.address, path, at_least_bytes=WEEK_S // 1800 * 50)
        shown_s = time.perf_counter() - began
        yield (
            admin,
            [Figure("restart: listens, shows a week", f"{listens_s * 1000:.0f} ms, {shown_s * 1000:.0f} ms")],
        )


def _history(topic: str, range_s: int = WEEK_S) -> str:
    return f"/api/history?topic={topic}&range={range_s}"


def measure_history(admin: Nsqadmin) -> Iterator[Figure]:
    """What the history costs while nsqadmin runs."""
    for name, range_s in (("week", WEEK_S), ("day", DAY_S)):
        paths = [_history(topic_name(number * 7 % 1000), range_s) for number in range(ASK_COUNT)]
        yield answers(f"a {name} of a topic", [timed_get(admin.address, path) for path in paths])
    deadline = time.monotonic() + SUMMED_S + PATIENCE_S
    until_s = (int(time.time()) // SUMMED_S + 1) * SUMMED_S + 30  # it is written with the next point, a look later
    with Pinger(admin.address) as pinger:
        while time.time() < until_s:
            if time.monotonic() > deadline:
                raise LoadFailure("the clock was set back")
            time.sleep(1)
    yield stalls("longest wait for /ping while 5 minutes are summed up", pinger)
    yield Figure("memory with a week of history", f"{rss_bytes(admin.pid) / 1e6:.0f} MB resident")
