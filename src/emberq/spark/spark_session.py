"""A SparkSession with the settings that pay for streams, on a Java that is found.

    from emberq.spark import session

    spark = session("clicks")                              # this machine, all cores
    spark = session("clicks", master="spark://host:7077")  # a cluster
    spark = session("clicks", config={"spark.sql.shuffle.partitions": 8})

Every setting here is a default: what `config`, or spark-submit, says otherwise counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from emberq.spark.class_archive import with_archive
from emberq.spark.java import find_java
from emberq.spark.worker_python import local_worker_python

LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts for each task: without the 4 a task that fails fails the query."""

TUNED: dict[str, str] = {
    # Together these halve the fixed cost of a micro-batch: from about 190 ms to about 100 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Timestamps of messages are moments; a session that shows them in the zone of the machine is read wrong elsewhere.
    "spark.sql.session.timeZone": "UTC",
}

_LOCAL: dict[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    # The 200 of Spark are meant for clusters; each costs a task, and with state a file, in every micro-batch.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For this machine alone."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""In the environment of programs that spark-submit has started: Java runs already, and the master is chosen."""


def session(
    name: str = "emberq", *, master: str | None = None, config: Mapping[str, str | int | bool] | None = None
) -> SparkSession:
    """The session of this process; made if there is none, in which case Java is looked for. JavaNotFound if none is."""
    settings = TUNED | {key: _text(value) for key, value in (config or {}).items()}
    if _SUBMITTED in os.environ:
        settings = {key: value for key, value in settings.items() if key in (config or {}) or not _is_set(key)}
    else:
        master = master or LOCAL_MASTER
        if SparkSession.getActiveSession() is None:
            os.environ["JAVA_HOME"] = str(with_archive(find_java()).home)
            os.environ.setdefault("PYSPARK_PYTHON", _worker_python(master))  # else any python3 on the PATH is taken
    if master is not None and master.startswith("local"):
        settings = _LOCAL | settings
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark looks at it before it looks at its settings
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _worker_python(master: str) -> str:
    return local_worker_python() if master.startswith("local") else sys.executable


def _is_set(key: str) -> bool:
    """Whether spark-submit, or Spark's file of defaults, says something about a setting."""
    SparkContext._ensure_initialized()  # only then a SparkConf knows of them
    return SparkConf().contains(key)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
