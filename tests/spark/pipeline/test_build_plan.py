"""What is told of a query that failed, out of the pages that Spark writes."""

from __future__ import annotations

import pytest

from emberq.spark.pipeline.build import cause_of

IN_A_FUNCTION = """\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/lib/python3/site-packages/py4j/clientserver.py", line 617, in _call_proxy
{cause}

=== Streaming Query ===
Identifier: clicks/archive [id = 531f80f9, runId = 466b9b57]
"""
IN_A_SINK = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: Traceback (most recent call last):
  File "/lib/python3/site-packages/emberq/spark/sink.py", line 90, in reachable
emberq.spark.error.NsqdUnavailableError: 127.0.0.1:9: [Errno 111] Connection refused
 SQLSTATE: 38000
"""
OF_JAVA = """\
py4j.protocol.Py4JJavaError: An error occurred while calling o718.parquet.
: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/tmp/file
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:812)"""
OF_SPARK = (
    "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] no such luck SQLSTATE: P0001"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (IN_A_SINK, "127.0.0.1:9: [Errno 111] Connection refused"),
        (IN_A_FUNCTION.format(cause=OF_JAVA), "Parent path is not a directory: file:/tmp/file"),
        (IN_A_FUNCTION.format(cause=OF_SPARK), "no such luck"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: no space SQLSTATE: XXKST", "no space"),
    ],
)
def test_the_cause_is_what_the_innermost_says(text: str, cause: str) -> None:
    assert cause_of(Exception(text)) == cause
