"""The clickstream example on a cluster, with the same command and the same file as on one machine."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from emberq.cli.demo_events import ClickGenerator, evenly_from
from emberq.spark.demo import check_clickstream
from emberq.spark.pipeline import load_pipeline
from tests.spark_cluster.process_family import ProcessFamily
from tests.spark_cluster.standalone import WORKERS, StandaloneCluster
from tests.support.journal_nsqd import JournalNsqd

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "clickstream.toml"
SIX = datetime(2026, 11, 15, 6, tzinfo=UTC)
RUN_TIMEOUT_S = 300.0


def test_clickstream_runs_unchanged_on_a_master_with_two_workers(
    nsqd: JournalNsqd, family: ProcessFamily, tmp_path: Path
) -> None:
    file = Path(shutil.copy(EXAMPLE, tmp_path))
    clicks = ClickGenerator(now=evenly_from(SIX, interval=timedelta(milliseconds=100)), broken_every=50)
    nsqd.publish("clicks", [clicks.next() for _ in range(1000)])
    command = (sys.executable, "-m", "emberq.cli.main", "pipeline", "run", file, "--once", "--json")
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        output = family.run(
            *command,
            f"--master={cluster.url}",
            f"--nsqd-http-address={nsqd.http}",
            name="pipeline",
            environment=cluster.environment,
            timeout_s=RUN_TIMEOUT_S,
        )
        assert cluster.executors() == [1] * WORKERS
    made = clicks.generated
    pipeline = replace(load_pipeline(file).pipeline, nsqd=(nsqd.http,))
    checks = check_clickstream(pipeline, good=made.good, broken=made.broken, pages=made.pages)
    assert all(check.is_right for check in checks), checks
    progress = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert sum(line["rows_out"] for line in progress if line["query"] == "archive") == made.good
