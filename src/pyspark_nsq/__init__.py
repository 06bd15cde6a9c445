"""Makes format("nsq") known to Spark, which looks for modules whose names begin with `pyspark_`. The work is done in
`emberq.spark`."""

from emberq.spark.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
