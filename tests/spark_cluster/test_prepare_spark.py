"""`emberq prepare-spark`: later sessions have Spark's classes from the archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.spark_cluster.bare_machine import environment_without_java
from tests.spark_cluster.process_family import ProcessFamily

PREPARE = (sys.executable, "-m", "emberq.cli.main", "prepare-spark")
TIMEOUT_S = 600.0

ARCHIVES_OF_A_SESSION = """
from pathlib import Path
from emberq.spark.session import quiet_session
spark = quiet_session("test", master="local[1]", is_verbose=False, config={})
java = spark.sparkContext._gateway.proc.pid
print({line.split()[-1] for line in Path(f"/proc/{java}/maps").read_text().splitlines() if line.endswith(".jsa")})
spark.stop()
"""


@pytest.mark.parametrize("is_bare", [False, True], ids=["java-of-the-machine", "java-of-emberq"])
def test_sessions_start_with_the_archive_that_it_makes(family: ProcessFamily, tmp_path: Path, is_bare: bool) -> None:
    if is_bare:
        environment = environment_without_java(tmp_path)
    else:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home" / ".cache")}
    output = family.run(*PREPARE, name="prepare", environment=environment, timeout_s=TIMEOUT_S)
    (archive,) = (tmp_path / "home" / ".cache" / "emberq").glob("*.jsa")
    assert output.endswith(f"MB in {archive}\n")
    look = (sys.executable, "-c", ARCHIVES_OF_A_SESSION)
    assert str({str(archive)}) in family.run(*look, name="session", environment=environment, timeout_s=TIMEOUT_S)
    again = family.run(*PREPARE, name="again", environment=environment, timeout_s=TIMEOUT_S)
    assert f"that was done: {archive}" in again
