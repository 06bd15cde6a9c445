"""The tests of pipelines are left out where PySpark is not installed."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]
