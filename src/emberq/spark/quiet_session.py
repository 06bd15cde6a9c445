"""A SparkSession for commands, which tell themselves what went wrong: Spark and what is around it keep quiet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

from pyspark.sql import SparkSession

from emberq.spark.spark_session import session

Session: TypeAlias = SparkSession
"""For those who may not import pyspark."""

_TALKATIVE = (
    "SQLQueryContextLogger",  # repeats every error in SQL, as JSON
    "py4j",  # tells of connections that a stop has closed
)


def quiet_session(name: str, *, master: str | None, is_verbose: bool, config: Mapping[str, str]) -> Session:
    """The session of this process. JavaNotFound if there is no Java."""
    for logger in _TALKATIVE:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    level = "INFO" if is_verbose else "FATAL"
    return session(name, master=master, config={"spark.log.level": level} | dict(config))
