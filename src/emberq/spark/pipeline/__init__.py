"""Pipelines: topics read as rows, SQL over them, results to topics and files, exactly once.

A pipeline is written as values (`model`) or as TOML (`toml_file`). `PipelineRun` or `emberq pipeline run FILE` runs it.

    model         what a pipeline is made of, and problems with one
    check         what is wrong with a pipeline, without Spark
    toml_file     a pipeline as TOML, with line numbers
    rule          what is expected of rows, and what becomes of those that fail
    body_format   message bodies to rows, and bad records
    build         sources, views and sinks as queries of Spark
    run           queries started, watched and stopped
    files         files anywhere; Parquet folders, written exactly once and compacted
    jdbc          tables of a database, written exactly once
    checkpoint    how far queries have come, and their lag, without Spark
    progress      figures of each batch of a query
    report        progress to a topic, to Prometheus, to a table
"""

from emberq.spark.pipeline.model import (
    BadRecords,
    BodyFormat,
    Expectation,
    OutputMode,
    Pipeline,
    PipelineError,
    RuleAction,
    SchemaEvolution,
    Sink,
    Source,
    Table,
    View,
    Watermark,
    WriteMode,
)
from emberq.spark.pipeline.run import PipelineFailedError, PipelineRun
from emberq.spark.pipeline.toml_file import load_pipeline

__all__ = [
    "BadRecords",
    "BodyFormat",
    "Expectation",
    "OutputMode",
    "Pipeline",
    "PipelineError",
    "PipelineFailedError",
    "PipelineRun",
    "RuleAction",
    "SchemaEvolution",
    "Sink",
    "Source",
    "Table",
    "View",
    "Watermark",
    "WriteMode",
    "load_pipeline",
]
