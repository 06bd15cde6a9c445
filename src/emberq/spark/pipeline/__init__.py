"""Pipelines: topics read as rows, SQL over them, results to topics and files, exactly once.

As values (`model`) or as TOML (`toml_file`), run here or by `emberq pipeline run FILE`.
"""

from emberq.spark.pipeline.model import (
    BadRecords,
    BodyFormat,
    OutputMode,
    Pipeline,
    PipelineError,
    Sink,
    Source,
    Table,
    View,
    Watermark,
)
from emberq.spark.pipeline.run import PipelineFailedError, PipelineRun
from emberq.spark.pipeline.toml_file import load_pipeline

__all__ = [
    "BadRecords",
    "BodyFormat",
    "OutputMode",
    "Pipeline",
    "PipelineError",
    "PipelineFailedError",
    "PipelineRun",
    "Sink",
    "Source",
    "Table",
    "View",
    "Watermark",
    "load_pipeline",
]
