"""What every client library must find when it works with our nsqd, whatever language it is written in.

A library is driven by a program of its own (drivers/), because pynsq and gnsq bring event loops that would
get in pytest's way and nsqjs is not Python. The program carries out the plan of plan.py and prints a report
(see drivers/ledger.py); the tests below judge the report, what nsqd says of the connections while they are
open, and what it leaves on disk when it is stopped.

There are two sets of tests, each a class that a test module derives from; the fixture `outcome` runs the
driver with `carry_out`:

    DeliveryContract   everything arrives once, whole and in time, over whichever kind of connection
    ClientContract     also message timeouts: more messages on a plain connection, for some seconds
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberq.base.clock import SystemClock
from emberq.storage.journal.cursor import load_cursor
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import JournalConfig
from tests.integration.listening import ANY_HTTP_PORT, port_of
from tests.integration.plan import Plan
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess

ROOT = Path(__file__).parents[2]
TOPIC = "orders"
CHANNEL = "billing"

# A driver ends by itself at its plan's deadline; only one that hangs or cannot start is cut off.
_START_AND_EXIT_S = 20.0


@dataclass(frozen=True)
class Report:
    """What a driver printed; its fields are explained in drivers/ledger.py."""

    published: int
    seen: int
    spoiled: int
    retried: dict[int, list[int]]
    finishes: int
    unfinished: list[int]
    touches: int
    earliest_deferred_ms: float
    errors: list[str]

    @classmethod
    def from_json(cls, text: str) -> Report:
        fields = json.loads(text)
        retried = {int(number): attempts for number, attempts in fields.pop("retried").items()}
        return cls(retried=retried, **fields)


@dataclass(frozen=True)
class Outcome:
    """One plan, carried out."""

    plan: Plan
    report: Report
    connections: list[dict[str, Any]]  # those of the consumer and the producer, as nsqd's /stats shows them
    topic_depth: int  # messages left after a clean stop: in the disk queue, or unfinished in the journal
    channel_depth: int
    log: str  # nsqd's

    def attempts_of(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """The attempts that arrived of each of these messages."""
        return [tuple(self.report.retried.get(number, [1])) for number in numbers]


def carry_out(driver: Sequence[str], *nsqd_flags: str, folder: Path, **plan_fields: Any) -> Outcome:
    """Runs a driver (its command line without the plan) against a fresh nsqd, then stops that nsqd."""
    data_path = folder / "data"
    data_path.mkdir()
    with NsqdProcess(ANY_HTTP_PORT, *nsqd_flags, data_path=data_path, log_path=folder / "nsqd.log") as nsqd:
        plan = Plan(address=f"127.0.0.1:{nsqd.tcp_port}", topic=TOPIC, channel=CHANNEL, **plan_fields)
        report, connections = _run(driver, plan, nsqd)
    return Outcome(
        plan=plan,
        report=report,
        connections=connections,
        topic_depth=_topic_depth(data_path),
        channel_depth=_channel_depth(data_path),
        log=nsqd.log,
    )


def _run(driver: Sequence[str], plan: Plan, nsqd: NsqdProcess) -> tuple[Report, list[dict[str, Any]]]:
    """The driver's report, and nsqd's view of the connections that made it."""
    with subprocess.Popen(
        [*driver, plan.to_json()],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driven:
        cut_off = threading.Timer(plan.deadline_ms / 1000 + _START_AND_EXIT_S, driven.kill)
        cut_off.start()
        try:
            assert driven.stdout is not None
            report = driven.stdout.readline()  # empty if it failed
            connections = _open_connections(nsqd) if report else []
            _, complaints = driven.communicate()  # ends its input, which lets it go
        finally:
            cut_off.cancel()
    assert driven.returncode == 0, complaints
    return Report.from_json(report), connections


def _open_connections(nsqd: NsqdProcess) -> list[dict[str, Any]]:
    stats = HttpClient(("127.0.0.1", port_of(nsqd, "HTTP"))).get("/stats?format=json").json()
    consumers = [client for topic in stats["topics"] for channel in topic["channels"] for client in channel["clients"]]
    return [*consumers, *(stats["producers"] or [])]


def _topic_depth(data_path: Path) -> int:
    if (data_path / f"{TOPIC}.journal").is_dir():
        return int((data_path / f"{TOPIC}.journal" / "topic.mark").exists())  # it is there while something waits
    return _depth_on_disk(data_path, TOPIC)


def _channel_depth(data_path: Path) -> int:
    journal_path = data_path / f"{TOPIC}.journal"
    if not journal_path.is_dir():
        return _depth_on_disk(data_path, f"{TOPIC}:{CHANNEL}")
    journal = Journal.open(journal_path, JournalConfig(), clock=SystemClock())
    cursor = load_cursor(journal_path / "cursors" / f"{CHANNEL}.cursor", journal=journal.uuid)
    assert cursor is not None
    return cursor.count_unacknowledged(journal.next_offset)


def _depth_on_disk(data_path: Path, queue_name: str) -> int:
    """The first line of a disk queue's metadata is its depth."""
    depth, _, _ = (data_path / f"{queue_name}.diskqueue.meta.dat").read_text().partition("\n")
    return int(depth)


class DeliveryContract:
    """What holds over every kind of connection."""

    def test_every_message_is_published_and_arrives_intact(self, outcome: Outcome) -> None:
        assert outcome.report.published == outcome.plan.message_count
        assert outcome.report.seen == outcome.plan.message_count
        assert outcome.report.spoiled == 0

    def test_every_message_is_finished_exactly_once(self, outcome: Outcome) -> None:
        assert outcome.report.unfinished == []
        assert outcome.report.finishes == outcome.plan.message_count

    def test_a_requeued_message_comes_back_as_its_second_attempt(self, outcome: Outcome) -> None:
        assert outcome.plan.requeued
        assert set(outcome.attempts_of(outcome.plan.requeued)) == {(1, 2)}

    def test_a_deferred_message_does_not_arrive_early(self, outcome: Outcome) -> None:
        assert outcome.report.earliest_deferred_ms >= outcome.plan.defer_ms

    def test_no_other_message_arrives_twice(self, outcome: Outcome) -> None:
        due_twice = {*outcome.plan.requeued, *outcome.plan.abandoned}
        assert outcome.report.retried.keys() == due_twice

    def test_no_error_is_reported(self, outcome: Outcome) -> None:
        assert outcome.report.errors == []
        assert "Traceback" not in outcome.log

    def test_the_connections_are_of_the_kind_that_was_asked_for(self, outcome: Outcome) -> None:
        asked_for = {
            "tls": bool(outcome.plan.authority_path),
            "snappy": outcome.plan.compression == "snappy",
            "deflate": outcome.plan.compression == "deflate",
            "authed": bool(outcome.plan.auth_secret),
        }
        used = [{feature: client.get(feature, False) for feature in asked_for} for client in outcome.connections]
        assert used == [asked_for, asked_for]

    def test_nothing_is_left_behind(self, outcome: Outcome) -> None:
        assert outcome.topic_depth == 0
        assert outcome.channel_depth == 0


class ClientContract(DeliveryContract):
    """All that a library can do, with message timeouts."""

    def test_an_unanswered_message_comes_back_as_its_second_attempt(self, outcome: Outcome) -> None:
        assert outcome.attempts_of(outcome.plan.abandoned) == [(1, 2)] * 20

    def test_a_touched_message_outlives_its_timeout(self, outcome: Outcome) -> None:
        assert outcome.report.touches >= 20
        assert outcome.attempts_of(outcome.plan.touched) == [(1,)] * 20
