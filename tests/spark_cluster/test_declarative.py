"""The declarative example, run by Spark's own `spark-pipelines`, with our source and our sink."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from emberq.cli.demo_events import ClickGenerator, evenly_from
from emberq.spark.java import find_java
from tests.spark_cluster.process_family import ProcessFamily
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import documents_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "declarative"
SPARK_PIPELINES = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
SIX = datetime(2026, 11, 15, 6, tzinfo=UTC)
RUN_TIMEOUT_S = 180.0

pytestmark = pytest.mark.skipif(
    not all(find_spec(library) for library in ("grpc", "grpc_status", "pandas", "yaml", "zstandard")),
    reason="needs pyspark[pipelines]",
)


@pytest.fixture
def run_example(nsqd: JournalNsqd, family: ProcessFamily, tmp_path: Path) -> Callable[[str], None]:
    """Runs the example once, with what it keeps in the folder of the test."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "declarative"))
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/emberq-declarative", f"file://{tmp_path / 'storage'}"))
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "NSQD_HTTP": nsqd.http,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    flags = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]

    def run(name: str) -> None:
        command = (str(SPARK_PIPELINES), "run", "--spec", str(spec), *flags)
        family.run(*command, name=name, environment=environment, timeout_s=RUN_TIMEOUT_S, cwd=tmp_path)

    return run


def test_every_run_goes_on_where_the_last_one_was(
    nsqd: JournalNsqd, run_example: Callable[[str], None], tmp_path: Path
) -> None:
    clicks = ClickGenerator(now=evenly_from(SIX, interval=timedelta(milliseconds=100)), broken_every=50)
    for name in ("first", "second"):
        nsqd.publish("clicks", [clicks.next() for _ in range(500)])
        run_example(name)
    made = clicks.generated
    visits = documents_of(nsqd.http, "clicks.checked")
    assert len(visits) == len({visit["id"] for visit in visits}) == made.good
    table = tmp_path / "warehouse" / "visits_per_page"
    counts = ds.dataset(table, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
    assert {row["page"]: row["count"] for row in counts} == made.pages, json.dumps(counts)
