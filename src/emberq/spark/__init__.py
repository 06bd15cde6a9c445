"""NSQ for Apache Spark, through PySpark: read topics, stream them, write to them.

`format("nsq")` is there as soon as emberq is installed with `pip install emberq[spark]`; see `emberq.spark.source`.
`session` makes a SparkSession with settings that suit it.
"""

from emberq.spark.session import session

__all__ = ["session"]
