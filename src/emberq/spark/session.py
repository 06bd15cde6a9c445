"""A SparkSession with settings that suit streams, on a Java that is found.

    from emberq.spark import session

    spark = session("clicks")                              # this machine, all cores
    spark = session("clicks", master="spark://host:7077")  # a cluster
    spark = session("clicks", config={"spark.sql.shuffle.partitions": 8})

Every setting here is a default; `config` and spark-submit override it.

`quiet_session` is the same for commands, which report errors themselves: Spark logs nothing. What Java and its workers
still write to standard error (threads that a stop has interrupted, output of a user's function) goes to a log file,
which the command names if it fails.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from emberq.spark.java import LOG_VARIABLE, QUIET_JAVA, find_java, launched, local_worker_python, with_archive

LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts for each task. Without the 4, one failed task would fail the query."""

TUNED: dict[str, str] = {
    # Together these halve the fixed cost of a micro-batch: from about 190 ms to about 100 ms.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Timestamps shown in the zone of one machine would be misread on another.
    "spark.sql.session.timeZone": "UTC",
}

_LOCAL: dict[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    # Spark's 200 are meant for clusters. Each costs a task, and with state a file, in every micro-batch.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings for a local master."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set in programs that spark-submit has started: Java runs already, and the master is chosen."""


def session(
    name: str = "emberq", *, master: str | None = None, config: Mapping[str, str | int | bool] | None = None
) -> SparkSession:
    """The session of this process, made if there is none. JavaNotFoundError if there is no Java to run it on."""
    settings = TUNED | {key: _text(value) for key, value in (config or {}).items()}
    if _SUBMITTED in os.environ:
        settings = {key: value for key, value in settings.items() if key in (config or {}) or not _is_set(key)}
    else:
        master = master or LOCAL_MASTER
        if SparkSession.getActiveSession() is None:
            os.environ["JAVA_HOME"] = str(with_archive(find_java()).home)
            python = local_worker_python() if master.startswith("local") else sys.executable
            os.environ.setdefault("PYSPARK_PYTHON", python)  # else Spark takes any python3 on the PATH
    if master is not None and master.startswith("local"):
        settings = _LOCAL | settings
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark reads it before its settings
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_set(key: str) -> bool:
    """Whether spark-submit, or Spark's file of defaults, has a setting."""
    SparkContext._ensure_initialized()  # only then does a SparkConf know them
    return SparkConf().contains(key)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# For commands.

Session: TypeAlias = SparkSession
"""For modules that may not import pyspark."""

_NOISY_LOGGERS = (
    "SQLQueryContextLogger",  # repeats every error in SQL, as JSON
    "py4j",  # logs connections that a stop has closed
)

_log = logging.getLogger(__name__)

LOG_NAME = "spark.log"
_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Not `extraJavaOptions`, which would replace those in a cluster's file of defaults."""
_SILENT_LOG = Path(__file__).with_name("silent_log4j2.properties")
"""Read when Java starts. `spark.log.level` takes effect later, when much has been logged already."""


def quiet_session(
    name: str, *, master: str | None, is_verbose: bool, config: Mapping[str, str], folder: Path | None = None
) -> Session:
    """The session of this process, for a command. JavaNotFoundError if there is no Java.

    `folder` takes Java's temporary files and, unless `is_verbose`, its standard error.
    """
    for logger in _NOISY_LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    options = [config[_JAVA_OPTIONS]] if _JAVA_OPTIONS in config else []
    if folder is not None:
        options.append(f"-Djava.io.tmpdir={folder}")
    if is_verbose:
        settings = {"spark.log.level": "INFO"} | dict(config)
    else:
        if folder is not None:
            os.environ[LOG_VARIABLE] = str(folder / LOG_NAME)
        os.environ["JAVA_HOME"] = str(with_archive(launched(find_java())).home)
        options += [f"-Dlog4j2.configurationFile={_SILENT_LOG.as_uri()}", *QUIET_JAVA]
        settings = dict(config)
    return session(name, master=master, config=settings | {_JAVA_OPTIONS: " ".join(options)})


def close_session(spark: Session, *, timeout_s: float | None = None) -> None:
    """Stop Spark, then the Java that it runs in, unless spark-submit started it. Java may be gone already.

    Java ends by itself when its standard input is closed. PySpark closes it only at the end of the process, so Java
    would outlive a command. Returns when Java has ended, or after `timeout_s`.
    """
    gateway: Any = SparkContext._gateway
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns when Java is gone
        try:
            spark.stop()
        except (Py4JError, OSError) as failure:
            _log.info("Spark did not stop in good order: %s", failure)
    java: subprocess.Popen[bytes] | None = gateway.proc
    if java is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # so that another session starts another Java
    if java.stdin is not None:
        java.stdin.close()
    try:
        java.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _log.info("Java does not end by itself")
