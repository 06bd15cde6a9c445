from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emberq.spark.java import local_worker_python


def test_workers_run_this_python_with_the_path_but_without_the_zips_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = ["/x/python/lib/pyspark.zip", "/x/python/lib/py4j-0.10.9.9-src.zip", "", "/one of mine", "/two.zip"]
    script = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], sys.argv[1:])"
    ran = subprocess.run(
        [local_worker_python(), "-c", script, "a b"],
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == f"{sys.prefix} /one of mine:/two.zip ['a b']"
