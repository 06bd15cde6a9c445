"""A publisher, two nsqds, and a Spark that writes what is published to Parquet or a database, while all are killed.

    publisher ──MPUB──> nsqd, nsqd ──journal or channel──> Spark: driver, executors, workers ──> Parquet, PostgreSQL

Each message has a number of its own. What the publisher knows is written down as it happens: a message is `sent`
before its bytes leave, and `confirmed` when its OK has come. One whose OK was lost may be stored or not; it is never
sent again. So in the end, when everything was drained,

    confirmed  ⊆  rows  ⊆  sent,    and every row is there once

must hold.

An nsqd that is killed loses, by NSQ's contract, what it has in memory alone: messages in flight, and those of a classic
topic that were never on disk. So where nsqds are killed their topics are journaled, in channel mode too. Classic topics
are read from nsqds that are terminated instead, which saves everything.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.error import URLError

from pyspark.sql import SparkSession

from tests.chaos.spark_processes import (
    BATCH_TIMEOUT_S,
    CLUSTER,
    Archiver,
    ArchivingDriver,
    DatabaseDriver,
    ReceivingProcess,
)
from tests.spark.archiving_driver import archive
from tests.support.journal_nsqd import JournalNsqdProcess
from tests.support.postgres import PostgresServer

TOPIC = "orders"
NSQDS = 2
NO_SPARK = "none"
MAX_STARTS = 5
GROUP = 100
"""Messages of one MPUB."""
PAUSE_S = 0.1
"""Between MPUBs: 1000 messages a second for each nsqd, which is what a Spark that is being killed can keep up with."""


class Mode(StrEnum):
    """How Spark reads, and from what."""

    JOURNAL = "journal"
    CHANNEL = "channel"
    CLASSIC_CHANNEL = "classic channel"
    DATABASE = "journal to a database"

    @property
    def has_offsets(self) -> bool:
        """Whether journals are read, not channels."""
        return self in (Mode.JOURNAL, Mode.DATABASE)

    @property
    def nsqd_flags(self) -> tuple[str, ...]:
        return ("--mem-queue-size=1000",) if self is Mode.CLASSIC_CHANNEL else ("--journal",)


@dataclass
class Ledger:
    """What the publishers know."""

    sent: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Publisher(threading.Thread):
    """Publishes to one nsqd until it is told to end."""

    def __init__(self, number: int, nsqd: JournalNsqdProcess, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self._number = number
        self._nsqd = nsqd
        self._ledger = ledger
        self._told_to_end = threading.Event()

    def run(self) -> None:
        serial = 0
        while not self._told_to_end.wait(PAUSE_S):
            group = [b"%d-%d" % (self._number, serial + index) for index in range(GROUP)]
            serial += GROUP
            with self._ledger.lock:
                self._ledger.sent.update(group)
            with contextlib.suppress(URLError, OSError):
                self._nsqd.publish(TOPIC, group)
                with self._ledger.lock:
                    self._ledger.confirmed.update(group)

    def end(self) -> None:
        self._told_to_end.set()
        self.join()


class SparkRun:
    """One run; a context manager. Owns nsqds, publishers and the driver of the moment."""

    def __init__(
        self, folder: Path, *, mode: Mode, seed: int, master: str = CLUSTER, nsqd_flags: Sequence[str] = ()
    ) -> None:
        """With master "none" a receiver without Spark takes the place of the driver, which starts within no time."""
        self.ledger = Ledger()
        self.kills: Counter[str] = Counter()
        self._mode = mode
        self._master = master
        self._random = random.Random(seed)
        self._folder = folder
        self._nsqds = [
            JournalNsqdProcess(folder / f"nsqd-{number}", *mode.nsqd_flags, *nsqd_flags) for number in range(NSQDS)
        ]
        self._publishers = [Publisher(number, nsqd, self.ledger) for number, nsqd in enumerate(self._nsqds)]
        self._running = contextlib.ExitStack()
        self._driver: Archiver | None = None
        self._postgres = PostgresServer() if mode is Mode.DATABASE else None

    def __enter__(self) -> Self:
        if self._postgres is not None:
            self._running.enter_context(self._postgres)
        for nsqd in self._nsqds:
            self._running.enter_context(nsqd)
            if not self._mode.has_offsets:
                nsqd.post("/topic/create", topic=TOPIC)
                nsqd.post("/channel/create", topic=TOPIC, channel="spark")
        for publisher in self._publishers:
            publisher.start()
            self._running.callback(publisher.end)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()

    @property
    def options(self) -> Mapping[str, str]:
        """Of the source."""
        nsqds = ",".join(nsqd.http for nsqd in self._nsqds)
        options = {"nsqd": nsqds, "topic": TOPIC, "channel": "spark", "maxRowsPerTrigger": "50000"}
        if self._mode.has_offsets:
            return options | {"mode": "journal", "minPartitions": "4"}
        return options | {"mode": "channel", "minPartitions": "2", "spool": str(self._folder / "spool")}

    # Killing.

    def kill_often(self, times: int) -> None:
        """Kill something at random, so many times; a driver that is gone is followed by another."""
        ways: list[Callable[[], bool]] = [self.kill_driver, self.kill_nsqd]
        if self._master != NO_SPARK:
            ways += [self.kill_java, self.stop_driver, self.kill_executor, self.kill_executor, self.kill_worker]
        if self._postgres is not None:
            ways.append(self.kill_postgres)
        while self.kills.total() < times:
            if self._random.random() < 0.7:
                self.wait_for_a_batch()
            time.sleep(self._random.uniform(0, 2))
            way = self._random.choice(ways)
            if way():
                self.kills[way.__name__.removeprefix("kill_")] += 1
                print(f"  {self.kills.total():3d} {way.__name__}", flush=True)

    def kill_driver(self) -> bool:
        """With all its processes at once."""
        self.driver().kill()
        return True

    def kill_java(self) -> bool:
        """The driver, but not its reader and executors, which may still be there when the next driver starts."""
        self._spark_driver().kill_java()
        return True

    def stop_driver(self) -> bool:
        """As an operator would."""
        driver = self.driver()
        if driver.batch_count == 0:
            return False
        driver.stop()
        return True

    def kill_executor(self) -> bool:
        return self._spark_driver().kill_executor(self._random.choice)

    def kill_worker(self) -> bool:
        return self._spark_driver().kill_worker(self._random.choice)

    def kill_nsqd(self) -> bool:
        """It is back at once, or after a moment."""
        nsqd = self._random.choice(self._nsqds)
        if self._mode is Mode.CLASSIC_CHANNEL:
            nsqd.terminate()
        else:
            nsqd.kill()
        time.sleep(self._random.choice((0, 1)))
        nsqd.start()
        return True

    def kill_postgres(self) -> bool:
        """It is back at once, or after a moment. What was not written ahead to its log is gone."""
        assert self._postgres is not None
        self._postgres.stop()
        time.sleep(self._random.choice((0, 1)))
        self._postgres.start()
        return True

    # Spark.

    def driver(self) -> Archiver:
        """The driver of the moment; started if there is none."""
        if self._driver is None or not self._driver.is_running:
            self._driver = self._start()
            self._running.callback(self._driver.kill)
        return self._driver

    def _start(self, *, is_last: bool = False) -> Archiver:
        if self._master == NO_SPARK:
            return ReceivingProcess(self._folder, options=self.options, is_last=is_last)
        master = "local[2,4]" if is_last else self._master
        if self._postgres is not None:
            return DatabaseDriver(
                self._folder, postgres=self._postgres, options=self.options, is_last=is_last, master=master
            )
        return ArchivingDriver(self._folder, master=master, options=self.options, is_last=is_last)

    def _spark_driver(self) -> ArchivingDriver:
        driver = self.driver()
        assert isinstance(driver, ArchivingDriver)
        return driver

    def wait_for_a_batch(self) -> None:
        """Wait until one more is done. A driver that ends by itself, as when it starts without an nsqd, is followed."""
        batch_count = self.driver().batch_count
        for _ in range(MAX_STARTS):
            if self.driver().wait_for_batches(batch_count + 1):
                return
        raise AssertionError(self.driver().log())

    def drain(self, spark: SparkSession | None = None) -> None:
        """Publish no more, and read what is left: by a last driver, or by the Spark that there is."""
        for publisher in self._publishers:
            publisher.end()
        if self._driver is not None:
            self._driver.kill()
        if spark is not None:
            query = archive(spark, folder=str(self._folder), options=self.options, is_last=True)
            assert query.awaitTermination(BATCH_TIMEOUT_S)
            return
        with self._start(is_last=True) as last:
            last.wait()

    # The result.

    def check(self) -> str:
        """Nothing confirmed is missing, nothing is there twice, nothing is invented; what it came to, in one line."""
        assert self._driver is not None
        rows = Counter(self._driver.bodies())
        sent, confirmed = self.ledger.sent, self.ledger.confirmed
        maybe = len(sent) - len(confirmed)
        kills = ", ".join(f"{way} {count}" for way, count in sorted(self.kills.items()))
        report = (
            f"{self._mode}: {self.kills.total()} kills ({kills}); {rows.total()} rows, {len(rows)} unique, "
            f"{len(confirmed)} confirmed, {len(rows.keys() - confirmed)} of {maybe} whose OK was lost; "
            f"{len(confirmed - rows.keys())} lost, {len(rows.keys() - sent)} invented"
        )
        assert confirmed, report
        assert confirmed <= rows.keys() <= sent, report
        assert rows.total() == len(rows), f"{report}; twice: {[body for body, n in rows.items() if n > 1][:10]}"
        return report
