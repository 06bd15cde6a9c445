"""`make soak-demo`: the demonstration in a real terminal, watched for minutes, then stopped at random moments.

Run alone and, with BUSY=1, beside two busy processes for each core. What must hold:

- no line on the screen that does not belong there;
- figures on the screen at most 5 s old, and those that the pipeline has reported;
- the lag equals the channel's depth at the same moment, but for the messages of one batch: Spark lets the channel
  follow when it plans the next batch;
- Ctrl-C and SIGTERM end everything within 5 s, with status 130, at any moment.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emberq.base.child_process import Process, await_end, descendants, processes_gone
from emberq.sync import Consumer
from tests.support.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "clickstream.toml"
SCRIPT = f"""\
trap : INT
sh -c 'echo $$ >pid.new; mv pid.new pid; exec {sys.executable} -m emberq.cli.main demo {EXAMPLE}'
echo $? >status.new; mv status.new status
"""
"""tmux itself does not always tell how a command has ended."""
NSQD = "http://127.0.0.1:4151"
MAX_AGE_S = 5
MAX_STOP_S = 5.0
START_TIMEOUT_S = 180.0
INTERRUPTED = 130
NEAR_S = 10.0
"""Between a report and the screen that shows it, either way."""
ENDED_BY_SYSTEM = 128 + signal.SIGTERM
MINUTES = float(os.environ.get("MINUTES", "10"))
MOMENTS = int(os.environ.get("MOMENTS", "5"))
SEED = int(os.environ.get("SEED", "2026"))
BUSY_PER_CORE = 2 if os.environ.get("BUSY") else 0

ROW = re.compile(
    r"(?P<query>[a-z-]+) +(?P<batch>[\d,–]+) +(?P<rows>[\d,]+) +(?P<in>[\d,]+) +(?P<out>[\d,–]+) +(?P<lag>[\d,–]+) +"
    r"(?P<ms>[\d,]+) +(?P<state>[\d,]+) +(?P<bad>[\d,]+) +(?P<age>\d+ s|–)(?: +[\d:]+)?"
)
EXPECTED = re.compile(
    r"|QUERY .*|(\^C)?emberq demo: (starting Spark.*|stopping|stopped; .*)|[\d,]+ events made, [\d,]+ of them broken|"
    r".* since the start, about 30 s to the first results|NSQ is up; .*|  (nsqadmin|nsqd|nsqlookupd) .*|"
    r"Try, in another terminal:|  .*emberq.* (tail|sql) .*|Ctrl-C stops everything\.|\^C"
)


class Screen:
    """A terminal of tmux with the demonstration in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = str(folder / "tmux")
        folder.joinpath("demo.sh").write_text(SCRIPT)
        size = ("-x", "80", "-y", "40")
        self._tmux("-f", os.devnull, "new-session", "-d", *size, f"-c{folder}", "sh demo.sh; exec sleep 3600")
        wait_until(folder.joinpath("pid").exists)
        self.pid = int(folder.joinpath("pid").read_text())

    def lines(self) -> list[str]:
        """Everything that the terminal shows, and what has scrolled away."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p", "-J", "-S", "-").splitlines()]

    def press_ctrl_c(self) -> None:
        self._tmux("send-keys", "C-c")

    def status(self) -> int | None:
        """How the command has ended; None: it has not."""
        file = self._folder / "status"
        return int(file.read_text()) if file.exists() else None

    def close(self) -> None:
        """End the command, if it still runs, and the terminal."""
        if self.status() is None:
            family = descendants(self.pid)
            os.kill(self.pid, signal.SIGTERM)
            await_end(family, timeout_s=60)
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=True)
        return done.stdout.rstrip("\n")


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    with ExitStack() as running:
        for _ in range(BUSY_PER_CORE * (os.cpu_count() or 1)):
            running.enter_context(busy_process())
        screen = Screen(tmp_path)
        running.callback(screen.close)
        yield screen


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the live table."""

    query: str
    lag: int
    age_s: int


def rows(lines: list[str]) -> list[Row]:
    """The lines of queries that have finished a batch."""
    found = []
    for line in lines:
        match = ROW.fullmatch(line)
        if match and "–" not in (match["batch"], match["lag"], match["age"]):
            lag, age_s = int(match["lag"].replace(",", "")), int(match["age"].removesuffix(" s"))
            found.append(Row(match["query"], lag, age_s))
    return found


class LagWatch:
    """Compares each lag that the pipeline reports with the depth of the query's channel at that moment.

    The lag is the journal's end less the query's offset; the depth is the journal's end less the channel's. So at one
    moment they differ by as much as the two offsets do. These do not move while messages are published, and can be
    compared although they are asked for one after the other.
    """

    def __init__(self) -> None:
        self._reported: list[tuple[float, str, int]] = []
        self._shown: list[tuple[float, str, int]] = []
        """When, of which query, and what lag."""
        self._batch_rows: dict[tuple[str, int], int] = {}
        self._apart: list[tuple[str, int, int]] = []
        """Query, batch, and how far the channel's offset is behind the query's."""

    def take(self, report: dict[str, Any]) -> None:
        query, batch, lag = report["query"], report["batch"], report["lag"]
        if batch is None or lag is None:
            return
        self._reported.append((time.monotonic(), query, lag))
        self._batch_rows.setdefault((query, batch), report["rows"])
        ((offset,),) = ([place["offset"] for place in nsqd.values()] for nsqd in report["offsets"][0].values())
        self._apart.append((query, batch, offset - channel_offset(query)))

    def saw(self, shown: list[Row]) -> None:
        """These lines were on the screen."""
        self._shown += [(time.monotonic(), row.query, row.lag) for row in shown]

    def invented(self) -> list[tuple[float, str, int]]:
        """Lags on the screen that were not reported about that time. A report may come after it was shown."""
        return [
            (shown_s, query, lag)
            for shown_s, query, lag in self._shown
            if shown_s < self._reported[-1][0] - NEAR_S
            and not any(
                (query, lag) == (of, was) and abs(shown_s - reported_s) < NEAR_S
                for reported_s, of, was in self._reported
            )
        ]

    def distances(self) -> list[float]:
        """How many batches lag and depth were apart, sorted. A channel is ahead where the next batch is planned."""
        return sorted(
            abs(behind) / max(self._batch_rows[query, batch if behind > 0 else batch + 1], 1)
            for query, batch, behind in self._apart
            if (query, batch + 1) in self._batch_rows
        )


def channel_offset(query: str) -> int:
    """Where the channel stands that follows a query; its depth is what the journal holds from there on."""
    with urllib.request.urlopen(f"{NSQD}/journal?topic=clicks", timeout=10) as answer:
        channels = json.load(answer)["channels"]
    (offset,) = (each["low_water"] for each in channels if each["channel_name"] == f"clickstream.{query}")
    return int(offset)


def noise(lines: list[str]) -> list[str]:
    return [line for line in lines if not EXPECTED.fullmatch(line) and not ROW.fullmatch(line)]


@pytest.mark.timeout(0)
def test_figures_stay_fresh_and_right_and_nothing_else_is_on_the_screen(screen: Screen) -> None:
    started_s = time.monotonic()
    while len(rows(screen.lines())) < 4:
        assert screen.status() is None, screen.lines()
        assert time.monotonic() - started_s < START_TIMEOUT_S, screen.lines()
        time.sleep(0.2)
    print(f"\nall queries had finished a batch after {time.monotonic() - started_s:.1f} s")
    ages: list[int] = []
    watch = LagWatch()
    next_look_s = time.monotonic() + MAX_AGE_S
    end_s = time.monotonic() + MINUTES * 60
    with Consumer("emberq.pipelines", "soak#ephemeral", nsqd_addresses=["127.0.0.1:4150"]) as reports:
        for report in reports:
            watch.take(json.loads(report.body))
            report.finish()
            if time.monotonic() > next_look_s:
                next_look_s = time.monotonic() + 1
                ages += look_at(screen, watch)
            if time.monotonic() > end_s:
                break
    apart = watch.distances()
    print(f"{len(ages)} figures on the screen, the oldest {max(ages)} s old")
    print(f"{len(apart)} reports; lag and depth differ by {apart[len(apart) // 2]:.2f} batches in the median", end=", ")
    print(f"by {apart[-1]:.2f} at most")
    assert max(ages) <= MAX_AGE_S
    assert apart[-1] <= 1.0
    assert watch.invented() == []


def look_at(screen: Screen, watch: LagWatch) -> list[int]:
    """The ages of the figures on the screen."""
    lines = screen.lines()
    assert noise(lines) == []
    shown = rows(lines)
    assert len(shown) == 4, lines
    watch.saw(shown)
    return [row.age_s for row in shown]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
@pytest.mark.parametrize("number", range(MOMENTS))
def test_it_ends_at_any_moment(screen: Screen, how: str, number: int) -> None:
    moment_s = (
        random.Random(f"{SEED} {how} {number}").choice((2.0, 6.0, 20.0, 60.0)) * random.Random(SEED + number).random()
    )
    time.sleep(moment_s)
    family = set(descendants(screen.pid))
    asked_s = time.monotonic()
    if how == "ctrl-c":
        screen.press_ctrl_c()
    else:
        os.kill(screen.pid, signal.SIGTERM)
    while (status := screen.status()) is None:
        family.update(descendants(screen.pid))
        assert time.monotonic() - asked_s < 60, screen.lines()
        time.sleep(0.02)
    took_s = time.monotonic() - asked_s
    left: frozenset[Process] = frozenset(process for process in family if not processes_gone([process]))
    print(f"\n{how} after {moment_s:.1f} s: {took_s:.1f} s, status {status}, {len(left)} processes left")
    assert not left
    assert took_s < MAX_STOP_S
    if status == ENDED_BY_SYSTEM and how == "SIGTERM":
        assert set(screen.lines()) <= {"", "Terminated"}  # Python itself was not up yet: the shell says so
        return
    assert noise(screen.lines()) == []
    assert status == INTERRUPTED
