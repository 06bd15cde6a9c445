"""Makes format("nsq") known to Spark, which looks for modules named `pyspark_*`. `emberq.spark` does the work."""

from emberq.spark.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
