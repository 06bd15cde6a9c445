"""Queues side by side: those that this machine has, for a moment each."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.clients.queue_server import QueueProgram, Unavailable
from bench.clients.queue_work import CLIENTS, QUEUE_WORKS, SERVERS, QueueSource
from bench.server import Binary
from bench.stage import Size

NSQD = Binary(path=Path(sys.executable).parent / "nsqd")
SMALL = Size(messages=3000, seconds=20)
QUICK_TO_START = ("emberq", "nats", "redis")
"""RabbitMQ takes ten seconds."""
MEASURES = [f"{part}: {measure}" for part in ("in", "out") for measure in ("rate", "client CPU", "server CPU")]


def source(**paths: Path) -> QueueSource:
    programs = {queue: QueueProgram(name=name, path=paths.get(queue)) for queue, name in SERVERS.items()}
    return QueueSource(nsqd=NSQD, programs=programs)


def test_emberq_is_in_every_work_and_every_confirmation_has_a_meaning() -> None:
    for work in QUEUE_WORKS:
        assert "emberq" in work.settings
        assert all(setting.confirmed for setting in work.settings.values())
    promises = {work.durability for work in QUEUE_WORKS}
    assert len(promises) == len(QUEUE_WORKS)


@pytest.mark.parametrize("queue", QUICK_TO_START)
def test_a_queue_does_its_works(queue: str) -> None:
    if queue in SERVERS and not (shutil.which(SERVERS[queue]) and find_spec(CLIENTS[queue][0])):
        pytest.skip(f"no {SERVERS[queue]} or no Python client of it on this machine")
    work = next(work for work in QUEUE_WORKS if queue in work.settings and work.name != "queue-memory")
    metrics = work.run(queue, source(), size=SMALL, topic="t")
    assert [metric.measure for metric in metrics] == MEASURES
    assert all(metric.value > 0 for metric in metrics if metric.measure.endswith("rate"))


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="there is no redis-server on PATH"):
        source().version("redis")


def test_a_client_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLIENTS, "redis", ("carrierpigeon", "carrierpigeon"))
    with pytest.raises(Unavailable, match="there is no Python module carrierpigeon"):
        source(redis=Path("/bin/true")).version("redis")


def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "nats-server"
    broken.write_text("#!/bin/sh\necho no room on this machine\nexit 3\n")
    broken.chmod(0o755)
    work = next(work for work in QUEUE_WORKS if "nats" in work.settings)
    with pytest.raises(Exception, match=r"nats-server ended with exit code 3 (?s:.*)log: no room on this machine"):
        work.run("nats", source(nats=broken), size=SMALL, topic="t")
