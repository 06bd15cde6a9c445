"""A topic and its archive counted as one table, while it grows and its archiver is killed.

    publisher ──MPUB──> nsqd ──journal──> emberq archive --follow ──> Parquet
                               │                                        │
                               └── what is not archived ──> read_topic <┘── what is

The body of a message begins with its number, and one publisher publishes in order, so the number is the offset. That
makes every count exact: each offset from 0 on is there once, with its own body; no fewer rows than were confirmed
before the count began, and no more than were sent when it ended.

A run has 20 rounds. In each, the publisher gets a twentieth of the messages, and the table is counted meanwhile; in
some, the archiver is killed at a random moment and another one started. Retention keeps a tenth of the messages in the
journal, those of two rounds. So nine tenths are in the archive alone when the run ends.

A table begins to read its journals where the archive ended when the table was made. Retention must not pass that point
until the count is done. So a round begins when the archive is close behind the journal: then a count meets at most the
messages of its own round.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from pyspark.sql import SparkSession

from emberq.spark import read_topic, session
from emberq.spark.session import close_session
from tests.chaos.spark_processes import ArchiveCommand
from tests.support.journal_nsqd import JournalNsqdProcess
from tests.support.waiting import wait_until

TOPIC = "orders"
DIGITS = 12
BODY_BYTES = 100
JOURNAL_BYTES = BODY_BYTES + 4
"""What a message takes in the journal: the end of its body is kept beside it. Headers of batches are small."""
GROUP = 1000
"""Messages of one MPUB."""
ROUNDS = 20
ROUNDS_KEPT = 2
SEGMENTS_KEPT = 16
MIN_SEGMENT_BYTES = 1024 * 1024
BATCHES_PER_ROUND = 4
"""The archiver needs several, so a kill seldom meets it idle."""
PATIENCE_S = 600.0
"""An archiver takes seconds to its first batch, but minutes on a machine that is busy with other things."""
LOOK_EVERY_S = 0.2

COUNTED = (
    "count(*)",
    "count(DISTINCT offset)",
    "min(offset)",
    "max(offset)",
    f"count_if(CAST(CAST(substring(body, 1, {DIGITS}) AS STRING) AS BIGINT) = offset)",
)


class Counted(NamedTuple):
    """What a count of the table has found."""

    rows: int
    offsets: int
    """How many different ones."""
    first: int
    last: int
    in_place: int
    """The rows whose body belongs to their offset."""

    @property
    def is_exact(self) -> bool:
        """Whether every offset up to the last is there once, with its own body."""
        return self.first == 0 and self.rows == self.offsets == self.in_place == self.last + 1


class NumberedPublisher(threading.Thread):
    """Publishes messages in order, as many as it was allowed to. Owned by a run."""

    def __init__(self, nsqd: JournalNsqdProcess) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.confirmed = 0
        self._nsqd = nsqd
        self._allowed = 0
        self._changed = threading.Condition()
        self._is_over = False

    def allow(self, count: int) -> None:
        """Let it publish up to `count` messages in all."""
        with self._changed:
            self._allowed = count
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        while (end := self._next_end()) is not None:
            filling = b"." * (BODY_BYTES - DIGITS)
            group = [b"%0*d%s" % (DIGITS, number, filling) for number in range(self.sent, end)]
            self.sent = end
            self._nsqd.publish(TOPIC, group)
            self.confirmed = end

    def _next_end(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self.sent < self._allowed)
            return None if self._is_over else min(self.sent + GROUP, self._allowed)


class TableRun:
    """One run; a context manager. Owns the nsqd, the publisher, Spark and the archiver of the moment."""

    def __init__(self, folder: Path, *, rows: int, kills: int, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self._rows = rows
        self._random = random.Random(seed)
        self._kills_in = Counter(self._random.choices(range(1, ROUNDS + 1), k=kills))
        """How many in each round."""
        self._folder = folder
        self._archive = folder / "archive"
        self._per_round = -(-rows // ROUNDS)
        self._per_batch = max(self._per_round // BATCHES_PER_ROUND, GROUP)
        self._count_s = 0.0
        """How long the last count took."""
        kept_bytes = ROUNDS_KEPT * self._per_round * JOURNAL_BYTES
        segment_bytes = max(kept_bytes // SEGMENTS_KEPT, MIN_SEGMENT_BYTES)
        self._nsqd = JournalNsqdProcess(
            folder / "nsqd",
            "--journal",
            f"--journal-segment-bytes={segment_bytes}",
            f"--journal-retention-bytes={kept_bytes}",
        )
        self._publisher = NumberedPublisher(self._nsqd)
        self._running = ExitStack()
        self._spark: SparkSession
        self._archiver: ArchiveCommand | None = None

    def __enter__(self) -> Self:
        self._running.enter_context(self._nsqd)
        self._spark = session("table", config={"spark.ui.enabled": False, "spark.driver.memory": "2g"})
        self._running.callback(close_session, self._spark)
        self._publisher.start()
        self._running.callback(self._publisher.end)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()

    def count_and_kill(self) -> None:
        """All rounds: publish a share, kill the archiver or not, and count."""
        self._publisher.allow(GROUP)
        wait_until(lambda: self._publisher.confirmed == GROUP)
        for number in range(1, ROUNDS + 1):
            self._wait_until_archived()
            self._publisher.allow(min(number * self._per_round, self._rows))
            killing = threading.Thread(target=self._kill_some_time, kwargs={"times": self._kills_in[number]})
            killing.start()
            try:
                print(f"  {number:3d} {self._checked_count()}", flush=True)
            finally:
                killing.join()

    def finish(self) -> str:
        """Archive the rest and count for the last time; what it came to, in one line."""
        wait_until(lambda: self._publisher.confirmed == self._rows, timeout_s=PATIENCE_S)
        self._wait_until_archived()
        kept = ROUNDS_KEPT * self._per_round
        wait_until(
            lambda: self._journal()["first_offset"] >= self._rows - kept, timeout_s=PATIENCE_S, interval_s=LOOK_EVERY_S
        )
        counted = self._checked_count()
        assert counted.rows == self._rows
        kills = ", ".join(f"{way} {count}" for way, count in sorted(self.kills.items()))
        return (
            f"table: {self.kills.total()} kills ({kills}); {counted.rows} rows, each offset once; "
            f"{self._journal()['first_offset']} of them in the archive alone"
        )

    # The table.

    def _checked_count(self) -> Counted:
        begun_s, confirmed = time.monotonic(), self._publisher.confirmed
        rows = read_topic(self._spark, {"nsqd": self._nsqd.http, "topic": TOPIC}, archive=str(self._archive))
        counted = Counted(*rows.selectExpr(*COUNTED).collect()[0])
        self._count_s = time.monotonic() - begun_s
        assert counted.is_exact, counted
        assert confirmed <= counted.rows <= self._publisher.sent, (confirmed, counted, self._publisher.sent)
        return counted

    # The archiver.

    def _kill_some_time(self, *, times: int) -> None:
        """While the table is counted: kill the archiver in one way or another, and start the next one at once."""
        for _ in range(times):
            time.sleep(self._random.uniform(0, self._count_s))
            archiver = self._follow()
            ways: dict[str, Callable[[], None]] = {
                "all its processes": archiver.kill,
                "Python": archiver.kill_python,
                "Java": archiver.kill_java,
            }
            way = self._random.choice(sorted(ways))
            ways[way]()
            self.kills[way] += 1
            self._follow()

    def _follow(self) -> ArchiveCommand:
        """The archiver of the moment; started if there is none."""
        if self._archiver is None or not self._archiver.is_running:
            self._archiver = ArchiveCommand(
                self._folder,
                f"--nsqd-http-address={self._nsqd.http}",
                f"--to={self._archive}",
                f"--batch={self._per_batch}",
                "--every=1s",
                "--follow",
                TOPIC,
            )
            self._running.callback(self._archiver.kill)
        return self._archiver

    def _wait_until_archived(self) -> None:
        """Wait until the archive has come so far that one batch at most is missing."""

        def is_close() -> bool:
            self._follow()
            channels = self._journal()["channels"]
            return bool(channels) and self._publisher.confirmed - channels[0]["low_water"] <= self._per_batch

        wait_until(is_close, timeout_s=PATIENCE_S, interval_s=LOOK_EVERY_S)

    def _journal(self) -> dict[str, Any]:
        journal: dict[str, Any] = self._nsqd.get("/journal", topic=TOPIC)
        return journal
