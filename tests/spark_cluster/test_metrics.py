"""A command with --metrics-address, scraped while it runs, and ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from emberq.spark.archive import TimeRange, archived_count
from tests.spark_cluster.process_family import ProcessFamily, wait_for
from tests.support.held_port import hold_port
from tests.support.journal_nsqd import JournalNsqd

TIMEOUT_S = 240.0
COUNT = 300
LABELS = {"pipeline": "archive", "query": "files"}


def scraped(url: str) -> dict[str, float]:
    """The samples of the archive's query; empty as long as nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {
        sample.name.removeprefix("emberq_pipeline_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == LABELS
    }


@pytest.fixture
def metrics_address() -> Iterator[str]:
    with hold_port() as port:
        yield f"127.0.0.1:{port}"


def test_an_archive_that_follows_tells_how_far_it_is(
    nsqd: JournalNsqd, family: ProcessFamily, metrics_address: str, tmp_path: Path
) -> None:
    nsqd.publish("clicks", [b"visit"] * COUNT)
    command = (sys.executable, "-m", "emberq.cli.main", "archive", "clicks", "--to", str(tmp_path / "archive"))
    flags = ("--follow", "--every=1s", f"--nsqd-http-address={nsqd.http}", f"--metrics-address={metrics_address}")
    archive = family.start(*command, *flags, name="archive", environment=dict(os.environ))
    url = f"http://{metrics_address}/metrics"
    wait_for(lambda: scraped(url).get("rows_read_total") == COUNT, timeout_s=TIMEOUT_S)
    found = scraped(url)
    assert (found["rows_written_total"], found["lag_messages"], found["running"]) == (COUNT, 0, 1)
    assert (found["batch_duration_seconds_count"], found["failures_total"]) == (1, 0)
    wait_for(lambda: scraped(url)["report_time_seconds"] > found["report_time_seconds"], timeout_s=60)  # it is idle
    assert scraped(url)["batch_duration_seconds_count"] == 1
    os.killpg(archive.pid, signal.SIGINT)
    assert archive.wait(60) == 130, family.log("archive").read_text()
    assert archived_count(tmp_path / "archive", "clicks", TimeRange()) == COUNT
    assert "archived 300 messages" in family.log("archive").read_text()
