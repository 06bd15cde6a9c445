"""What Spark makes of a query, before it is started: whether it can run as a stream, and whether it keeps state.

Both are known to Spark's analyzer and have no Python API, so they are asked for through py4j. A query keeps state when
it must remember rows or groups from one batch to the next; its state is in its checkpoint and belongs to its SQL.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

from emberq.spark.pipeline.model import OutputMode

_ALWAYS_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "GlobalLimit",
}

_IN_FUNCTION = re.compile(r"^(?:pyspark\.errors\.[\w.]+|: [\w.$]+): (.+)", re.MULTILINE)
"""In the traceback of a function that Spark called for a batch: what Spark itself, or Java, had said to it."""


def stream_fault(rows: DataFrame, output_mode: OutputMode) -> str | None:
    """Why these rows cannot be written as a stream in this mode; None if they can."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
    from pyspark.errors import PySparkException

    jvm: Any = rows.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(_analyzed(rows), mode)
    except PySparkException as fault:
        return first_sentence(fault)
    except Py4JJavaError as fault:
        return str(fault.java_exception.getMessage()).partition("\n")[0]
    return None


def keeps_state(rows: DataFrame) -> bool:
    """Whether a stream of these rows remembers anything from batch to batch."""
    return _is_stateful(_analyzed(rows))


def first_sentence(fault: Exception) -> str:
    """What an error of Spark says, without the plan that it prints behind."""
    return str(fault).partition("\n")[0].partition(" SQLSTATE")[0].rstrip(".; ")


def cause_of(fault: Exception) -> str:
    """What our own code said, out of all that Spark wraps around it; else what Spark says."""
    text = str(fault)
    ours = re.findall(r"emberq\.[\w.]+: (.+)", text)
    if ours:
        return str(ours[-1]).strip()
    in_function = _IN_FUNCTION.search(text)
    if in_function is not None:
        return first_sentence(Exception(in_function[1]))
    _, _, inner = text.partition("terminated with exception: ")
    return first_sentence(Exception(inner or text))


def _analyzed(rows: DataFrame) -> Any:
    java_rows: Any = rows._jdf
    return java_rows.queryExecution().analyzed()


def _is_stateful(node: Any) -> bool:
    if not node.isStreaming():
        return False
    children = [node.children().apply(number) for number in range(node.children().size())]
    if node.nodeName() in _ALWAYS_STATEFUL:
        return True
    if node.nodeName() == "Join" and all(child.isStreaming() for child in children):
        return True
    return any(_is_stateful(child) for child in children)
