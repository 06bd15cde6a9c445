"""A SparkSession, loud or quiet.

A SparkSession with the settings that pay for streams, on a Java that is found.

    from emberq.spark import session

    spark = session("clicks")                              # this machine, all cores
    spark = session("clicks", master="spark://host:7077")  # a cluster
    spark = session("clicks", config={"spark.sql.shuffle.partitions": 8})

Every setting here is a default: what `config`, or spark-submit, says otherwise counts.

A SparkSession for commands, which tell themselves what went wrong: Spark and what is around it keep quiet.

What Java and its workers write to standard error all the same (threads that a stop has broken off, what a user's
function prints) goes to a log file, which a command can name if it fails.
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


Session: TypeAlias = SparkSession
"""For those who may not import pyspark."""

_TALKATIVE = (
    "SQLQueryContextLogger",  # repeats every error in SQL, as JSON
    "py4j",  # tells of connections that a stop has closed
)

_log = logging.getLogger(__name__)

LOG_NAME = "spark.log"
_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Not the extra ones, which would replace what a cluster's file of defaults says."""
_SILENT_LOG = Path(__file__).with_name("silent_log4j2.properties")
"""Read when Java starts. `spark.log.level` comes later, when much was said already."""


def quiet_session(
    name: str, *, master: str | None, is_verbose: bool, config: Mapping[str, str], folder: Path | None = None
) -> Session:
    """The session of this process. JavaNotFound if there is no Java.

    `folder` takes Java's temporary files and, unless everything is to be seen, what Java writes to standard error.
    """
    for logger in _TALKATIVE:
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
    """Stop Spark, then the Java that it runs in, unless spark-submit has started that. It may be gone already.

    Java ends by itself when its standard input does. PySpark leaves that to the end of the process, so that Java would
    outlive a command. Returns when it has ended, or has not in that time.
    """
    gateway: Any = SparkContext._gateway
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns of a Java that is gone
        try:
            spark.stop()
        except (Py4JError, OSError) as failure:
            _log.info("Spark did not stop in good order: %s", failure)
    java: subprocess.Popen[bytes] | None = gateway.proc
    if java is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # so that another session would start another Java
    if java.stdin is not None:
        java.stdin.close()
    try:
        java.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _log.info("Java does not end by itself")
