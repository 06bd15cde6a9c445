"""A SparkSession for commands, which tell themselves what went wrong: Spark and what is around it keep quiet.

What Java and its workers write to standard error all the same (threads that a stop has broken off, what a user's
function prints) goes to a log file, which a command can name if it fails.
"""

from __future__ import annotations

import logging
import os
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from emberq.spark.class_archive import QUIET_JAVA, with_archive
from emberq.spark.java import LOG_VARIABLE, find_java, launched
from emberq.spark.spark_session import session

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
