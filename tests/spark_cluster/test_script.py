"""The notebook-style example, run as a user would run it."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from emberq.cli.demo_events import ClickGenerator, evenly_from
from tests.spark_cluster.process_family import ProcessFamily
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import documents_of

SCRIPT = Path(__file__).parents[2] / "examples" / "spark" / "clickstream_script.py"
SIX = datetime(2026, 11, 15, 6, tzinfo=UTC)
TIMEOUT_S = 300.0


def test_the_script_counts_visits_in_files_and_in_a_topic(
    nsqd: JournalNsqd, family: ProcessFamily, tmp_path: Path
) -> None:
    clicks = ClickGenerator(now=evenly_from(SIX, interval=timedelta(milliseconds=100)))
    nsqd.publish("clicks", [clicks.next() for _ in range(500)])
    output = family.run(
        *(sys.executable, SCRIPT, nsqd.http, tmp_path / "data"),
        name="script",
        environment=dict(os.environ),
        timeout_s=TIMEOUT_S,
    )
    assert "500 visits in files" in output
    counts = documents_of(nsqd.http, "clicks.per-page")
    assert {count["page"]: count["count"] for count in counts} == clicks.generated.pages
