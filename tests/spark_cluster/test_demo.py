"""`emberq demo` as a user meets it: on a machine without Java, and ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.spark_cluster.bare_machine import environment_without_java
from tests.spark_cluster.process_family import ProcessFamily, wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "clickstream.toml"
DEMO = (sys.executable, "-m", "emberq.cli.demo", EXAMPLE)
QUERIES = {"archive", "clicks-bad", "final-counts", "live-counts"}
TIMEOUT_S = 300.0


def test_it_runs_on_a_machine_without_java(family: ProcessFamily, tmp_path: Path) -> None:
    environment = environment_without_java(tmp_path)
    output = family.run(*DEMO, "--count=2000", name="demo", environment=environment, timeout_s=TIMEOUT_S)
    assert "ok    visits in Parquet files: 1,980 of 1,980" in output
    assert "WRONG" not in output


def test_ctrl_c_ends_it_cleanly_and_leaves_no_process(family: ProcessFamily, tmp_path: Path) -> None:
    checkpoint = tmp_path / "data" / "clickstream-data" / "checkpoint"

    def are_all_at_work() -> bool:
        return {folder.parent.parent.name for folder in checkpoint.glob("*/commits/0")} == QUERIES

    flags = ("--count=1000000", "--rate=100", f"--data-path={tmp_path / 'data'}")
    demo = family.start(*DEMO, *flags, name="demo", environment=dict(os.environ))
    wait_for(are_all_at_work, timeout_s=TIMEOUT_S)
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(60) == 128 + signal.SIGINT, family.log("demo").read_text()
    wait_for(lambda: not family.members(), timeout_s=10)  # Java ends when it notices that we have
    output = family.log("demo").read_text()
    assert "events were made" in output
    assert "Exception in thread" not in output
    assert "emberq/cli" not in output  # no traceback of ours; Spark's readers may complain that Spark hung up on them
