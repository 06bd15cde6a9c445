"""A SparkSession for commands, which tell themselves what went wrong: Spark and what is around it keep quiet."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession

from emberq.spark.class_archive import with_archive
from emberq.spark.java import find_java, launched
from emberq.spark.spark_session import session

Session: TypeAlias = SparkSession
"""For those who may not import pyspark."""

_TALKATIVE = (
    "SQLQueryContextLogger",  # repeats every error in SQL, as JSON
    "py4j",  # tells of connections that a stop has closed
)


_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Not the extra ones, which would replace what a cluster's file of defaults says."""
_SILENT_LOG = Path(__file__).with_name("silent_log4j2.properties")
"""Read when Java starts. `spark.log.level` comes later, when much was said already."""


def quiet_session(name: str, *, master: str | None, is_verbose: bool, config: Mapping[str, str]) -> Session:
    """The session of this process. JavaNotFound if there is no Java."""
    for logger in _TALKATIVE:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if is_verbose:
        return session(name, master=master, config={"spark.log.level": "INFO"} | dict(config))
    os.environ["JAVA_HOME"] = str(with_archive(launched(find_java())).home)
    silence = f"-Dlog4j2.configurationFile={_SILENT_LOG.as_uri()}"
    options = f"{config.get(_JAVA_OPTIONS, '')} {silence}".strip()
    return session(name, master=master, config=dict(config) | {_JAVA_OPTIONS: options})
