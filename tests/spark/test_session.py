from __future__ import annotations

import os
from importlib import import_module

from pyspark.sql import SparkSession

from emberq.spark import session
from emberq.spark.session import TUNED


def test_a_session_is_tuned_and_takes_what_is_asked_for(spark: SparkSession) -> None:
    for key, value in TUNED.items():
        assert spark.conf.get(key) == value
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.master == "local[2,4]"
    assert os.environ["PYSPARK_PYTHON"] == import_module("emberq.spark.session").local_worker_python()


def test_a_second_call_gives_the_running_session(spark: SparkSession) -> None:
    assert session().sparkContext is spark.sparkContext
