"""The metrics that every daemon has, read with Prometheus' own parser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import emberq
from emberq.base import metrics
from emberq.base.clock import NS_PER_MS
from emberq.base.daemon import Lag
from emberq.base.metrics import (
    PROCESS_FAMILIES,
    DaemonScrape,
    DaemonSource,
    Family,
    ProcessStats,
    connections_family,
    info_family,
    lag_families,
    read_process,
    render,
    start_time_family,
)


@dataclass(frozen=True)
class Source:
    """A daemon that has nothing of its own to tell."""

    scrape: DaemonScrape
    process: ProcessStats


SCRAPE = DaemonScrape(
    start_time_s=1_700_000_000,
    tcp_connection_count=5,
    http_connection_count=2,
    lag=Lag(last_ns=NS_PER_MS, recent_max_ns=20 * NS_PER_MS, max_ns=300 * NS_PER_MS),
)
PROCESS = ProcessStats(cpu_seconds=1.5, resident_bytes=60_000_000, open_file_count=30, max_open_file_count=1024)


def values(*families: Family[DaemonSource], process: ProcessStats = PROCESS) -> dict[str, float]:
    """Every sample: name and values of labels to value."""
    parsed = text_string_to_metric_families(render(families, Source(SCRAPE, process)).decode())
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value for family in parsed for sample in family.samples
    }


def test_what_is_about_the_daemon_bears_its_name() -> None:
    families = (start_time_family("emberd"), connections_family("emberd"), *lag_families("emberd"))
    assert values(*families) == {
        "emberd_start_time_seconds": 1_700_000_000,
        "emberd_connections tcp": 5,
        "emberd_connections http": 2,
        "emberd_loop_lag_seconds": 0.001,
        "emberd_loop_lag_recent_max_seconds": 0.02,
        "emberd_loop_lag_max_seconds": 0.3,
    }


def test_versions_are_labels_of_a_constant() -> None:
    ((name, value),) = values(info_family("emberd")).items()
    assert name.startswith(f"emberd_info {emberq.NSQ_VERSION} {emberq.__version__} 3.")
    assert value == 1


def test_the_process_has_the_names_that_all_clients_give_it() -> None:
    assert values(*PROCESS_FAMILIES) == {
        "process_cpu_seconds_total": 1.5,
        "process_resident_memory_bytes": 60_000_000,
        "process_open_fds": 30,
        "process_max_fds": 1024,
    }


def test_open_files_that_cannot_be_counted_are_left_out() -> None:
    process = ProcessStats(cpu_seconds=0.0, resident_bytes=0, open_file_count=None, max_open_file_count=1)
    found = values(*PROCESS_FAMILIES, process=process)
    assert "process_open_fds" not in found
    assert found["process_max_fds"] == 1


def test_the_process_is_described_by_what_the_system_says() -> None:
    before = read_process()
    with Path(__file__).open():
        during = read_process()
    assert before.open_file_count is not None
    assert during.open_file_count == before.open_file_count + 1 <= during.max_open_file_count
    assert during.cpu_seconds >= before.cpu_seconds > 0


def test_without_proc_open_files_are_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metrics, "_OPEN_FILES", tmp_path / "missing")
    assert read_process().open_file_count is None
