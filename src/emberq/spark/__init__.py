"""NSQ for Apache Spark, through PySpark: read topics, stream them, write to them.

`pip install emberq[spark]` makes `format("nsq")` known to Spark. `session` makes a SparkSession with settings that suit
it; `read_topic` reads topics together with their archive.

    source             format("nsq"): the manual
    error              what can go wrong, as a tree
    schema             the columns that are read and written
    option             the table of options, and the settings they make
    nsqd_http          blocking HTTP to nsqds; which nsqd has which topic
    journal_source     Spark's readers of journals
    journal_plan       how far journals reach, and which ranges a batch reads
    journal_read       reading one range of a journal, in a task or without Spark
    journal_columns    journal batches as Arrow columns
    journal_offset     positions in journals: checkpoints and startingOffsets
    channel_source     Spark's reader of a channel
    channel_receiver   a channel received into a spool on the driver
    channel_spool      the spool and its files: each message stored once, batches read again
    channel_frames     message frames as Arrow arrays
    sink               rows written to topics
    java               the Java that Spark runs on, its launcher and class archive
    worker_daemon      PySpark's worker daemon without needless tracebacks
    session            a SparkSession, for programs and for commands
    archive            topics as Parquet files, and back; a topic and its archive as one table
    sql                SQL over topics and archives
    demo               the check behind `make demo`; the run that loads every class
    pipeline           SQL pipelines from topics to topics and files
"""

from typing import TYPE_CHECKING

from emberq.spark.session import session

__all__ = ["ArchivedTopic", "TimeRange", "archived_topic", "read_topic", "session"]

if TYPE_CHECKING:
    from emberq.spark.archive import ArchivedTopic, TimeRange, archived_topic, read_topic
else:  # hidden from type checkers, which would take any name for granted

    def __getattr__(name):
        """Load a name of `__all__` at its first use: the workers of Spark do without the archive."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from emberq.spark import archive

        return getattr(archive, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
